"""One end per request: what its client saw and what the service recorded, held against each other."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import Event
from harness.terminal import one_terminal_state
from harness.verdict import Finding
from tests.builders import a_history, a_lost_request, a_request, requests, service_side

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


@pytest.mark.parametrize("outcome", ["completed", "failed", "timeout", "cancelled"])
def test_a_request_that_a_whole_record_lacks_is_broken(outcome: str) -> None:
    odd = a_request(3, outcome=outcome)
    all_ten = [*TEN[:3], odd, *TEN[4:]]
    finding = terminal(requests=all_ten, service=service_side([*TEN[:3], *TEN[4:]]))
    assert finding.outcome == "BROKEN"
    assert finding.reason == f"r3 is {outcome} for its client and not in the service's record"


def test_a_request_that_ended_without_having_been_admitted_is_broken() -> None:
    finding = terminal(requests=TEN, service=service_side(TEN)[1:])
    assert "r0 ended and was never admitted" in finding.reason


def test_a_request_that_was_refused_and_is_in_the_record_is_broken() -> None:
    refused = a_lost_request(3, outcome="rejected")
    told = service_side([*TEN[:3], *TEN[4:], a_request(3, outcome="failed")])
    finding = terminal(requests=[*TEN[:3], refused, *TEN[4:]], service=told)
    assert finding.outcome == "BROKEN"
    assert "r3 was rejected for its client and admitted by the service" in finding.reason


@pytest.mark.parametrize(
    "lost",
    [
        a_lost_request(3) | {"status": None},
        a_lost_request(3) | {"sent": None},
        a_lost_request(3) | {"status": 400},
        a_lost_request(3, outcome="rejected") | {"status": 429},
    ],
    ids=["no-connection", "never-sent", "refused-as-wrong", "refused-as-too-many"],
)
def test_a_request_that_never_got_into_the_service_needs_no_record(lost: Event) -> None:
    told = service_side([*TEN[:3], *TEN[4:]])
    assert terminal(requests=[*TEN[:3], lost, *TEN[4:]], service=told).outcome == "HELD"


def test_a_record_with_gaps_is_evidence_of_nothing() -> None:
    told = service_side(TEN)
    without = [*told[:6], *told[8:]]
    gap = [line | {"n": n} for n, line in enumerate(told, 1) if line in without]
    finding = terminal(requests=TEN, service=gap, breakers=[])
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "the service's record has gaps")


def test_a_record_of_which_the_last_lines_are_missing_has_a_gap_before_its_goodbye() -> None:
    bye = {"kind": "service", "event": "stopped", "t": 42.5, "n": 99}
    assert terminal(requests=TEN, goodbye=None, more=[bye]).reason == "the service's record has gaps"


def test_a_record_without_a_goodbye_may_lack_anything() -> None:
    finding = terminal(requests=TEN, service=service_side(TEN[1:]), goodbye=None)
    assert finding.outcome == "INCONCLUSIVE"
    assert finding.reason == "the service's record has no end: it did not say goodbye"


def test_a_record_whose_lines_are_not_numbered_may_have_gaps() -> None:
    told = [line | {"n": None} for line in service_side(TEN)]
    assert terminal(requests=TEN, service=told).outcome == "INCONCLUSIVE"
