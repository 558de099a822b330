"""Breakers: opened in time, closed in time, and for good."""

from __future__ import annotations

import pytest

from harness.drill import Response
from harness.history import Event
from harness.responses import closed_again, detected
from harness.verdict import Finding
from tests.builders import a_history, a_response, breaker, edges, opened_and_closed

RESPONSE = Response.model_validate(a_response())  # within 200 ms of 10.5 s, within 5 s of 21 s


def opened(breakers: list[Event], **history: list[Event]) -> Finding:
    return detected(RESPONSE).look(a_history(breakers=breakers, **history))


def closed(breakers: list[Event], **history: list[Event]) -> Finding:
    return closed_again(RESPONSE).look(a_history(breakers=breakers, **history))


def test_detection_counts_from_the_effect() -> None:
    finding = opened([breaker(10.62, "open")])
    assert (finding.outcome, finding.measured) == ("HELD", "opened after 120 ms")
    assert finding.numbers["latency_ms"] == pytest.approx(120)


def test_a_breaker_that_opens_too_late_is_broken() -> None:
    finding = opened([breaker(10.75, "open")])
    assert (finding.outcome, finding.measured, finding.reason) == (
        "BROKEN",
        "opened after 250 ms",
        "breaker opened too late",
    )


def test_a_breaker_that_opens_before_the_full_dose_counts_as_at_once_and_is_told() -> None:
    finding = opened([breaker(10.2, "open")])
    assert (finding.outcome, finding.measured) == ("HELD", "opened after 0 ms (300 ms before the full dose)")
    assert finding.numbers["latency_ms"] == 0


@pytest.mark.parametrize(
    "moves",
    [[], [breaker(10.6, "open", name="pcie")], [breaker(5.0, "open"), breaker(6.0, "closed", was="open")]],
    ids=["no-move", "another-breaker", "only-before"],
)
def test_a_breaker_that_never_opens_is_broken(moves: list[Event]) -> None:
    assert (opened(moves).outcome, opened(moves).reason) == ("BROKEN", "breaker never opened")


def test_a_breaker_that_was_open_already_detects_nothing() -> None:
    finding = opened([breaker(5.0, "open")])
    assert (finding.outcome, finding.reason) == (
        "INCONCLUSIVE",
        "the breaker was already open when the fault began",
    )


def test_a_breaker_that_opens_in_the_next_step_did_not_detect_this_one() -> None:
    later = [*edges(), *edges("pcie", later=20.0)]
    assert opened([breaker(30.6, "open")], faults=later).reason == "breaker never opened"


def test_closing_counts_from_the_faults_end() -> None:
    finding = closed(opened_and_closed(closed=24.5))
    assert (finding.outcome, finding.measured) == ("HELD", "closed 3.5 s after the fault was gone")


def test_closing_too_late_is_broken() -> None:
    finding = closed(opened_and_closed(closed=26.5))
    assert (finding.outcome, finding.reason) == ("BROKEN", "breaker closed too late")


def test_a_breaker_that_flaps_is_closed_only_when_it_stays_closed() -> None:
    flapping = [*opened_and_closed(closed=22.0), *opened_and_closed(opened=23.0, closed=30.0)]
    finding = closed(flapping)
    assert (finding.outcome, finding.measured) == ("BROKEN", "closed 9.0 s after the fault was gone, 1 flaps")
    assert finding.numbers["flaps"] == 1


def test_a_breaker_that_stays_open_is_broken() -> None:
    finding = closed([breaker(10.6, "open")])
    assert (finding.outcome, finding.reason) == ("BROKEN", "breaker still open")
    assert finding.measured == "still open 22.0 s after the fault was gone"


def test_a_breaker_nobody_watched_long_enough_is_inconclusive() -> None:
    next_step = [*edges(), *edges("pcie", later=14.0)]
    finding = closed([breaker(10.6, "open"), breaker(24.5, "closed", was="open")], faults=next_step)
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "nobody watched for as long as it may take")


def test_a_breaker_that_closed_while_the_fault_was_still_on_took_no_time() -> None:
    assert closed(opened_and_closed(closed=15.0)).numbers["took_s"] == 0


def test_a_breaker_that_never_opened_has_nothing_to_close() -> None:
    assert closed([]).outcome == "VACUOUS"
