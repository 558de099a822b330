"""What a history's samples say about a window as a whole: ratios of counters, and how far they can be trusted.

Counters are read by probes on a schedule. A total is only as good as they are: it needs samples from one edge
of its window to the other, without a gap in which anything could have happened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from harness.history import Event, History, Window

GAP_S = 1.5  # no samples for longer is a gap,
GAP_INTERVALS = 4  # unless the probe is that slow by its schedule
BATCH_STEPS = "batch_steps."


@dataclass(frozen=True)
class Ratio:
    """`part` of `whole`, both counted over a window; `missing` says why there is none.

    `untested` says why it would be what it is even if the service did nothing.
    """

    part: float = math.nan
    whole: float = math.nan
    missing: str = ""
    untested: str = ""

    @property
    def value(self) -> float:
        return self.part / self.whole


def source_of(metric: str) -> str:
    """Which probe's samples a metric is read from."""
    return "node" if metric == "weak_link_share" else "target"


def gap(history: History, window: Window, *, source: str) -> str:
    """Where samples of that source are missing in the window, in words; nothing if they cover it."""
    times = [float(event["t"]) for event in history.of_kind("sample") if event["source"] == source]
    intervals = [later - earlier for earlier, later in pairwise(times)]
    most_s = max(GAP_S, GAP_INTERVALS * median(intervals) if intervals else 0.0)
    inside = [t for t in times if t in window]
    for earlier, later in pairwise([window.start, *inside, window.end]):
        if later - earlier > most_s:
            return f"samples are missing from {earlier:.1f} s to {later:.1f} s"
    return ""


def kv_share(history: History, window: Window, *, sent: str, metric: str) -> Ratio:
    """KV bytes that the counter `sent` counts ÷ KV bytes that the computed tokens have, as the service counts."""
    moved = growth(history, sent, window, source="target")
    computed, lacks = _computed_kv_bytes(history, window)
    if unread := [*([sent] if math.isnan(moved) else []), *lacks]:
        return Ratio(missing=f"no data for {metric}: the service's samples lack {', '.join(unread)}")
    if computed <= 0:
        return Ratio(missing=f"no data for {metric}: no token was computed in the window")
    return Ratio(moved, computed)


def most_running(history: History, window: Window) -> Ratio:
    """The most sequences that were computed together in a step (of 1: it is compared as it is).

    The service counts its steps by their size, so no step between two samples is missed. It also counts the
    steps in which its lowered limit held a waiting request back: without one, the limit was never tried.
    """
    samples = [event["values"] for event in _samples(history, window, "target")]
    names = {name for values in samples for name in values if name.startswith(BATCH_STEPS)}
    if len(samples) < 2 or not names:
        return Ratio(missing="no data for running_most: the service's samples lack batch_steps")
    # A series appears when it first counts: before that it is 0.
    grown = [name for name in names if float(samples[-1].get(name, 0)) > float(samples[0].get(name, 0))]
    if not grown:
        return Ratio(missing="no data for running_most: nothing was computed in the window")
    most = max(float(name.removeprefix(BATCH_STEPS)) for name in grown)
    throttled = growth(history, "throttled_steps", window, source="target")
    bound = throttled > 0
    return Ratio(most, 1.0, untested="" if bound else "the lowered limit never held a request back")


def weak_links(history: History, window: Window, links: Iterable[str]) -> Ratio:
    """Bytes on the named NVLinks (each `a-b`, both directions) ÷ bytes on all, by the node's telemetry."""
    weak = {f"nvlink:{a}>{b}.bytes" for link in links for a, b in _both_ways(link)}
    if not weak:
        return Ratio(missing="no data for weak_link_share: the step degrades no NVLink")
    seen = {
        name
        for sample in history.of_kind("sample")
        if sample["source"] == "node"
        for name in sample["values"]
        if name.startswith("nvlink:") and name.endswith(".bytes")
    }
    moved = {name: growth(history, name, window, source="node") for name in sorted(weak | seen)}
    if unread := [name for name, number in moved.items() if math.isnan(number)]:
        return Ratio(missing=f"no data for weak_link_share: the node's samples lack {', '.join(unread)}")
    if sum(moved.values()) <= 0:
        return Ratio(missing="no data for weak_link_share: nothing moved on any NVLink in the window")
    return Ratio(sum(moved[name] for name in weak), sum(moved.values()))


def growth(history: History, name: str, window: Window, *, source: str) -> float:
    """By how much a counter grew between its first and last sample inside the window.

    NaN if there are not two, or if it fell (its process was restarted; what it counted before is unknown).
    Samples from outside are left out, so that nothing of the phase before is counted.
    """
    samples = [
        float(event["values"][name]) for event in _samples(history, window, source) if name in event["values"]
    ]
    fell = any(later < earlier for earlier, later in pairwise(samples))
    return math.nan if len(samples) < 2 or fell else samples[-1] - samples[0]


def _samples(history: History, window: Window, source: str) -> list[Event]:
    return [e for e in history.of_kind("sample") if e["t"] in window and e["source"] == source]


def _computed_kv_bytes(history: History, window: Window) -> tuple[float, list[str]]:
    """As the service counts them, else its tokens times the size of one; and what there is no sample of."""
    counted = growth(history, "computed_kv_bytes", window, source="target")
    if not math.isnan(counted):
        return counted, []
    tokens = growth(history, "computed_tokens", window, source="target")
    each = history.counter("kv_bytes_per_token", window.end, source="target")
    named = {"computed_tokens": tokens, "kv_bytes_per_token": each}
    return tokens * each, [name for name, number in named.items() if math.isnan(number)]


def _both_ways(link: str) -> tuple[tuple[str, str], tuple[str, str]]:
    a, b = link.split("-")
    return (a, b), (b, a)
