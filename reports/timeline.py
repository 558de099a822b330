"""The series that the page draws: every lane over the same seconds since the drill's start."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from harness.drill import Drill
from harness.history import ANSWERED, Event, History
from harness.slo import value_ms, waited_ms

BIN_S = 1.0
CARD_FREE = re.compile(r"^(?:memory|card|gpu):?(\d+)\.(?:memory_)?free_bytes$")
PCIE = re.compile(r"^pcie:(\d+):(h2d|d2h)\.bytes$")
NVLINK = re.compile(r"^nvlink:(\d+)>(\d+)\.bytes$")
QUEUES = {"queue_depth": "waiting", "waiting": "waiting", "running": "running"}
Series = dict[str, Any]


def timeline(drill: Drill, history: History) -> dict[str, Any]:
    """JSON-ready: `duration` in s, `faults`, `phases`, and `lanes` of series; a lane without data is left out."""
    lanes = [
        _lane("load", "Offered load and answers", "requests/s", "step", _load(history)),
        _lane("ttft", "Time to first token", "ms", "scatter", _ttft(history)),
        _lane("breakers", "Breakers", "", "states", _breakers(history)),
        _lane("memory", "Free memory", "MiB", "line", _free_memory(history)),
        _lane("pcie", "PCIe", "MB/s", "line", _pcie(drill, history)),
        _lane("nvlink", "NVLink", "MB/s", "line", _nvlink(drill, history)),
        _lane("queue", "Requests in the service", "requests", "line", _queue(history)),
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


def _series(label: str, tone: str, points: Iterable[tuple[float, float]]) -> Series:
    """Rounded to what can be seen, so that the page stays small; a number that JSON can't hold is a gap."""
    kept = [(round(x, 3), float(f"{y:.5g}") if math.isfinite(y) else None) for x, y in points]
    return {"label": label, "tone": tone, "x": [x for x, _ in kept], "y": [y for _, y in kept]}


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
        _series("offered", "neutral", _per_second(r["due"] for r in requests)),
        _series("answered", "good", _per_second(r["t"] for r in answered)),
    ]
    return told + ([_series("not answered", "bad", _per_second(r["t"] for r in rest))] if rest else [])


def _per_second(times: Iterable[float]) -> list[tuple[float, float]]:
    bins = Counter(int(t / BIN_S) for t in times)
    last = max(bins, default=-1)
    return [(n * BIN_S, bins[n] / BIN_S) for n in range(last + 2)]


def _ttft(history: History) -> list[Series]:
    """A point per request at its due time, by what answered it; without a token, at how long it waited."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for request in history.of_kind("request"):
        label, value = _how_it_ended(request), value_ms("ttft_ms", request)
        shown = value if value is not None and math.isfinite(value) else waited_ms(request)
        groups.setdefault(label, []).append((float(request["due"]), shown))
    tones = {"full": "good", "failed": "bad", "timeout": "bad", "rejected": "warn", "cancelled": "neutral"}
    order = sorted(groups, key=lambda label: (label != "full", label in tones, label))
    return [_series(label, tones.get(label, "lower"), sorted(groups[label])) for label in order]


def _how_it_ended(request: Event) -> str:
    return (
        str(request.get("rung") or "answered") if request["outcome"] in ANSWERED else str(request["outcome"])
    )


def _breakers(history: History) -> list[Series]:
    """Spans of one state each, from the start to the end of the picture."""
    end, lanes = _end(history), {}
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


def _free_memory(history: History) -> list[Series]:
    cards: dict[int, list[tuple[float, float]]] = {}
    for sample in _samples(history, "node"):
        for name, value in sample["values"].items():
            if found := CARD_FREE.match(name):
                cards.setdefault(int(found[1]), []).append((float(sample["t"]), value / 2**20))
    return [_series(f"card {card}", f"card{card % 8}", points) for card, points in sorted(cards.items())]


def _pcie(drill: Drill, history: History) -> list[Series]:
    """Both directions of the cards whose PCIe a fault saturates; of every card if none does."""
    hit = {
        getattr(step.fault, "card", None) for step in drill.timeline if step.fault.kind == "pcie_saturation"
    }

    def card_of(name: str) -> str | None:
        found = PCIE.match(name)
        shown = found is not None and (not hit or int(found[1]) in hit)
        return f"card {found[1]} {found[2]}" if found and shown else None

    rates = _rates(history, card_of)
    return [_series(label, f"card{n % 8}", rates[label]) for n, label in enumerate(sorted(rates))]


def _nvlink(drill: Drill, history: History) -> list[Series]:
    """All links together, and those that a fault of this drill weakens."""
    pairs = {link for step in drill.timeline for link in getattr(step.fault, "links", ())}
    weak = {frozenset(pair.split("-")) for pair in pairs}
    total = _rates(history, lambda name: "all links" if NVLINK.match(name) else None)
    named = _rates(
        history, lambda name: "weak links" if (m := NVLINK.match(name)) and {m[1], m[2]} in weak else None
    )
    shown = total | named
    return [_series(label, "neutral" if label == "all links" else "bad", shown[label]) for label in shown]


def _queue(history: History) -> list[Series]:
    seen: dict[str, list[tuple[float, float]]] = {}
    for sample in _samples(history, "target"):
        for name, label in QUEUES.items():
            if name in sample["values"]:
                seen.setdefault(label, []).append((float(sample["t"]), sample["values"][name]))
    return [
        _series(label, "warn" if label == "waiting" else "good", points) for label, points in seen.items()
    ]


def _rates(history: History, label_of: Callable[[str], str | None]) -> dict[str, list[tuple[float, float]]]:
    """MB/s between samples of the node's byte counters, summed by label; a counter that fell leaves a gap."""
    totals: dict[str, list[tuple[float, float]]] = {}
    for sample in _samples(history, "node"):
        sums: dict[str, float] = {}
        for name, value in sample["values"].items():
            if label := label_of(name):
                sums[label] = sums.get(label, 0.0) + value
        for label, total in sums.items():
            totals.setdefault(label, []).append((float(sample["t"]), total))
    return {
        label: [
            (t, (total - before) / (t - earlier) / 1e6 if total >= before else math.nan)
            for (earlier, before), (t, total) in pairwise(points)
            if t > earlier
        ]
        for label, points in totals.items()
        if len(points) > 1
    }


def _samples(history: History, source: str) -> Iterable[Event]:
    return (sample for sample in history.of_kind("sample") if sample["source"] == source)
