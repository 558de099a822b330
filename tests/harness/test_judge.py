"""Whole verdicts: the order of findings, and what doubts do to them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import Event, History
from harness.judge import judge
from harness.verdict import Verdict
from tests.builders import (
    a_drill,
    a_history,
    a_lost_request,
    a_request,
    a_response,
    a_step,
    an_slo,
    breaker,
    edges,
    opened_and_closed,
    requests,
)

DRILL = a_drill(
    slos=[an_slo(quantile=0.9, max=500), an_slo(phase="recovery", quantile=0.9, max=500)],
    responses=[a_response()],
)
SLOW_FAULT = [*requests(105), *requests(100, start=10.5, ttft_ms=900), *requests(195, start=20.5)]


def outcomes(verdict: Verdict) -> dict[str, str]:
    return {finding.id: finding.outcome for finding in verdict.findings}


def test_a_clean_run_passes_with_every_finding_held() -> None:
    verdict = judge(DRILL, a_history(drill=DRILL))
    assert list(outcomes(verdict)) == [
        "run.complete",
        "run.service-stayed-up",
        "load.kept-up",
        "steady-state.ttft_ms.p90",
        "fault.vram.took-effect",
        "fault.vram.rolled-back",
        "response.no-false-alarm",
        "response.vram.memory.detected",
        "response.vram.memory.closed-again",
        "response.vram.containment",
        "slo.fault.vram.ttft_ms.p90",
        "slo.recovery.vram.ttft_ms.p90",
        "invariant.one-terminal-state",
        "invariant.truthful-labels",
        "invariant.token-fidelity",
        "invariant.nothing-left",
    ]
    assert set(outcomes(verdict).values()) == {"HELD"}
    assert (verdict.status, verdict.exit_code, verdict.passed) == ("PASS", 0, True)


def test_the_same_history_gives_the_same_verdict() -> None:
    history = a_history(drill=DRILL)
    assert judge(DRILL, history) == judge(DRILL, History.of(reversed(history.events)))


def test_one_broken_slo_fails_the_drill() -> None:
    verdict = judge(DRILL, a_history(requests=SLOW_FAULT))
    assert outcomes(verdict)["slo.fault.vram.ttft_ms.p90"] == "BROKEN"
    assert (verdict.status, verdict.exit_code) == ("FAIL", 1)


@pytest.mark.parametrize(
    "cut_short",
    [
        {"end": {"complete": False}},
        {"more": [{"kind": "interrupted", "t": 30.0, "signal": "SIGINT"}]},
        {"more": [{"kind": "failure", "t": 30.0, "reason": "the service died"}]},
    ],
    ids=["incomplete", "interrupted", "failed"],
)
def test_a_run_that_was_cut_short_never_passes(cut_short: dict[str, Any]) -> None:
    verdict = judge(DRILL, a_history(**cut_short))
    assert verdict.finding("run.complete").reason.startswith("the run was cut short")
    assert (verdict.status, verdict.exit_code) == ("UNKNOWN", 2)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"lateness_p99_ms": 251.0}, "the load generator could not keep up"),
        ({"sent": 399}, "the load generator could not keep up"),
        (
            {"lateness_p99_ms": None},
            "the load generator did not say what it planned, sent and how late it was",
        ),
    ],
    ids=["late", "not-all-sent", "untold"],
)
def test_a_load_generator_that_did_not_keep_up_makes_the_verdict_unknown(
    load: dict[str, Any], reason: str
) -> None:
    verdict = judge(DRILL, a_history(load=load))
    assert (verdict.finding("load.kept-up").outcome, verdict.finding("load.kept-up").reason) == (
        "INCONCLUSIVE",
        reason,
    )
    assert verdict.status == "UNKNOWN"


def test_a_broken_slo_may_be_noise_when_the_load_was_late() -> None:
    verdict = judge(DRILL, a_history(requests=SLOW_FAULT, load={"lateness_p99_ms": 900.0}))
    finding = verdict.finding("slo.fault.vram.ttft_ms.p90")
    assert finding.outcome == "INCONCLUSIVE"
    assert finding.reason.startswith("may be noise, as load.kept-up did not hold: surely at least")
    assert verdict.status == "UNKNOWN"


def test_a_baseline_that_is_not_steady_makes_slos_and_responses_inconclusive() -> None:
    slow = [*requests(205, ttft_ms=900), *requests(195, start=20.5)]
    verdict = judge(DRILL, a_history(requests=slow, breakers=[]))
    assert verdict.finding("steady-state.ttft_ms.p90").reason.startswith(
        "baseline not steady: surely at least"
    )
    assert outcomes(verdict)["steady-state.ttft_ms.p90"] == "INCONCLUSIVE"
    assert outcomes(verdict)["slo.fault.vram.ttft_ms.p90"] == "INCONCLUSIVE"
    assert outcomes(verdict)["response.vram.memory.detected"] == "INCONCLUSIVE"
    assert verdict.status == "UNKNOWN"


def test_what_noise_does_not_excuse_stays_broken_on_doubtful_ground() -> None:
    verdict = judge(
        DRILL,
        a_history(load={"sent": 0}, faults=edges(skip=["gone"]), leftover={"kv_blocks": 3}),
    )
    assert outcomes(verdict)["fault.vram.rolled-back"] == "BROKEN"
    assert outcomes(verdict)["invariant.nothing-left"] == "BROKEN"
    assert verdict.status == "FAIL"


def test_a_fault_without_effect_tests_nothing() -> None:
    verdict = judge(DRILL, a_history(faults=edges(skip=["active"])))
    assert verdict.finding("fault.vram.took-effect").reason == "fault did not take effect"
    vacuous = [f.id for f in verdict.of_outcome("VACUOUS")]
    assert vacuous == [
        "fault.vram.took-effect",
        "response.vram.memory.detected",
        "response.vram.memory.closed-again",
        "response.vram.containment",
        "slo.fault.vram.ttft_ms.p90",
        "slo.recovery.vram.ttft_ms.p90",
    ]
    assert verdict.status == "UNKNOWN"


LOST = {"kind": "fault", "t": 13.5, "step": "vram", "edge": "lost", "reason": "the neighbour died"}


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ([*edges(), LOST], "the fault was lost after 3.0 s"),
        (
            [e | ({"held": False} if "held" in e else {}) for e in edges()],
            "the fault was lost: the last look did not show it",
        ),
        (
            [{name: value for name, value in e.items() if name != "held"} for e in edges()],
            "nobody looked whether the fault was there until the undo",
        ),
        (edges(skip=["rolling_back"]), "nobody looked whether the fault was there until the undo"),
    ],
    ids=["lost", "not-there-at-the-end", "nobody-looked", "no-undo"],
)
def test_a_fault_that_did_not_last_shows_nothing_about_the_service(faults: list[Event], reason: str) -> None:
    """Not even what is BROKEN: with a fault on and off again, a breaker may well open and close again."""
    for asked in (None, SLOW_FAULT):
        verdict = judge(DRILL, a_history(faults=faults, requests=asked))
        about_it = [
            "fault.vram.took-effect",
            *(f.id for f in verdict.findings if f.id.startswith(("slo.", "response.v"))),
        ]
        assert {verdict.finding(name).outcome for name in about_it} == {"INCONCLUSIVE"}
        assert {verdict.finding(name).reason for name in about_it} == {reason}
        assert verdict.status == "UNKNOWN"


def test_a_service_that_died_fails_the_drill_on_any_ground() -> None:
    died = {"kind": "service", "event": "died", "t": 41.0, "exit_code": -9, "last_words": "killed"}
    verdict = judge(DRILL, a_history(more=[died], load={"sent": 0}, goodbye=None))
    finding = verdict.finding("run.service-stayed-up")
    assert (finding.outcome, finding.reason) == ("BROKEN", "killed")
    assert finding.measured == "ended by itself before 41.0 s, exit code -9"
    assert verdict.status == "FAIL"


def test_a_service_that_says_no_goodbye_is_not_known_to_have_stayed_up() -> None:
    assert outcomes(judge(DRILL, a_history(goodbye=None)))["run.service-stayed-up"] == "INCONCLUSIVE"


def test_a_server_by_url_is_not_ours_to_stay_up() -> None:
    by_url = a_drill(target={"url": "http://localhost:8000"}, timeline=[])
    assert "run.service-stayed-up" not in outcomes(judge(by_url, a_history(faults=[], breakers=[])))


def test_a_probe_that_is_wrong_makes_the_run_incomplete_and_one_that_got_no_answer_does_not() -> None:
    failure = {
        "kind": "sample_failure",
        "t": 5.0,
        "source": "node",
        "reason": "KeyError: 'x'",
        "transient": False,
    }
    wrong = judge(DRILL, a_history(more=[failure]))
    assert wrong.finding("run.complete").reason == "the node samples failed: KeyError: 'x'"
    assert wrong.status == "UNKNOWN"
    assert judge(DRILL, a_history(more=[failure | {"transient": True}])).status == "PASS"


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (
            [a_request(n, sent=a_request(n)["due"] + 0.3) for n in (120, 130)],
            "the load generator could not keep up in fault vram",
        ),
        ([a_request(102, sent=12.0)], "the load generator stalled"),
    ],
    ids=["in-one-phase", "a-single-one-in-no-phase"],
)
def test_requests_that_were_late_in_one_phase_are_not_hidden_by_the_others(
    late: list[Event], reason: str
) -> None:
    by_index = {request["index"]: request for request in [*requests(), *late]}
    verdict = judge(DRILL, a_history(requests=list(by_index.values())))
    assert verdict.finding("load.kept-up").outcome == "INCONCLUSIVE"
    assert verdict.finding("load.kept-up").reason == reason


def test_a_response_that_says_how_long_is_judged_for_it_at_the_targets_scale() -> None:
    """The breaker stays open for 11.4 s."""
    for scale, outcome in ((0.1, "HELD"), (0.25, "BROKEN")):
        drill = a_drill(responses=[a_response(open_for_s=60)], target={"breaker_time_scale": scale})
        finding = judge(drill, a_history()).finding("response.vram.memory.stays-open")
        assert (finding.outcome, finding.measured) == (outcome, "open for 11.4 s")


def test_another_breaker_in_a_step_may_be_noise_on_doubtful_ground() -> None:
    moves = [*opened_and_closed(), breaker(15.0, "open", name="pcie")]
    assert outcomes(judge(DRILL, a_history(breakers=moves)))["response.vram.containment"] == "BROKEN"
    late = judge(DRILL, a_history(breakers=moves, load={"lateness_p99_ms": 900.0}))
    assert outcomes(late)["response.vram.containment"] == "INCONCLUSIVE"


def test_a_fault_that_stayed_below_its_dose_says_how_strong_it_was() -> None:
    weak = {
        "kind": "fault",
        "t": 15.0,
        "step": "vram",
        "edge": "no_effect",
        "asked": 2.0,
        "measured": 6.0,
        "unit": "MB free",
    }
    finding = judge(DRILL, a_history(faults=[*edges(skip=["active"]), weak])).finding(
        "fault.vram.took-effect"
    )
    assert (finding.outcome, finding.measured) == ("VACUOUS", "6 MB free, 2 asked")


def test_a_fault_without_effect_leaves_the_other_steps_findings_alone() -> None:
    drill = a_drill(timeline=[a_step("one"), a_step("two", at_s=30)], slos=[an_slo(quantile=0.9, max=500)])
    faults = [*edges("one", skip=["active"]), *edges("two", later=15.0)]
    verdict = judge(drill, a_history(faults=faults, breakers=[]))
    assert outcomes(verdict)["slo.fault.one.ttft_ms.p90"] == "VACUOUS"
    assert outcomes(verdict)["slo.fault.two.ttft_ms.p90"] == "HELD"


def test_a_step_that_was_never_begun_is_vacuous_and_says_so() -> None:
    verdict = judge(DRILL, a_history(faults=[], breakers=[]))
    assert verdict.finding("fault.vram.took-effect").reason == "fault did not take effect: it was never begun"
    assert verdict.status == "UNKNOWN"


def test_the_dose_asked_and_measured_is_told() -> None:
    finding = judge(DRILL, a_history()).finding("fault.vram.took-effect")
    assert finding.measured == "1.8 MB free, 2 asked, 500 ms after injection; weakest 1.9 in 100 looks"


def test_a_rollback_that_was_not_confirmed_fails_with_its_reason() -> None:
    stuck = {"kind": "fault", "t": 26.0, "step": "vram", "edge": "broken", "reason": "1.8 MB free after 5 s"}
    finding = judge(DRILL, a_history(faults=[*edges(skip=["gone"]), stuck])).finding("fault.vram.rolled-back")
    assert (finding.outcome, finding.reason) == ("BROKEN", "rollback not confirmed: 1.8 MB free after 5 s")


def test_a_history_without_events_is_unknown() -> None:
    verdict = judge(DRILL, History.of([]))
    assert verdict.status == "UNKNOWN"
    assert not [f for f in verdict.findings if "the check itself failed" in f.reason]


def test_a_check_that_raises_settles_nothing_and_says_what_it_raised() -> None:
    maimed = [breaker(10.6, "open"), {"kind": "breaker", "t": 10.7, "name": "memory"}]
    verdict = judge(DRILL, a_history(breakers=maimed))
    finding = verdict.finding("response.vram.memory.closed-again")
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "the check itself failed: KeyError: 'now'")
    assert verdict.status == "UNKNOWN"


def test_an_alarm_in_the_baseline_is_broken() -> None:
    early = [breaker(3.0, "open"), breaker(4.0, "closed", was="open"), *opened_and_closed()]
    finding = judge(DRILL, a_history(breakers=early)).finding("response.no-false-alarm")
    assert (finding.outcome, finding.measured) == ("BROKEN", "memory at 3.0 s (free memory low)")


def test_a_drill_without_faults_fails_if_the_load_is_surely_not_served_steadily() -> None:
    steady = [an_slo("error_ratio", phase="baseline", max=0.05)]
    drill = a_drill(timeline=[], steady_state=steady, fidelity_sample=0)
    lost = [a_lost_request(i, error="no model zzz") for i in range(100)]
    verdict = judge(drill, a_history(drill=drill, requests=lost, faults=[], breakers=[], fidelity=0))
    broken = verdict.finding("steady-state.error_ratio")
    assert (verdict.status, broken.outcome) == ("FAIL", "BROKEN")
    assert "not answered: 100 × 503 no model zzz" in broken.measured


def test_a_run_that_was_killed_before_anyone_looked_does_not_say_that_the_undo_failed() -> None:
    history = a_history(faults=edges(skip=["rolling_back", "gone"]))
    history.events = [event for event in history.events if event["kind"] not in ("end", "leftover")]
    assert judge(a_drill(), history).finding("fault.vram.rolled-back").outcome == "INCONCLUSIVE"
