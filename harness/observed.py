"""What a history says about a metric in a window: a value per request, a yes or no per request, or a ratio.

A request belongs to the window in which it was due, not to the one in which it ended, so that a stall can't
move its victims out of the window that caused them. Values are in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.history import ANSWERED, Event, History, Window

NEVER = math.inf  # it did not come: slower than any bound
FEWEST_TOKENS = 4  # below that, time per token is mostly noise


@dataclass(frozen=True)
class Ratio:
    """`part` of `whole`, both counted over a window; `missing` says why there is none."""

    part: float = math.nan
    whole: float = math.nan
    missing: str = ""

    @property
    def value(self) -> float:
        return self.part / self.whole


def requests_due(history: History, window: Window) -> list[Event]:
    """The requests whose intended send time lies in the window."""
    return [request for request in history.of_kind("request") if request["due"] in window]


def value_ms(metric: str, request: Event) -> float | None:
    """The request's ttft_ms, e2e_ms or tpot_ms; NEVER if it failed to come; None if the request says nothing.

    A request that our own client cancelled says nothing unless it had already got what is asked for.
    """
    answered = request["outcome"] in ANSWERED
    if metric == "tpot_ms":
        return _ms_per_token(request) if answered else None
    came_s = request.get("first") if metric == "ttft_ms" else request["t"] if answered else None
    if came_s is not None:
        return float(came_s - request["due"]) * 1000
    return None if request["outcome"] == "cancelled" else NEVER


def waited_ms(request: Event) -> float:
    """How long its client waited until it ended, however it ended."""
    return float(request["t"] - request["due"]) * 1000


def _ms_per_token(request: Event) -> float | None:
    times: Sequence[float] = request.get("tokens_t") or ()
    if len(times) < FEWEST_TOKENS:
        return None
    return (times[-1] - times[0]) / (len(times) - 1) * 1000


def counts_as(metric: str, request: Event) -> bool | None:
    """Whether a request is an error, shed or downgraded; None if it is not one that the metric is about."""
    outcome = request["outcome"]
    if metric == "error_ratio":
        return None if outcome == "cancelled" else outcome not in ANSWERED
    if metric == "shed_ratio":
        return bool(outcome == "rejected")
    if metric == "downgraded_ratio":
        rung = request.get("rung")
        return None if outcome not in ANSWERED or not rung else rung != "full"
    raise ValueError(f"{metric} is not a share of requests")


def sample_quantile(values: Iterable[float], quantile: float) -> float:
    """The least value that at least that share of the values does not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(quantile * len(ordered) - 1e-9), 1) - 1]


def direct_dma(history: History, window: Window) -> Ratio:
    """KV bytes sent by direct DMA ÷ KV bytes that the computed tokens have, by the service's own counters."""
    sent = growth(history, "direct_dma_bytes", window, source="target")
    computed, lacks = _computed_kv_bytes(history, window)
    if unread := [*(["direct_dma_bytes"] if math.isnan(sent) else []), *lacks]:
        return Ratio(missing=f"no data for direct_dma_ratio: the service's samples lack {', '.join(unread)}")
    if computed <= 0:
        return Ratio(missing="no data for direct_dma_ratio: no token was computed in the window")
    return Ratio(sent, computed)


def _computed_kv_bytes(history: History, window: Window) -> tuple[float, list[str]]:
    """As the service counts them, else its tokens times the size of one; and what there is no sample of."""
    counted = growth(history, "computed_kv_bytes", window, source="target")
    if not math.isnan(counted):
        return counted, []
    tokens = growth(history, "computed_tokens", window, source="target")
    each = history.counter("kv_bytes_per_token", window.end, source="target")
    named = {"computed_tokens": tokens, "kv_bytes_per_token": each}
    return tokens * each, [name for name, number in named.items() if math.isnan(number)]


def most_running(history: History, window: Window) -> Ratio:
    """The largest sample of how many sequences the service runs at once (of 1: it is compared as it is)."""
    seen = [
        float(event["values"]["running"])
        for event in history.of_kind("sample")
        if event["t"] in window and event["source"] == "target" and "running" in event["values"]
    ]
    return Ratio(max(seen), 1.0) if seen else Ratio(missing="no data for running_most: no sample has it")


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
        float(event["values"][name])
        for event in history.of_kind("sample")
        if event["t"] in window and event["source"] == source and name in event["values"]
    ]
    fell = any(later < earlier for earlier, later in pairwise(samples))
    return math.nan if len(samples) < 2 or fell else samples[-1] - samples[0]


def _both_ways(link: str) -> tuple[tuple[str, str], tuple[str, str]]:
    a, b = link.split("-")
    return (a, b), (b, a)
