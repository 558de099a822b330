"""Hand-made drills and histories: sensible defaults, of which a test overrides what it is about.

The default history is a clean one, on which every claim of the default drill holds: 40 s of 10 requests a
second, the fault injected at 10 s, visible at 10.5 s, undone at 20.5 s, gone at 21 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.drill import Drill
from harness.history import Event, History

FAULT = {"kind": "vram_oom", "card": 1, "free_mb": 2}
INJECTING, ACTIVE, ROLLING_BACK, GONE, END = 10.0, 10.5, 20.5, 21.0, 40.0


def a_step(step_id: str = "vram", **settings: Any) -> dict[str, Any]:
    return {"id": step_id, "at_s": INJECTING, "hold_s": 10.0, "fault": FAULT} | settings


def an_slo(metric: str = "ttft_ms", **settings: Any) -> dict[str, Any]:
    return {"phase": "fault", "metric": metric} | settings


def a_response(**settings: Any) -> dict[str, Any]:
    return {"step": "vram", "breaker": "memory", "detected_within_ms": 200, "closed_within_s": 5} | settings


def a_drill(**settings: Any) -> Drill:
    """One VRAM step, a steady state, no SLO and no response of its own."""
    plain = {
        "name": "burst-survives-vram",
        "why": "another tenant takes the card's memory during a burst",
        "load": {"trace": "traces/code.csv", "offset_s": 0, "span_s": 60},
        "timeline": [a_step()],
        "steady_state": [an_slo(phase="baseline", quantile=0.9, max=500)],
        "blast_radius": {"cards_max": 4},
    }
    return Drill.model_validate(plain | settings)


def a_request(index: int = 0, *, due: float | None = None, ttft_ms: float = 100.0, **fields: Any) -> Event:
    """A completed request of eight tokens, 20 ms apart; due every 0.1 s unless it is said."""
    start = index * 0.1 if due is None else due
    first = start + ttft_ms / 1000
    tokens = [round(first + 0.02 * n, 6) for n in range(8)]
    request = {
        "kind": "request",
        "id": f"r{index}",
        "index": index,
        "due": start,
        "sent": start,
        "first": first,
        "t": tokens[-1],
        "outcome": "completed",
        "status": 200,
        "finish": "stop",
        "model": "pocket",
        "rung": "full",
        "tokens_t": tokens,
    }
    return request | fields


def a_lost_request(index: int = 0, *, outcome: str = "failed", waited_s: float = 0.2, **fields: Any) -> Event:
    """A request that got no token."""
    request = a_request(index, **fields)
    bare = {"first": None, "tokens_t": [], "rung": None, "model": None, "finish": None, "status": 503}
    return request | bare | {"outcome": outcome, "t": request["due"] + waited_s}


def requests(
    n: int = 400,
    *,
    every_s: float = 0.1,
    start: float = 0.0,
    make: Callable[..., Event] = a_request,
    **fields: Any,
) -> list[Event]:
    """`n` requests, due every `every_s` seconds from `start` on."""
    first = round(start / every_s)
    return [make(first + i, due=round(start + i * every_s, 6), **fields) for i in range(n)]


def service_side(of: Iterable[Event]) -> list[Event]:
    """What a truthful service records about these requests; of those that it rejects, nothing."""
    reasons = {"timeout": "cancelled"}
    told: list[Event] = []
    for request in of:
        if request["outcome"] == "rejected":
            continue
        end = reasons.get(request["outcome"], request["outcome"])
        told.append({"kind": "service", "event": "admitted", "id": request["id"], "t": request["due"]})
        terminal = {"event": "terminal", "id": request["id"], "t": request["t"], "reason": end}
        told.append({"kind": "service", "rung": request.get("rung"), **terminal})
    return told


def edges(step: str = "vram", *, skip: Iterable[str] = (), later: float = 0.0, **active: Any) -> list[Event]:
    """A step's four edges; `later` moves them in time, `active` overrides fields of the active edge.

    It was looked at while it was held, and there until the undo.
    """
    dose = {"asked": 2.0, "measured": 1.8, "unit": "MB free", "effect_t": ACTIVE + later}
    times = {"injecting": INJECTING, "active": ACTIVE, "rolling_back": ROLLING_BACK, "gone": GONE}
    made = [{"kind": "fault", "step": step, "edge": edge, "t": t + later} for edge, t in times.items()]
    more = {"active": dose | active, "rolling_back": {"held": True, "weakest": 1.9, "looks": 100}}
    return [e | more.get(e["edge"], {}) for e in made if e["edge"] not in skip]


def journal(*events: Event, goodbye: float | None = 42.5) -> list[Event]:
    """The service's own record: its lines in the order of their time, numbered, and its goodbye."""
    lines = sorted(events, key=lambda event: float(event["t"]))
    if goodbye is not None:
        lines.append({"kind": "service", "event": "stopped", "t": goodbye, "kv_blocks": 0})
    return [{"n": n, **line} for n, line in enumerate(lines, 1)]


def breaker(
    t: float, now: str, *, was: str = "closed", name: str = "memory", reason: str = "free memory low"
) -> Event:
    return {"kind": "breaker", "t": t, "name": name, "was": was, "now": now, "reason": reason}


def opened_and_closed(opened: float = 10.6, closed: float = 23.0, *, name: str = "memory") -> list[Event]:
    return [
        breaker(opened, "open", name=name),
        breaker(closed - 1, "half_open", was="open", name=name),
        breaker(closed, "closed", was="half_open", name=name),
    ]


def sample(t: float, source: str = "target", **values: float) -> Event:
    """A sample; write `**{"nvlink:0>1.bytes": 5}` for names that a keyword can't hold."""
    return {"kind": "sample", "t": t, "source": source, "values": values}


def a_history(
    *,
    requests: list[Event] | None = None,
    faults: list[Event] | None = None,
    breakers: list[Event] | None = None,
    service: list[Event] | None = None,
    samples: Iterable[Event] = (),
    load: dict[str, Any] | None = None,
    fidelity: int = 24,
    leftover: dict[str, Any] | None = None,
    end: dict[str, Any] | None = None,
    drill: Drill | None = None,
    goodbye: float | None = 42.5,
    more: Iterable[Event] = (),
) -> History:
    """A clean run, of which a test replaces what it is about."""
    asked = globals()["requests"]() if requests is None else requests
    clean = {"kv_blocks": 0, "memory_bytes": 0, "processes": [], "ports": [], "files": []}
    played = {"planned": len(asked), "sent": len(asked), "lateness_p99_ms": 4.0} | (load or {})
    declared = (drill or a_drill()).model_dump(mode="json")
    events: list[Event] = [
        {
            "kind": "drill",
            "t": 0.0,
            "drill": declared,
            "world": "local",
            "overrides": [],
            "seed": 7,
            "brownout": "0.1.0",
            "python": "3.11",
        },
        {"kind": "load", "t": 0.0, "state": "started", "planned": played["planned"]},
        *asked,
        *(edges() if faults is None else faults),
        *journal(
            *(service_side(asked) if service is None else service),
            *(opened_and_closed() if breakers is None else breakers),
            goodbye=goodbye,
        ),
        *samples,
        {"kind": "load", "t": END, "state": "finished"} | played,
        *(
            {"kind": "fidelity", "t": 41.0, "id": f"r{n}", "equal": True, "rung": "full"}
            for n in range(fidelity)
        ),
        {"kind": "leftover", "t": 42.0} | (clean if leftover is None else leftover),
        {"kind": "end", "t": 43.0, "complete": True} | (end or {}),
        *more,
    ]
    return History.of(events)
