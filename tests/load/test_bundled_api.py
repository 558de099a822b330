"""The load generator against the bundled service's own API: both must mean the same by each ending."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from harness.load.driver import LoadDriver
from harness.load.plan import Arrival
from target.request import Finished, Rejected, Token
from tests.target.fake_service import BEGUN, HANG, HELLO, FakeService, Step, serving

Endings = dict[str, tuple[tuple[Step, ...], dict[str, Any]]]
ENDINGS: Endings = {
    "answered": (
        HELLO,
        {
            "outcome": "completed",
            "text": "hello",
            "rung": "light",
            "model": "small",
            "output_tokens": 2,
            "error": None,
        },
    ),
    "full": ((Rejected(429, "queue_full", "64 wait", 1.0),), {"outcome": "rejected", "status": 429}),
    "failed": (
        (BEGUN, Token("hel", 40, 0), Finished("failed", 3, 1, "small", "light", "device lost")),
        {"outcome": "failed", "status": 200, "text": "hel", "error": "engine_failed: device lost"},
    ),
    "over its deadline": (
        (Finished("deadline", 3, 0, "small", "light"),),
        {"outcome": "failed", "status": 504, "error": "deadline_exceeded: the request's timeout passed"},
    ),
}


@pytest.mark.parametrize("what", ENDINGS)
def test_the_load_understands_how_the_service_ends_a_request(what: str, tmp_path: Path) -> None:
    script, expected = ENDINGS[what]
    events: list[dict[str, Any]] = []
    service = FakeService(script)
    plan = (Arrival(0, 0.0, 3, 2, "seed"),)
    with serving(service) as url, LoadDriver(url, plan, None, tmp_path, 5, on_event=events.append) as load:
        load.wait()
    assert {key: events[0][key] for key in expected} == expected
    assert service.requests[0].client_id == events[0]["id"] == "r-0"
    assert service.requests[0].temperature == 0


def test_a_request_that_times_out_in_the_load_is_cancelled_in_the_service(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    service = FakeService((BEGUN, Token("hel", 40, 0), HANG))
    plan = (Arrival(0, 0.0, 3, 2, "seed"),)
    with serving(service) as url:
        with LoadDriver(url, plan, None, tmp_path, 0.5, on_event=events.append) as load:
            load.wait()
        deadline = time.monotonic() + 5
        while not service.cancelled and time.monotonic() < deadline:
            time.sleep(0.02)
        assert service.cancelled == [service.requests[0].id]
    assert (events[0]["outcome"], events[0]["text"]) == ("timeout", "hel")
    assert events[0]["first"] is not None
