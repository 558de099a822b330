"""What stays true of a service under any fault, checked over the whole history.

Truthful labels, the same text as without the fault, nothing left behind, and every fault undone (and one
terminal state per request: `terminal`). None of these is a matter of speed, so a slow machine is no excuse for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.drill import Drill, Step
from harness.history import ANSWERED, History
from harness.verdict import Check, Claim, Finding

UNKNOWN = "unknown"  # a leftover nobody could look at: None, or words that begin so


def rolled_back(step: Step) -> Check:
    """The fault was undone, and seen to be gone."""
    claim = Claim(
        f"fault.{step.id}.rolled-back",
        f"{step.id} is undone, and the card shows that it is gone",
        f"gone within {step.effect_within_s:g} s of the undo",
        "recovery",
        step.id,
    )

    def look(history: History) -> Finding:
        edges = [event for event in history.of_kind("fault") if event["step"] == step.id]
        gone, undo, broken = (history.edge(step.id, edge) for edge in ("gone", "rolling_back", "broken"))
        if not edges:
            return claim.vacuous("", "the step was never begun, so there was nothing to undo")
        if gone is None and not any(history.of_kind("end")):
            return claim.inconclusive("", "the run was cut off before anyone could look whether it was gone")
        if gone is None:
            why = f": {broken['reason']}" if broken and broken.get("reason") else ""
            return claim.broken("", f"rollback not confirmed{why}")
        if undo is None:
            return claim.held("gone")
        took_s = float(gone["t"] - undo["t"])
        return claim.held(f"gone {took_s * 1000:.0f} ms after the undo", took_s=took_s)

    return Check(claim, look)


def truthful_labels(drill: Drill) -> Check:
    """Every answer says which model made it and, from the bundled service, on which rung; its record agrees."""
    labels = ("model",) if drill.target.url else ("rung", "model")
    claim = Claim(
        "invariant.truthful-labels",
        "every answer says what made it",
        " and ".join(labels) + ("" if drill.target.url else ", the rung as in the service's own record"),
    )

    def look(history: History) -> Finding:
        answers = [request for request in history.of_kind("request") if request["outcome"] in ANSWERED]
        if not answers:
            return claim.vacuous("", "no request was answered")
        bare = [f"{a['id']} lacks {label}" for a in answers for label in labels if not a.get(label)]
        recorded = {
            str(event["id"]): event["rung"]
            for event in history.of_kind("service")
            if event["event"] == "terminal" and event.get("rung")
        }
        both = [(a, recorded[str(a["id"])]) for a in answers if str(a["id"]) in recorded and a.get("rung")]
        wrong = [
            f"{a['id']} says {a['rung']} and was made by {rung}" for a, rung in both if a["rung"] != rung
        ]
        numbers = {"answers": len(answers), "compared": len(both), "unlabelled": len(bare)}
        if bare or wrong:
            return claim.broken(f"{len(answers)} answers", some(bare + wrong), wrong=len(wrong), **numbers)
        if not drill.target.url and not both:
            reason = "the service's own record of rungs is not to be had"
            return claim.inconclusive(f"all {len(answers)} answers are labelled", reason, **numbers)
        return claim.held(f"all {len(answers)} answers", **numbers)

    return Check(claim, look)


def fidelity(drill: Drill) -> Check:
    """Answers asked again, alone and without faults, have the same text."""
    claim = Claim(
        "invariant.token-fidelity",
        "an answer given under faults has the same text as the same request alone",
        f"{drill.fidelity_sample} answers asked again of the same model, one of each rung at least: "
        "all texts equal",
    )

    def look(history: History) -> Finding:
        again = list(history.of_kind("fidelity"))
        unequal = [str(event["id"]) for event in again if event["equal"] is False]
        untold = [event for event in again if event["equal"] is None]
        compared = len(again) - len(untold)
        numbers = {"asked": len(again), "compared": compared, "unequal": len(unequal)}
        if unequal:
            measured = f"{len(unequal)} of {compared} differ"
            if all(event.get("rung") is None for event in again):
                noise = "on a server whose kernels depend on the batch, this may be float noise"
                return claim.inconclusive(measured, noise, **numbers)
            return claim.broken(measured, some(unequal), **numbers)
        answered = [request for request in history.of_kind("request") if request["outcome"] in ANSWERED]
        measured = f"{compared} compared, all equal" if compared else "none compared"
        if untold:
            why = some(dict.fromkeys(str(event.get("reason") or "no reason given") for event in untold))
            return claim.inconclusive(measured, f"{len(untold)} could not be asked again: {why}", **numbers)
        if not again or compared < min(drill.fidelity_sample, len(answered)):
            reason = f"of {len(answered)} answers, {min(drill.fidelity_sample, len(answered))} were to be"
            return claim.inconclusive(measured, reason, **numbers)
        rungs = {str(request["rung"]) for request in answered if request.get("rung")}
        if skipped := rungs - {str(event.get("rung")) for event in again}:
            return claim.inconclusive(
                measured, f"no answer of {', '.join(sorted(skipped))} was among them", **numbers
            )
        return claim.held(f"all {compared} equal", **numbers)

    return Check(claim, look)


def nothing_left() -> Check:
    """Nothing that the drill or its faults took is still held."""
    claim = Claim("invariant.nothing-left", "nothing is left behind", "no memory, process, port or file")

    def look(history: History) -> Finding:
        ends = list(history.of_kind("leftover"))
        counted = {
            name: value for event in ends[-1:] for name, value in event.items() if name not in ("t", "kind")
        }
        if not counted:
            return claim.inconclusive("", "nobody looked what was left")
        untold = [name for name, value in counted.items() if value is None or str(value).startswith(UNKNOWN)]
        left = {name: value for name, value in counted.items() if value and name not in untold}
        if left:
            told = ", ".join(f"{name}: {value}" for name, value in left.items())
            return claim.broken(told, "something was left behind", **counted)
        if untold:
            return claim.inconclusive("", f"nobody knows what was left of {', '.join(untold)}", **counted)
        return claim.held("no " + ", ".join(counted), **counted)

    return Check(claim, look)


def some(items: Iterable[str], most: int = 5) -> str:
    """The first few of them, and how many more there are."""
    told = list(items)
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + more
