"""How far a load has come: counts that are safe to read while it runs."""

from __future__ import annotations

import math
import statistics
import threading
from dataclasses import dataclass
from typing import Any

ANSWERED = ("completed", "length")


@dataclass(frozen=True)
class Progress:
    """Counts of requests; `failed` are those that did not end as completed or length (refusals too)."""

    planned: int
    sent: int
    finished: int
    failed: int
    ttft_p50_ms: float | None  # from the due time, of the requests that had a first token; None if none had

    @property
    def in_flight(self) -> int:
        return self.sent - self.finished


class Tally:
    """Adds up what happens; one thread writes, any may read."""

    def __init__(self, planned: int) -> None:
        self._planned = planned
        self._failed = 0
        self._finished = 0
        self._lateness_s: list[float] = []
        self._ttft_s: list[float] = []
        self._lock = threading.Lock()

    def sent(self, lateness_s: float) -> None:
        """A request went out, this many seconds after it was due."""
        with self._lock:
            self._lateness_s.append(lateness_s)

    def finished(self, request: dict[str, Any]) -> None:
        """A request is over."""
        with self._lock:
            self._finished += 1
            self._failed += request["outcome"] not in ANSWERED
            if request["first"] is not None:
                self._ttft_s.append(request["first"] - request["due"])

    def progress(self) -> Progress:
        with self._lock:
            ttft = statistics.median(self._ttft_s) * 1000 if self._ttft_s else None
            return Progress(self._planned, len(self._lateness_s), self._finished, self._failed, ttft)

    def lateness_p99_ms(self) -> float:
        """NaN if nothing was sent."""
        with self._lock:
            ordered = sorted(self._lateness_s)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] * 1000 if ordered else math.nan
