"""What must be so before anything else that was measured means something.

The run got to its end, the load was offered as planned, the fault was really there. If one of these is not
so, the drill has not tested the service, whatever the service did.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.drill import Drill, Step
from harness.history import Event, History
from harness.verdict import Check, Claim, Finding

NO_EFFECT = "fault did not take effect"


def run_complete() -> Check:
    """The run got to its end, uninterrupted."""
    claim = Claim("run.complete", "the run got to its end", "complete, uninterrupted")

    def look(history: History) -> Finding:
        interrupted = next(history.of_kind("interrupted"), None)
        if interrupted is not None:
            by = interrupted.get("signal") or "a signal"
            return claim.inconclusive(
                f"interrupted at {interrupted['t']:.1f} s", f"the run was cut short by {by}"
            )
        failure = next(history.of_kind("failure"), None)
        if failure is not None:
            why = failure.get("reason") or "no reason given"
            return claim.inconclusive(f"failed at {failure['t']:.1f} s", f"the run was cut short: {why}")
        if not history.complete:
            last = (
                f"its last event is at {history.events[-1]['t']:.1f} s"
                if history.events
                else "it has no event"
            )
            return claim.inconclusive(last, "the run was cut short")
        return claim.held(f"complete after {history.events[-1]['t']:.1f} s")

    return Check(claim, look)


def load_kept_up(drill: Drill) -> Check:
    """Every planned request was sent, and on time."""
    most = drill.load.lateness_max_ms
    claim = Claim(
        "load.kept-up", "the load was offered as planned", f"all sent, p99 at most {most:g} ms late"
    )

    def look(history: History) -> Finding:
        if failed := history.load("failed"):
            return claim.inconclusive(
                "", f"the load generator failed: {failed.get('reason') or 'no reason given'}"
            )
        finished = history.load("finished")
        if finished is None:
            return claim.inconclusive("", "the load generator never finished")
        started = history.load("started") or {}
        planned = finished.get("planned", started.get("planned"))
        sent, late = finished.get("sent"), finished.get("lateness_p99_ms")
        if planned is None or sent is None or late is None:
            return claim.inconclusive(
                "", "the load generator did not say what it planned, sent and how late it was"
            )
        measured = f"{sent} of {planned} sent, p99 {late:.0f} ms late"
        numbers = {"planned": planned, "sent": sent, "lateness_p99_ms": late}
        if sent != planned or not late <= most:
            return claim.inconclusive(measured, "the load generator could not keep up", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def took_effect(step: Step) -> Check:
    """The card's own telemetry showed the fault at the asked dose."""
    claim = Claim(
        f"fault.{step.id}.took-effect",
        f"{step.id} ({step.fault.kind}) is visible on the card at the asked dose",
        f"visible within {step.effect_within_s:g} s",
        "fault",
        step.id,
    )

    def look(history: History) -> Finding:
        active = history.edge(step.id, "active")
        if active is not None:
            took_s = effect_time(active) - float((history.edge(step.id, "injecting") or active)["t"])
            measured = f"{_dose(active)}, {max(took_s, 0) * 1000:.0f} ms after injection"
            numbers = {"asked": active.get("asked"), "measured": active.get("measured"), "took_s": took_s}
            return claim.held(measured, **numbers)
        return claim.vacuous(_last_dose(history, step.id), f"{NO_EFFECT}{_why(history, step.id)}")

    return Check(claim, look)


def effect_time(active: Event) -> float:
    """When the effect was there: as the card shows it, else when we noticed."""
    seen = active.get("effect_t")
    return float(active["t"] if seen is None else seen)


def _last_dose(history: History, step: str) -> str:
    """How strong it was when the harness gave up waiting."""
    doses = [e for e in _edges(history, step) if e.get("measured") is not None and e["edge"] != "gone"]
    return _dose(doses[-1]) if doses else ""


def _dose(edge: Event) -> str:
    asked, measured, unit = edge.get("asked"), edge.get("measured"), edge.get("unit") or ""
    if asked is None or measured is None:
        return "dose not told"
    return f"{measured:.4g} {unit}".rstrip() + f", {asked:.4g} asked"


def _why(history: History, step: str) -> str:
    edges = list(_edges(history, step))
    if not edges:
        return ": it was never begun"
    reasons = [str(edge["reason"]) for edge in edges if edge.get("reason")]
    return f": {reasons[0]}" if reasons else ""


def _edges(history: History, step: str) -> Iterator[Event]:
    return (event for event in history.of_kind("fault") if event["step"] == step)
