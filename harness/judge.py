"""Judging: a pure function of a drill and a history, so that a stored run can be judged again years later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from harness import alarms, invariants, premises, responses, slo, terminal
from harness.drill import Drill
from harness.effect import NO_EFFECT, took_effect
from harness.history import History
from harness.machine import busier
from harness.metrics import METRICS
from harness.verdict import Check, Finding, Verdict

NOT_STEADY = "baseline not steady"


def judge(drill: Drill, history: History, *, design_effect: float = 1.0) -> Verdict:
    """The verdict on one run of a drill; never raises for what a history holds or lacks.

    `design_effect` says how bursty bad requests are: 1 if they are independent of one another (`binomial`).
    """
    run = [check(history) for check in _whole(drill)]
    load = premises.load_kept_up(drill)(history)
    steady = [
        check(history) if not drill.timeline else _unless_steady(check(history))
        for check in slo.checks(drill, drill.steady_state, name="steady-state", design_effect=design_effect)
    ]
    faults = {
        step.id: (took_effect(step)(history), invariants.rolled_back(step)(history))
        for step in drill.timeline
    }
    doubts = [finding for finding in (load, *steady) if finding.outcome != "HELD"]
    untested = {step: effect for step, (effect, _) in faults.items() if effect.outcome != "HELD"}

    behaviour = [check(history) for check in _behaviour(drill, design_effect)]
    behaviour = [_unless_untested(finding, untested) for finding in behaviour]
    behaviour = [_weighed_down(_unless_busier(finding, history), doubts) for finding in behaviour]
    lasting = [check(history) for check in _lasting(drill)]
    findings = [
        *run,
        load,
        *steady,
        *(finding for pair in faults.values() for finding in pair),
        *behaviour,
        *lasting,
    ]
    return Verdict(tuple(findings), drill.name)


def _whole(drill: Drill) -> Iterable[Check]:
    """What the run as a whole came to."""
    yield premises.run_complete()
    if drill.target.url is None:
        yield premises.service_stayed_up()


def _behaviour(drill: Drill, design_effect: float) -> Iterable[Check]:
    """What noise could break: the responses and the SLOs."""
    if drill.responses or drill.target.url is None:
        yield alarms.no_false_alarm()
    for response in drill.responses:
        yield responses.detected(response, drill.step(response.step))
        if response.open_for_s is not None:
            yield responses.stays_open(response, drill.target.breaker_time_scale)
        yield responses.closed_again(response)
    for step in drill.timeline:
        if own := frozenset(str(r.breaker) for r in drill.responses if r.step == step.id):
            yield alarms.containment(step.id, own)
    yield from slo.checks(drill, drill.slos, design_effect=design_effect)


def _lasting(drill: Drill) -> Iterable[Check]:
    """What nothing excuses."""
    yield terminal.one_terminal_state()
    yield invariants.truthful_labels(drill)
    if drill.fidelity_sample:
        yield invariants.fidelity(drill)
    yield invariants.nothing_left()


def _unless_steady(finding: Finding) -> Finding:
    """A baseline that does not hold, or was not shown to, is no ground to judge anything on."""
    if finding.outcome == "HELD":
        return finding
    return replace(finding, outcome="INCONCLUSIVE", confidence=None, reason=f"{NOT_STEADY}: {finding.reason}")


def _unless_untested(finding: Finding, untested: Mapping[str, Finding]) -> Finding:
    """What a step without effect says about the service is nothing; with one that did not last, it is unclear."""
    effect = untested.get(finding.step or "")
    if effect is None:
        return finding
    reason = NO_EFFECT if effect.outcome == "VACUOUS" else effect.reason
    return replace(finding, outcome=effect.outcome, confidence=None, reason=reason)


def _unless_busier(finding: Finding, history: History) -> Finding:
    """A time that came out too long while other work had the cores says nothing of the service."""
    if finding.outcome != "BROKEN" or not _is_a_time(finding):
        return finding
    why = busier(history, str(finding.phase), finding.step)
    if why is None:
        return finding
    return replace(
        finding, outcome="INCONCLUSIVE", confidence=None, reason=f"may be noise, as {why}: {finding.reason}"
    )


def _is_a_time(finding: Finding) -> bool:
    metric = METRICS.get(str(finding.numbers.get("metric")))
    return (metric is not None and metric.shape == "value") or "latency_ms" in finding.numbers


def _weighed_down(finding: Finding, doubts: list[Finding]) -> Finding:
    """A finding that came out BROKEN on doubtful ground may be noise."""
    if finding.outcome != "BROKEN" or not doubts:
        return finding
    ground = ", ".join(doubt.id for doubt in doubts)
    reason = f"may be noise, as {ground} did not hold: {finding.reason}"
    return replace(finding, outcome="INCONCLUSIVE", confidence=None, reason=reason)
