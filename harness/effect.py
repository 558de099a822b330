"""Whether the fault was really there: at its dose, in the card's own telemetry, from its effect to its undo.

A step whose fault had no effect has tested nothing; one whose fault was lost on the way has tested nobody knows
what. Neither says anything about the service.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.drill import Step
from harness.history import Event, History, effect_time
from harness.verdict import Check, Claim, Finding

NO_EFFECT = "fault did not take effect"
LOST = "the fault was lost"


def took_effect(step: Step) -> Check:
    """The card's own telemetry showed the fault at the asked dose, and went on to until the undo."""
    claim = Claim(
        f"fault.{step.id}.took-effect",
        f"{step.id} ({step.fault.kind}) is visible on the card at the asked dose until it is undone",
        f"visible within {step.effect_within_s:g} s, and at every look until the undo",
        "fault",
        step.id,
    )

    def look(history: History) -> Finding:
        active, lost, undo = (history.edge(step.id, edge) for edge in ("active", "lost", "rolling_back"))
        if active is None:
            return claim.vacuous(_last_dose(history, step.id), f"{NO_EFFECT}{_why(history, step.id)}")
        took_s = effect_time(active) - float((history.edge(step.id, "injecting") or active)["t"])
        weakest = undo.get("weakest") if undo else None
        numbers = {
            "asked": active.get("asked"),
            "measured": active.get("measured"),
            "weakest": weakest,
            "took_s": took_s,
        }
        measured = f"{_dose(active)}, {max(took_s, 0) * 1000:.0f} ms after injection"
        if weakest is not None:
            measured += f"; weakest {plain(weakest)} in {undo['looks']} looks" if undo else ""
        if lost is not None:
            after_s = max(float(lost["t"]) - effect_time(active), 0.0)
            return claim.inconclusive(measured, f"{LOST} after {after_s:.1f} s", lost_s=after_s, **numbers)
        if undo is None or undo.get("held") is None:
            return claim.inconclusive(measured, "nobody looked whether the fault was there until the undo")
        if not undo["held"]:
            return claim.inconclusive(measured, f"{LOST}: the last look did not show it", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def _last_dose(history: History, step: str) -> str:
    """How strong it was when the harness gave up waiting."""
    doses = [e for e in _edges(history, step) if e.get("measured") is not None and e["edge"] != "gone"]
    return _dose(doses[-1]) if doses else ""


def _dose(edge: Event) -> str:
    asked, measured, unit = edge.get("asked"), edge.get("measured"), edge.get("unit") or ""
    if asked is None or measured is None:
        return "dose not told"
    return f"{plain(measured)} {unit}".rstrip() + f", {plain(asked)} asked"


def _why(history: History, step: str) -> str:
    edges = list(_edges(history, step))
    if not edges:
        return ": it was never begun"
    reasons = [str(edge["reason"]) for edge in edges if edge.get("reason")]
    return f": {reasons[0]}" if reasons else ""


def _edges(history: History, step: str) -> Iterator[Event]:
    return (event for event in history.of_kind("fault") if event["step"] == step)


def plain(number: float) -> str:
    """Four digits that mean something, and never in powers of ten."""
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"
