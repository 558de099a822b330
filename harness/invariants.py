"""What stays true of a service under any fault, checked over the whole history.

One terminal state per request, truthful labels, the same tokens as without the fault, nothing left behind,
and every fault undone. None of these is a matter of speed, so a slow machine is no excuse for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.drill import Drill, Step
from harness.history import ANSWERED, Event, History
from harness.verdict import Check, Claim, Finding

UNKNOWN = "unknown"  # a leftover nobody could look at: None, or words that begin so
CROSSING_S = 0.5  # a client may give up while the service's last bytes are on their way


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
        if gone is None:
            why = f": {broken['reason']}" if broken and broken.get("reason") else ""
            return claim.broken("", f"rollback not confirmed{why}")
        if undo is None:
            return claim.held("gone")
        took_s = float(gone["t"] - undo["t"])
        return claim.held(f"gone {took_s * 1000:.0f} ms after the undo", took_s=took_s)

    return Check(claim, look)


def one_terminal_state() -> Check:
    """Each planned request ended once for its client, each admitted one once in the service; both agree."""
    claim = Claim(
        "invariant.one-terminal-state",
        "every request ends in exactly one state, and client and service agree on it",
        "one end each",
    )

    def look(history: History) -> Finding:
        requests = list(history.of_kind("request"))
        service = [
            event for event in history.of_kind("service") if event["event"] in ("admitted", "terminal")
        ]
        planned = _planned(history)
        wrong = [*_ended_twice(requests), *_ended_wrongly(service), *_disagreements(requests, service)]
        lost = (
            []
            if planned is None
            else sorted(set(range(planned)) - {request["index"] for request in requests})
        )
        never = sorted(_ids(service, "admitted") - _ids(service, "terminal"))
        if history.complete:
            wrong += [f"request {index} never ended for its client" for index in lost]
            wrong += [f"{name} was admitted and never ended" for name in never]
        measured = f"{len(requests)} requests ended, {len(_ids(service, 'admitted'))} admitted by the service"
        numbers = {"planned": planned, "requests": len(requests), "wrong": len(wrong)}
        if wrong:
            return claim.broken(measured, _some(wrong), **numbers)
        if history.world == "live" and planned is not None and not service and not lost:
            return claim.held(f"{measured}; a live server's own record is not to be had", **numbers)
        if planned is None or not service:
            lacks = (
                "how many requests were planned"
                if planned is None
                else "the service's own record of its requests"
            )
            return claim.inconclusive(measured, f"the history lacks {lacks}", **numbers)
        if lost or never:
            return claim.inconclusive(measured, "the run was cut short with requests under way", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def truthful_labels(drill: Drill) -> Check:
    """Every answer says which model made it and, from the bundled service, on which rung of the ladder."""
    labels = ("model",) if drill.target.url else ("rung", "model")
    claim = Claim("invariant.truthful-labels", "every answer says what made it", " and ".join(labels))

    def look(history: History) -> Finding:
        answers = [request for request in history.of_kind("request") if request["outcome"] in ANSWERED]
        if not answers:
            return claim.vacuous("", "no request was answered")
        bare = [f"{a['id']} lacks {label}" for a in answers for label in labels if not a.get(label)]
        if bare:
            return claim.broken(
                f"{len(answers)} answers", _some(bare), answers=len(answers), unlabelled=len(bare)
            )
        return claim.held(f"all {len(answers)} answers", answers=len(answers))

    return Check(claim, look)


def fidelity(drill: Drill) -> Check:
    """Answers asked again, alone and without faults, have the same tokens."""
    claim = Claim(
        "invariant.token-fidelity",
        "an answer given under faults has the same tokens as the same request alone",
        f"{drill.fidelity_sample} answers asked again, all equal",
    )

    def look(history: History) -> Finding:
        again = list(history.of_kind("fidelity"))
        unequal = [str(event["id"]) for event in again if not event["equal"]]
        if unequal and all(event.get("rung") is None for event in again):
            return claim.inconclusive(
                f"{len(unequal)} of {len(again)} differ",
                "on a server whose kernels depend on the batch, this may be float noise",
                compared=len(again),
                unequal=len(unequal),
            )
        if unequal:
            return claim.broken(
                f"{len(unequal)} of {len(again)} differ",
                _some(unequal),
                compared=len(again),
                unequal=len(unequal),
            )
        answered = sum(request["outcome"] in ANSWERED for request in history.of_kind("request"))
        if len(again) < min(drill.fidelity_sample, answered) / 2 or not again:
            return claim.inconclusive(
                f"{len(again)} asked again", "most could not be had again from the model that answered"
            )
        return claim.held(f"all {len(again)} equal", compared=len(again), unequal=0)

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


def _planned(history: History) -> int | None:
    said = [event["planned"] for event in history.of_kind("load") if event.get("planned") is not None]
    return int(said[-1]) if said else None


def _ended_twice(requests: list[Event]) -> list[str]:
    ends = Counter(request["index"] for request in requests)
    return [f"request {index} ended {n} times for its client" for index, n in ends.items() if n > 1]


def _ended_wrongly(service: list[Event]) -> list[str]:
    ends = Counter(str(event["id"]) for event in service if event["event"] == "terminal")
    return [f"{name} ended {n} times in the service" for name, n in ends.items() if n > 1]


def _disagreements(requests: list[Event], service: list[Event]) -> list[str]:
    ends = {str(event["id"]): event for event in service if event["event"] == "terminal"}
    both = [(request, ends[str(request["id"])]) for request in requests if str(request.get("id")) in ends]
    return [
        f"{request['id']} is {request['outcome']} for its client and {end.get('reason')} in the service"
        for request, end in both
        if not _agree(request, end)
    ]


def _agree(request: Event, end: Event) -> bool:
    outcome, reason = request["outcome"], str(end.get("reason")).split(":")[0]
    if reason == "deadline":  # the service gave up: its client was told so, or had given up as well
        return outcome in ("failed", "timeout")
    if outcome not in ("timeout", "cancelled"):
        return bool(outcome == reason)
    crossed = reason in ANSWERED and abs(end["t"] - request["t"]) <= CROSSING_S
    return reason == "cancelled" or crossed


def _ids(service: list[Event], event: str) -> set[str]:
    return {str(e["id"]) for e in service if e["event"] == event}


def _some(items: Iterable[str], most: int = 5) -> str:
    told = list(items)
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + more
