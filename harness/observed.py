"""What a history says about its requests in a window: a value per request, or a yes or no per request.

A request belongs to the window in which it was due, not to the one in which it ended, so that a stall can't
move its victims out of the window that caused them. One that was under way when a fault took effect, and failed
after that, is a victim of the fault: it says nothing about the quiet time before. Values are in milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from harness.history import ANSWERED, Event, History, Window

NEVER = math.inf  # it did not come: slower than any bound
FEWEST_TOKENS = 4  # below that, time per token is mostly noise


def requests_due(history: History, window: Window) -> list[Event]:
    """The requests that belong to the window."""
    faults = [each for each in history.windows() if each.phase == "fault"]
    return [request for request in history.of_kind("request") if _belongs_at(request, faults) in window]


def _belongs_at(request: Event, faults: Sequence[Window]) -> float:
    """When it was due; for the victim of a later fault, the start of the latest.

    A time-out is none: what waited that long may well have been in trouble before.
    """
    due = float(request["due"])
    if request["outcome"] != "failed":
        return due
    return max((fault.start for fault in faults if due < fault.start <= request["t"]), default=due)


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


def why_unanswered(requests: Iterable[Event]) -> str:
    """The commonest reasons for which requests were not answered, with their counts; nothing if all were."""
    reasons = Counter(
        " ".join(str(part) for part in (r.get("status"), r.get("error") or r["outcome"]) if part)[:160]
        for r in requests
        if r["outcome"] not in ANSWERED
    )
    return "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(3))


def sample_quantile(values: Iterable[float], quantile: float) -> float:
    """The least value that at least that share of the values does not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(quantile * len(ordered) - 1e-9), 1) - 1]
