"""The closed list of metrics: unit, where each is read, and how many observations it has.

`per request` metrics are judged by exact binomial bounds (each request is good or bad); `total` metrics are
ratios of counters over a window, read from the card's telemetry or the service's /metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric. `shape`: "value" per request (ms), "share" of requests, or "total" over a window."""

    unit: str
    shape: Literal["value", "share", "total"]
    source: str
    what: str

    @property
    def needs_quantile(self) -> bool:
        return self.shape == "value"


METRICS: dict[str, Metric] = {
    "ttft_ms": Metric("ms", "value", "client", "time to first token, from the intended send time"),
    "tpot_ms": Metric(
        "ms", "value", "client", "time per output token after the first (answers of 4 tokens and up)"
    ),
    "e2e_ms": Metric("ms", "value", "client", "last byte, from the intended send time"),
    "error_ratio": Metric("ratio", "share", "client", "requests that did not end as completed or length"),
    "shed_ratio": Metric("ratio", "share", "client", "requests refused with 429 or 503"),
    "downgraded_ratio": Metric(
        "ratio", "share", "client", "answers that say a lower rung of the ladder made them"
    ),
    "direct_dma_ratio": Metric(
        "ratio",
        "total",
        "target /metrics",
        "KV bytes sent by direct DMA ÷ KV bytes that the computed tokens have",
    ),
    "staged_ratio": Metric(
        "ratio",
        "total",
        "target /metrics",
        "KV bytes staged in the host's memory, to be sent later ÷ KV bytes that the computed tokens have",
    ),
    "running_most": Metric(
        "sequences", "total", "target /metrics", "most sequences that were computed together in a step"
    ),
    "weak_link_share": Metric(
        "ratio", "total", "node telemetry", "bytes on the degraded NVLinks ÷ bytes on all NVLinks"
    ),
}
