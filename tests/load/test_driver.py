"""The load generator, as a whole: a real child, a real socket, a server that misbehaves on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.errors import OwnFailure
from harness.load.driver import LoadDriver
from harness.load.plan import Arrival, prompt_ids
from tests.load.fake_server import TOKEN_GAP_S, FakeServer

Events = dict[int, dict[str, Any]]


def arrivals(count: int, every_s: float, tokens: int = 3) -> tuple[Arrival, ...]:
    return tuple(Arrival(i, i * every_s, 5 + i, tokens, f"0/prompt/0/{i}") for i in range(count))


def play(server: FakeServer, plan: tuple[Arrival, ...], run_dir: Path, timeout_s: float = 5.0) -> Events:
    events: list[dict[str, Any]] = []
    with LoadDriver(server.url, plan, None, run_dir, timeout_s, model="m", on_event=events.append) as load:
        load.wait()
    assert load.progress.finished == len(events) == len({event["index"] for event in events})
    return {event["index"]: event for event in events}


def test_each_token_is_timed_as_it_comes_and_the_first_one_counts_from_the_due_time(tmp_path: Path) -> None:
    with FakeServer(first_token_after_s=0.2) as server:
        (event,) = play(server, arrivals(1, 0, tokens=5), tmp_path).values()
    assert event["outcome"] == "length"
    assert event["first"] - event["due"] >= 0.2
    assert event["t"] - event["first"] > 3 * TOKEN_GAP_S, "the first token was seen only near the end"
    gaps = [later - earlier for earlier, later in zip(event["tokens_t"], event["tokens_t"][1:], strict=False)]
    assert len(gaps) == 4
    assert sum(gap > TOKEN_GAP_S / 2 for gap in gaps) >= 3, "tokens came in a bunch"
    assert event["due"] <= event["sent"] <= event["first"] <= event["t"]


def test_a_request_is_what_the_plan_says_and_its_event_says_what_came_back(tmp_path: Path) -> None:
    plan = arrivals(2, 0.05)
    with FakeServer(behave=lambda index: "stop") as server:
        events = play(server, plan, tmp_path)
    first, second = sorted(server.received, key=lambda request: request.request_id)
    assert (first.path, first.request_id, second.request_id) == ("/v1/completions", "r-0", "r-1")
    assert second.body == {
        "model": "m",
        "prompt": prompt_ids(plan[1]),
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    told = {
        key: value for key, value in events[1].items() if key not in ("due", "sent", "first", "t", "tokens_t")
    }
    assert told == {
        "id": "r-1",
        "index": 1,
        "outcome": "completed",
        "status": 200,
        "finish": "stop",
        "model": "fake",
        "rung": "light",
        "prompt_tokens": 6,
        "output_tokens": 3,
        "text": "t0 t1 t2 ",
        "error": None,
    }


def test_a_frozen_server_is_offered_its_load_all_the_same(tmp_path: Path) -> None:
    plan = arrivals(30, 0.05, tokens=1)
    events: list[dict[str, Any]] = []
    with (
        FakeServer(first_token_after_s=0.0) as server,
        LoadDriver(server.url, plan, None, tmp_path, 5.0, on_event=events.append) as load,
    ):
        assert load.start_at is not None
        time.sleep(load.start_at + 0.2 - time.monotonic())
        server.freeze(1.0)
        load.wait()
    assert [event["outcome"] for event in events] == ["length"] * 30, [
        e for e in events if e["outcome"] != "length"
    ]
    assert load.lateness_p99_ms < 250
    waited = sorted(event["first"] - event["due"] for event in events)
    assert waited[-1] > 0.8, "the stall was not seen"
    assert sum(wait > 0.3 for wait in waited) >= 10, "requests that were due in the stall did not count it"


def test_each_request_has_a_connection_of_its_own_whatever_the_server_would_like(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with (
        FakeServer(first_token_after_s=0.0, behave=lambda _: "stays open") as server,
        LoadDriver(
            server.url, arrivals(5, 0.2, tokens=1), None, tmp_path, 2.0, on_event=events.append
        ) as load,
    ):
        load.wait()
    assert [event["outcome"] for event in events] == ["length"] * 5


ENDINGS = {
    "error inside": ("failed", 200, "engine_failed: the engine died"),
    "no done": ("failed", 200, "the stream ended without [DONE]"),
    "no finish": ("failed", 200, "finish_reason is None"),
    "cut off": ("failed", 200, None),
    "close at once": ("failed", None, None),
    "429": ("rejected", 429, "queue_full: not now"),
    "503": ("rejected", 503, "queue_full: not now"),
    "500": ("failed", 500, "queue_full: not now"),
    "hang": ("timeout", None, "not over 1 s after it was due"),
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One load in which each request ends in another way."""
    names = list(ENDINGS)
    with FakeServer(behave=names.__getitem__) as server:
        events = play(server, arrivals(len(names), 0.02), tmp_path_factory.mktemp("endings"), timeout_s=1.0)
    return {names[index]: event for index, event in events.items()}


@pytest.mark.parametrize("behaviour", ENDINGS)
def test_an_answer_counts_as_what_it_was(behaviour: str, endings: dict[str, dict[str, Any]]) -> None:
    event = endings[behaviour]
    outcome, status, error = ENDINGS[behaviour]
    assert (event["outcome"], event["status"]) == (outcome, status)
    assert event["error"] == error if error is not None else event["error"]


def test_a_server_that_is_not_there_is_a_finding_about_it_not_about_the_load(tmp_path: Path) -> None:
    server = FakeServer(url="http://127.0.0.1:9")
    events = play(server, arrivals(2, 0.01), tmp_path)
    assert {event["outcome"] for event in events.values()} == {"failed"}
    assert "refused" in events[0]["error"]


def test_stopping_reports_what_is_in_flight_as_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with FakeServer(behave=lambda index: "hang") as server:
        load = LoadDriver(
            server.url,
            (*arrivals(4, 0.05), Arrival(4, 60, 1, 1, "x")),
            None,
            tmp_path,
            60,
            on_event=events.append,
        )
        load.start()
        wait_until(lambda: load.progress.sent == 4)
        assert (load.progress.in_flight, load.progress.finished) == (4, 0)
        load.stop()
    assert sorted(event["index"] for event in events) == [0, 1, 2, 3]
    assert {event["outcome"] for event in events} == {"cancelled"}
    assert not load.running
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("end", "how"),
    [(signal.SIGKILL, "killed by signal 9"), (signal.SIGTERM, "ended with exit code 0")],
    ids=str,
)
def test_a_child_that_somebody_else_ends_is_our_failure(
    end: signal.Signals, how: str, tmp_path: Path
) -> None:
    with FakeServer() as server, LoadDriver(server.url, arrivals(2, 30), None, tmp_path, 5) as load:
        (child,) = children_of(os.getpid())
        child.send_signal(end)
        with pytest.raises(OwnFailure, match=rf"\d of 2 requests over, then {how}"):
            load.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_cannot_start_is_our_failure_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.load.child.LOCUSTFILE", tmp_path / "nowhere.py")
    with pytest.raises(OwnFailure, match=r"(?s)ended with exit code 1.*nowhere\.py"):
        LoadDriver("http://127.0.0.1:9", arrivals(1, 0), None, tmp_path, 5).start()
    assert list(tmp_path.iterdir()) == []


def test_a_wait_that_is_ended_by_a_stop_is_no_failure(tmp_path: Path) -> None:
    with FakeServer() as server, LoadDriver(server.url, arrivals(2, 30), None, tmp_path, 5) as load:
        threading.Timer(0.3, load.stop).start()
        load.wait()
    assert load.progress.sent == 1


def test_a_start_time_that_has_passed_is_refused_rather_than_played_late(tmp_path: Path) -> None:
    load = LoadDriver("http://127.0.0.1:9", arrivals(1, 0), time.monotonic(), tmp_path, 5)
    with pytest.raises(OwnFailure, match="after the load was to start"):
        load.start()
    assert not load.running


def test_an_event_that_cannot_be_taken_is_our_failure(tmp_path: Path) -> None:
    def refuse(event: dict[str, Any]) -> None:
        raise LookupError("disk full")

    with (
        FakeServer() as server,
        LoadDriver(server.url, arrivals(1, 0), None, tmp_path, 5, on_event=refuse) as load,
        pytest.raises(OwnFailure, match="disk full"),
    ):
        load.wait()


def test_someone_elses_locust_settings_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUST_RUN_TIME", "1ms")
    monkeypatch.setenv("LOCUST_HTML", str(tmp_path / "report.html"))
    with FakeServer() as server:
        (event,) = play(server, arrivals(1, 0), tmp_path).values()
    assert event["outcome"] == "length"
    assert list(tmp_path.iterdir()) == []


def test_a_base_url_may_end_in_v1_and_the_key_is_sent_but_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWNOUT_API_KEY", "sesame")
    with FakeServer() as server:
        server.url += "/v1/"
        events = play(server, arrivals(1, 0), tmp_path)
    assert server.received[0].path == "/v1/completions"
    assert server.received[0].headers["authorization"] == "Bearer sesame"
    assert "sesame" not in str(events)


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a fork that holds its sockets"])
def test_no_child_outlives_a_driver_that_is_killed(fork: bool, tmp_path: Path) -> None:
    script = f"""
        import os, time
        from pathlib import Path
        from harness.load.driver import LoadDriver
        from harness.load.plan import Arrival
        later = Arrival(0, 60, 1, 1, "x")
        LoadDriver("http://127.0.0.1:9", (later,), None, Path({str(tmp_path)!r}), 60).start()
        if {fork} and os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        os.write(1, b"started\\n")
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        (child,) = children_of(parent.pid)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, within_s=3)


def children_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "locust" in child.cmdline()]


def wait_until(condition: Any, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
