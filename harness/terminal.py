"""One terminal state per request: its client's and the service's own record of it, held against each other.

The service numbers the lines of its record, and its goodbye is the last. A whole record that lacks a request
is evidence against the service; one with gaps, or without a goodbye, is evidence of nothing.
"""

from __future__ import annotations

from collections import Counter

from harness.history import ANSWERED, Event, History
from harness.invariants import some
from harness.verdict import Check, Claim, Finding

CROSSING_S = 0.5  # a client may give up while the service's last bytes are on their way


def one_terminal_state() -> Check:
    """Each planned request ended once for its client, each admitted one once in the service; both agree."""
    claim = Claim(
        "invariant.one-terminal-state",
        "every request ends in exactly one state, and client and service agree on it",
        "one end each, for its client and in the service's record",
    )

    def look(history: History) -> Finding:
        requests = list(history.of_kind("request"))
        service = [e for e in history.of_kind("service") if e["event"] in ("admitted", "terminal")]
        planned = _planned(history)
        wrong = [*_more_than_once(requests, service), *_disagreements(requests, service)]
        wrong += _refused_and_admitted(requests, service)
        indices = {request["index"] for request in requests}
        lost = [] if planned is None else sorted(set(range(planned)) - indices)
        never = sorted(_ids(service, "admitted") - _ids(service, "terminal"))
        unrecorded = [] if history.world == "live" or not service else _unrecorded(requests, service)
        doubt = _doubt(history)
        if history.complete:
            wrong += [f"request {index} never ended for its client" for index in lost]
            if not doubt:
                wrong += [f"{name} was admitted and never ended" for name in never]
                wrong += unrecorded
        measured = f"{len(requests)} requests ended, {len(_ids(service, 'admitted'))} admitted by the service"
        numbers = {"planned": planned, "requests": len(requests), "wrong": len(wrong)}
        if wrong:
            return claim.broken(measured, some(wrong), **numbers)
        if history.world == "live" and planned is not None and not service and not lost:
            return claim.held(f"{measured}; a live server's own record is not to be had", **numbers)
        if planned is None or not service:
            lacks = (
                "how many requests were planned"
                if planned is None
                else "the service's own record of its requests"
            )
            return claim.inconclusive(measured, f"the history lacks {lacks}", **numbers)
        if not history.complete and (lost or never or unrecorded):
            return claim.inconclusive(measured, "the run was cut short with requests under way", **numbers)
        if doubt:
            return claim.inconclusive(measured, doubt, **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def _planned(history: History) -> int | None:
    said = [event["planned"] for event in history.of_kind("load") if event.get("planned") is not None]
    return int(said[-1]) if said else None


def _doubt(history: History) -> str:
    """Why the service's record may not be whole; nothing if it is."""
    if history.world == "live":
        return ""
    goodbyes = [e for e in history.of_kind("service") if e["event"] == "stopped"]
    if not goodbyes:
        return "the service's record has no end: it did not say goodbye"
    lines = [e for kind in ("service", "breaker") for e in history.of_kind(kind) if e.get("event") != "died"]
    numbers = sorted(int(e["n"]) for e in history.events if e["kind"] != "request" and e.get("n") is not None)
    if any(line.get("n") is None for line in lines):
        return "the lines of the service's record are not numbered, so it may have gaps"
    if numbers != list(range(1, len(numbers) + 1)) or goodbyes[-1]["n"] != numbers[-1]:
        return "the service's record has gaps"
    return ""


def _more_than_once(requests: list[Event], service: list[Event]) -> list[str]:
    ends = Counter(request["index"] for request in requests)
    wrong = [f"request {index} ended {n} times for its client" for index, n in ends.items() if n > 1]
    for event, said in (
        ("admitted", "was admitted {n} times"),
        ("terminal", "ended {n} times in the service"),
    ):
        counted = Counter(str(e["id"]) for e in service if e["event"] == event)
        wrong += [f"{name} {said.format(n=n)}" for name, n in counted.items() if n > 1]
    admitted = _ids(service, "admitted")
    return wrong + [f"{name} ended and was never admitted" for name in _ids(service, "terminal") - admitted]


def _refused_and_admitted(requests: list[Event], service: list[Event]) -> list[str]:
    admitted = _ids(service, "admitted")
    return [
        f"{request['id']} was rejected for its client and admitted by the service"
        for request in requests
        if request["outcome"] == "rejected" and str(request.get("id")) in admitted
    ]


def _unrecorded(requests: list[Event], service: list[Event]) -> list[str]:
    """Requests that reached the service, by what their clients saw, and that it has no record of."""
    known = _ids(service, "admitted")
    return [
        f"{request['id']} is {request['outcome']} for its client and not in the service's record"
        for request in requests
        if str(request.get("id")) not in known and _reached(request)
    ]


def _reached(request: Event) -> bool:
    """Whether the service must know of it: it was sent, and neither refused nor lost on the way there."""
    outcome, status = request["outcome"], request.get("status")
    if request.get("sent") is None or outcome == "rejected":
        return False
    return outcome != "failed" or (status is not None and not 400 <= status < 500)


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
