"""What no fault excuses."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import Event
from harness.invariants import fidelity, nothing_left, one_terminal_state, truthful_labels
from harness.verdict import Finding
from tests.builders import a_drill, a_history, a_lost_request, a_request, requests, service_side

DRILL = a_drill()
TEN = requests(10)


def terminal(**history: Any) -> Finding:
    return one_terminal_state().look(a_history(**history))


def test_every_request_ended_once_and_both_sides_agree() -> None:
    finding = terminal(requests=TEN)
    assert (finding.outcome, finding.measured) == ("HELD", "10 requests ended, 10 admitted by the service")


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ({"requests": TEN[:-1], "load": {"planned": 10}}, "request 9 never ended for its client"),
        ({"requests": [*TEN, TEN[3]]}, "request 3 ended 2 times for its client"),
        ({"requests": TEN, "service": service_side(TEN)[:-1]}, "r9 was admitted and never ended"),
        (
            {"requests": TEN, "service": [*service_side(TEN), service_side(TEN)[1]]},
            "r0 ended 2 times in the service",
        ),
    ],
    ids=["lost", "twice-at-the-client", "lost-in-the-service", "twice-in-the-service"],
)
def test_a_request_that_does_not_end_exactly_once_is_broken(history: dict[str, Any], reason: str) -> None:
    finding = terminal(**history)
    assert finding.outcome == "BROKEN"
    assert reason in finding.reason


@pytest.mark.parametrize(
    ("client", "service", "agree"),
    [
        ("completed", "completed", True),
        ("completed", "length", False),
        ("completed", "failed", False),
        ("failed", "failed: out of memory", True),
        ("timeout", "cancelled", True),
        ("cancelled", "cancelled", True),
        ("timeout", "failed", False),
        ("failed", "deadline", True),
        ("timeout", "deadline", True),
        ("completed", "deadline", False),
    ],
)
def test_client_and_service_must_tell_the_same_end(client: str, service: str, agree: bool) -> None:
    request = a_request(0, outcome=client)
    told = service_side([request])
    told[1]["reason"] = service
    finding = terminal(requests=[request], service=told)
    assert finding.outcome == ("HELD" if agree else "BROKEN")


@pytest.mark.parametrize(("apart_s", "outcome"), [(0.1, "HELD"), (3.0, "BROKEN")])
def test_a_client_that_gives_up_may_cross_with_the_last_bytes_only(apart_s: float, outcome: str) -> None:
    request = a_lost_request(0, outcome="timeout", waited_s=5.0)
    told = service_side([request])
    told[1] |= {"reason": "completed", "t": request["t"] - apart_s}
    assert terminal(requests=[request], service=told).outcome == outcome


@pytest.mark.parametrize(
    ("history", "lacks"),
    [
        ({"service": []}, "the service's own record of its requests"),
        ({"load": {"planned": None}}, "how many requests were planned"),
    ],
    ids=["no-service-events", "no-plan"],
)
def test_without_both_records_it_is_inconclusive(history: dict[str, Any], lacks: str) -> None:
    finding = terminal(requests=TEN, **history)
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", f"the history lacks {lacks}")


def test_requests_under_way_when_the_run_was_cut_short_are_not_held_against_the_service() -> None:
    cut = {"load": {"planned": 12}, "end": {"complete": False}}
    assert terminal(requests=TEN, **cut).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("label", "value"), [("rung", None), ("model", "")])
def test_an_answer_without_its_labels_is_broken(label: str, value: Any) -> None:
    finding = truthful_labels(DRILL).look(a_history(requests=[a_request(4, **{label: value})]))
    assert (finding.outcome, finding.reason) == ("BROKEN", f"r4 lacks {label}")


def test_a_request_that_was_not_answered_needs_no_label() -> None:
    history = a_history(requests=[a_request(0), a_lost_request(1)])
    assert truthful_labels(DRILL).look(history).measured == "all 1 answers"


def test_a_server_by_url_owes_no_rung() -> None:
    by_url = a_drill(target={"url": "http://localhost:8000"})
    assert truthful_labels(by_url).look(a_history(requests=[a_request(0, rung=None)])).outcome == "HELD"


def test_answers_asked_again_are_equal() -> None:
    assert fidelity(DRILL).look(a_history()).measured == "all 24 equal"


def test_one_answer_with_other_tokens_is_broken_and_named() -> None:
    wrong = {"kind": "fidelity", "t": 41.5, "id": "r77", "equal": False, "rung": "full"}
    finding = fidelity(DRILL).look(a_history(more=[wrong]))
    assert (finding.outcome, finding.measured, finding.reason) == ("BROKEN", "1 of 25 differ", "r77")


def test_fidelity_that_nobody_checked_is_inconclusive() -> None:
    assert fidelity(DRILL).look(a_history(fidelity=0)).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("left", "outcome", "measured"),
    [
        ({"kv_blocks": 0, "processes": []}, "HELD", "no kv_blocks, processes"),
        ({"kv_blocks": 2, "memory_bytes": 4096}, "BROKEN", "kv_blocks: 2, memory_bytes: 4096"),
        ({"processes": ["hog"]}, "BROKEN", "processes: ['hog']"),
        ({"flows": 1}, "BROKEN", "flows: 1"),
        ({}, "INCONCLUSIVE", ""),
        ({"kv_blocks": "unknown: no goodbye", "ports": []}, "INCONCLUSIVE", ""),
        ({"kv_blocks": None, "ports": [8000]}, "BROKEN", "ports: [8000]"),
    ],
    ids=["nothing", "memory", "process", "flows", "untold", "unknown", "unknown-and-left"],
)
def test_what_is_left_behind_is_named(left: Event, outcome: str, measured: str) -> None:
    finding = nothing_left().look(a_history(leftover=left))
    assert (finding.outcome, finding.measured) == (outcome, measured)
