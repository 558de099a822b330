"""The first line of a report: how the service recovered from each fault."""

from __future__ import annotations

from typing import Any

from harness.judge import judge
from reports.recovery import Recovery, recovery_of
from tests.builders import a_drill, a_history, a_response, an_slo, breaker, edges, opened_and_closed, requests

DRILL = a_drill(
    slos=[an_slo(phase="recovery", quantile=0.9, max=500, after_s=6)],
    responses=[a_response(closed_within_s=10)],
)


def recovery(**history: Any) -> Recovery:
    made = a_history(**history)
    return recovery_of(DRILL.timeline[0], made, judge(DRILL, made))


def test_the_recovery_is_as_late_as_its_last_part() -> None:
    """Breaker closed after 2 s, latency from 4 s on, the last INT4 answer 5 s after the fault was gone."""
    made = [*requests(210), *requests(40, start=21, ttft_ms=900, rung="int4"), *requests(150, start=25)]
    made[260] |= {"rung": "int4"}
    told = recovery(requests=made)
    assert (told.breaker_closed_s, told.slo_kept_s, told.last_downgraded_s) == (2.0, 4.0, 5.0)
    assert str(told) == (
        "vram: recovered in 5.0 s after 10.0 s of vram_oom (breaker open after 100 ms, closed 2.0 s after the"
        " fault, last lower-rung answer due at 5.0 s, SLOs kept from 4.0 s on)"
    )


def test_a_breaker_that_stays_open_is_no_recovery() -> None:
    told = recovery(breakers=[breaker(10.6, "open")])
    assert (told.recovered_s, told.headline) == (None, "not shown to recover")
    assert "breaker not closed" in str(told)


def test_a_service_that_never_climbs_back_to_its_full_model_did_not_recover() -> None:
    told = recovery(requests=[*requests(105), *requests(295, start=10.5, rung="int4")])
    assert told.recovered_s is None
    assert "the last answer is still a lower rung's" in told.details


def test_slow_answers_until_the_end_are_no_recovery() -> None:
    told = recovery(requests=[*requests(210), *requests(190, start=21, ttft_ms=900)])
    assert told.recovered_s is None
    assert "SLOs not shown to hold again" in told.details


def test_a_fault_that_took_no_effect_has_no_recovery() -> None:
    told = recovery(faults=edges(skip=["active"]), breakers=opened_and_closed())
    assert told.headline == "no effect"


def test_a_fault_that_is_not_gone_has_no_recovery() -> None:
    assert recovery(faults=edges(skip=["gone"])).recovered_s is None
