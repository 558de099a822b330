"""The series that the page draws: every lane over the same seconds since the drill's start."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from harness.drill import Drill
from harness.history import ANSWERED, Event, History
from harness.slo import value_ms, waited_ms
from reports import telemetry
from reports.series import Points, Series, series

BIN_S = 1.0


def timeline(drill: Drill, history: History) -> dict[str, Any]:
    """JSON-ready: `duration` in s, `faults`, `phases` and `lanes`, without those that lack data."""
    lanes = [
        _lane("load", "Offered load and answers", "requests/s", "step", _load(history)),
        _lane("ttft", "Time to first token", "ms", "scatter", _ttft(history)),
        _lane("breakers", "Breakers", "", "states", _breakers(history)),
        _lane(
            "memory", "Free memory, of a full-size card", "MiB", "line", telemetry.free_memory(drill, history)
        ),
        _lane("pcie", "PCIe", "MB/s", "line", telemetry.pcie(drill, history)),
        _lane("nvlink", "NVLink", "MB/s", "line", telemetry.nvlink(drill, history)),
        _lane("clocks", "SM clock", "MHz", "line", telemetry.clocks(history)),
        _lane("temperature", "Temperature", "°C", "line", telemetry.temperatures(history)),
        _lane("queue", "Requests in the service", "requests", "line", telemetry.queue(history)),
    ]
    return {
        "duration": _end(history),
        "faults": [
            _fault(step.id, step.fault.kind, history)
            for step in drill.timeline
            if history.edge(step.id, "injecting")
        ],
        "phases": [
            {"phase": w.phase, "step": w.step, "start": w.start, "end": w.end} for w in history.windows()
        ],
        "lanes": [lane for lane in lanes if lane["series"]],
    }


def _lane(lane_id: str, title: str, unit: str, kind: str, series: list[Series]) -> dict[str, Any]:
    return {"id": lane_id, "title": title, "unit": unit, "kind": kind, "series": series}


def _end(history: History) -> float:
    """When the picture ends: the load's end or the last fault edge, not the clean-up."""
    load = history.load_window()
    ends = [load.end] if load else []
    ends += [float(event["t"]) for kind in ("request", "fault", "breaker") for event in history.of_kind(kind)]
    return max(ends, default=1.0)


def _fault(step: str, kind: str, history: History) -> dict[str, Any]:
    times = {edge: history.edge(step, edge) for edge in ("injecting", "active", "rolling_back", "gone")}
    return {"step": step, "kind": kind} | {
        edge: event["t"] if event else None for edge, event in times.items()
    }


def _load(history: History) -> list[Series]:
    requests = list(history.of_kind("request"))
    if not requests:
        return []
    answered = [r for r in requests if r["outcome"] in ANSWERED]
    rest = [r for r in requests if r["outcome"] not in ANSWERED]
    told = [
        series("offered", "neutral", _per_second(r["due"] for r in requests)),
        series("answered", "good", _per_second(r["t"] for r in answered)),
    ]
    return told + ([series("not answered", "bad", _per_second(r["t"] for r in rest))] if rest else [])


def _per_second(times: Iterable[float]) -> Points:
    bins = Counter(int(t / BIN_S) for t in times)
    last = max(bins, default=-1)
    return [(n * BIN_S, bins[n] / BIN_S) for n in range(last + 2)]


def _ttft(history: History) -> list[Series]:
    """A point per request at its due time, by what answered it; without a token, at how long it waited."""
    groups: dict[str, Points] = {}
    for request in history.of_kind("request"):
        label, value = _how_it_ended(request), value_ms("ttft_ms", request)
        shown = value if value is not None and math.isfinite(value) else waited_ms(request)
        groups.setdefault(label, []).append((float(request["due"]), shown))
    tones = {"full": "good", "failed": "bad", "timeout": "bad", "rejected": "warn", "cancelled": "neutral"}
    order = sorted(groups, key=lambda label: (label != "full", label in tones, label))
    return [series(label, tones.get(label, "lower"), sorted(groups[label])) for label in order]


def _how_it_ended(request: Event) -> str:
    return (
        str(request.get("rung") or "answered") if request["outcome"] in ANSWERED else str(request["outcome"])
    )


def _breakers(history: History) -> list[Series]:
    """Spans of one state each, from the start to the end of the picture."""
    end = _end(history)
    lanes: dict[str, list[tuple[float, str]]] = {}
    for move in history.of_kind("breaker"):
        lanes.setdefault(str(move["name"]), [(0.0, str(move.get("was") or "closed"))]).append(
            (float(move["t"]), str(move["now"]))
        )
    return [
        {
            "label": name,
            "spans": [
                {"start": start, "end": until, "state": state}
                for (start, state), (until, _) in zip(moves, [*moves[1:], (end, "")], strict=True)
            ],
        }
        for name, moves in lanes.items()
    ]
