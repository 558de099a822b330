"""Breakers: opened in time, closed in time, and for good."""

from __future__ import annotations

import pytest

from harness.alarms import containment
from harness.drill import Response, Step
from harness.history import Event
from harness.responses import closed_again, detected, stays_open
from harness.verdict import Finding
from tests.builders import a_drill, a_history, a_response, a_step, breaker, edges, opened_and_closed, requests

RESPONSE = Response.model_validate(a_response())  # within 200 ms of 10.5 s, within 5 s of 21 s
STEP = a_drill().step("vram")
AT_ONCE = a_drill(timeline=[a_step(fault={"kind": "nvlink_degrade"})]).step("vram")


def opened(breakers: list[Event], step: Step = STEP, **history: list[Event]) -> Finding:
    return detected(RESPONSE, step).look(a_history(breakers=breakers, **history))


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


def test_a_breaker_that_opens_on_a_fault_that_builds_up_counts_as_at_once_and_is_told() -> None:
    finding = opened([breaker(10.2, "open")])
    assert (finding.outcome, finding.measured) == ("HELD", "opened after 0 ms (300 ms before the full dose)")
    assert finding.numbers["latency_ms"] == 0


def test_a_breaker_that_opens_before_a_fault_that_is_there_at_once_opened_on_something_else() -> None:
    finding = opened([breaker(10.2, "open")], AT_ONCE)
    assert (finding.outcome, finding.reason) == ("BROKEN", "opened before the fault took effect")
    assert opened([breaker(10.4995, "open")], AT_ONCE).outcome == "HELD", "half a millisecond is the clocks'"


def test_a_breaker_that_was_open_and_opens_again_has_not_detected_the_fault() -> None:
    again = [
        breaker(5, "open"),
        breaker(10.4, "half_open", was="open"),
        breaker(10.6, "open", was="half_open"),
    ]
    assert opened(again).outcome == "INCONCLUSIVE"


def test_a_fault_that_no_work_touches_is_not_to_be_noticed() -> None:
    """Nothing is due or in flight between the effect and the time that the breaker has."""
    idle = [*requests(100), *requests(200, start=12.0)]
    for moves in ([], [breaker(12.5, "open")]):
        finding = opened(moves, requests=idle)
        assert (finding.outcome, finding.reason) == (
            "VACUOUS",
            "no work touched it: no request was under way",
        )
    assert opened([breaker(10.6, "open")], requests=idle).outcome == "HELD"
    assert opened([], requests=[*idle, *requests(1, start=9.0, ttft_ms=1600)]).outcome == "BROKEN"


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
    assert finding.reason == "breaker opened again after it had closed"


def test_flapping_is_broken_also_if_it_ends_in_time() -> None:
    flapping = [*opened_and_closed(closed=22.0), *opened_and_closed(opened=22.2, closed=24.0)]
    assert closed(flapping).outcome == "BROKEN"


def test_a_breaker_that_stays_open_is_broken() -> None:
    finding = closed([breaker(10.6, "open")])
    assert (finding.outcome, finding.reason) == ("BROKEN", "breaker still open")
    assert finding.measured == "still open 22.0 s after the fault was gone"


def test_a_breaker_nobody_watched_long_enough_is_inconclusive() -> None:
    next_step = [*edges(), *edges("pcie", later=14.0)]
    finding = closed([breaker(10.6, "open"), breaker(24.5, "closed", was="open")], faults=next_step)
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "nobody watched for as long as it may take")


def test_a_breaker_that_closes_while_the_fault_is_on_is_broken() -> None:
    finding = closed(opened_and_closed(closed=15.0))
    assert (finding.outcome, finding.reason) == ("BROKEN", "breaker closed while the fault was on")


def test_a_breaker_that_closes_between_the_undo_and_our_seeing_it_took_no_time() -> None:
    finding = closed(opened_and_closed(closed=20.8))  # undone at 20.5 s, gone at 21 s
    assert (finding.outcome, finding.numbers["took_s"]) == ("HELD", 0)


def test_a_breaker_that_nothing_probed_is_not_held_against_the_service() -> None:
    waiting = [breaker(10.6, "open"), breaker(30.0, "half_open", was="open")]
    finding = closed(waiting, requests=requests(250))  # until 25 s
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "nothing probed it: no request was due")
    assert closed(waiting).outcome == "BROKEN"


def stayed(breakers: list[Event], *, scale: float = 0.1, **history: list[Event]) -> Finding:
    response = Response.model_validate(a_response(open_for_s=60))
    return stays_open(response, scale).look(a_history(breakers=breakers, **history))


def reopened(*spans: float, start: float = 10.6) -> list[Event]:
    """Open for that long each time, with a probe of 0.1 s in between that does not hold."""
    moves, was, t = [], "closed", start
    for seconds in spans:
        moves += [breaker(t, "open", was=was), breaker(t + seconds, "half_open", was="open")]
        was, t = "half_open", t + seconds + 0.1
    return moves


def test_a_breaker_that_stays_open_for_its_time_each_time_is_held() -> None:
    finding = stayed(reopened(6.0, 5.8))
    assert (finding.outcome, finding.measured) == ("HELD", "open for 6.0 s, 5.8 s")
    assert finding.asked == "at least 6 s (60 s × 0.1), less 5%"


@pytest.mark.parametrize("spans", [(5.6,), (6.0, 2.0), (2.0, 6.0)])
def test_a_breaker_that_moves_on_too_early_is_broken_whichever_time_it_was(spans: tuple[float, ...]) -> None:
    assert stayed(reopened(*spans)).outcome == "BROKEN"


def test_at_full_size_it_must_stay_open_for_the_matrixs_own_time() -> None:
    assert stayed(reopened(6.0), scale=1.0).outcome == "BROKEN"


def test_an_open_time_that_nobody_saw_the_end_of_is_inconclusive_unless_it_was_long_enough() -> None:
    assert stayed([breaker(40.0, "open")]).outcome == "INCONCLUSIVE"
    assert stayed([breaker(30.0, "open")]).outcome == "HELD"


def test_an_open_time_is_followed_beyond_the_step_in_which_it_began() -> None:
    two = [*edges(), *edges("pcie", later=14.0)]
    assert stayed(reopened(6.0, start=22.0), faults=two).outcome == "HELD"
    assert stayed(reopened(3.0, start=22.0), faults=two).outcome == "BROKEN"


def test_a_breaker_that_never_opened_did_not_stay_open() -> None:
    assert stayed([]).outcome == "VACUOUS"


def contained(*moves: Event) -> Finding:
    two = [*edges(), *edges("pcie", later=14.0)]
    return containment("vram", frozenset({"memory"})).look(a_history(breakers=list(moves), faults=two))


def test_another_breaker_than_the_steps_own_is_broken() -> None:
    assert contained(*opened_and_closed()).outcome == "HELD"
    finding = contained(*opened_and_closed(), breaker(15.0, "open", name="nvlink"))
    assert (finding.outcome, finding.reason) == ("BROKEN", "another breaker opened")
    assert finding.measured == "nvlink at 15.0 s (free memory low)"


def test_another_breaker_counts_from_the_injection_to_the_next_one() -> None:
    assert contained(breaker(10.1, "open", name="pcie")).outcome == "BROKEN"
    assert contained(breaker(23.9, "open", name="pcie")).outcome == "BROKEN", "in the recovery"
    assert contained(breaker(24.5, "open", name="pcie"), breaker(9.0, "open", name="pcie")).outcome == "HELD"


def test_a_breaker_that_never_opened_has_nothing_to_close() -> None:
    assert closed([]).outcome == "VACUOUS"
