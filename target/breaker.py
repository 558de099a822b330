"""A circuit breaker that is told the time.

    closed ──(failure rate in the window)──► open ──(open_s passed)──► half-open ──(probe held)──► closed
                                              ▲                            │
                                              └───────(probe failed)───────┘

Half-open lets one probe through at a time. A probe always settles: a time-out, a cancelled client and a
disconnect count as a failed probe, because a probe that keeps its slot for ever would keep the breaker
half-open for ever. Outside half-open, client errors and cancels are simply not recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class Transition:
    """One move of a breaker; `at_s` is the time that it was told."""

    name: str
    was: BreakerState
    now: BreakerState
    at_s: float
    reason: str


@dataclass(frozen=True)
class BreakerConfig:
    """When to open, and for how long (seconds)."""

    open_s: float
    window_s: float = 2.0
    samples_min: int = 4
    samples_most: int = (
        8  # the window is also the last so many outcomes: busy links must not detect more slowly
    )
    failure_rate: float = 0.5
    probe_timeout_s: float = 10.0


class Breaker:
    """See the module's picture. Every method takes the time in seconds of one monotonic clock."""

    def __init__(
        self, name: str, config: BreakerConfig, on_transition: Callable[[Transition], None] = lambda _: None
    ) -> None:
        self.name = name
        self.config = config
        self.since_s = 0.0
        self._state = BreakerState.CLOSED
        self._on_transition = on_transition
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=config.samples_most)
        self._probe_started_s: float | None = None

    def state(self, now: float) -> BreakerState:
        """The state at `now`: an open time that has passed and a probe that hung are noticed here."""
        if self._state is BreakerState.OPEN and now - self.since_s >= self.config.open_s:
            self._move(BreakerState.HALF_OPEN, now, f"open for {self.config.open_s:g} s")
        started = self._probe_started_s
        if started is not None and now - started >= self.config.probe_timeout_s:
            self.settle_probe(False, now, "probe timed out")
        return self._state

    def is_closed(self, now: float) -> bool:
        return self.state(now) is BreakerState.CLOSED

    def record(self, ok: bool, now: float, reason: str) -> None:
        """Evidence from ordinary work; it only counts while closed."""
        if self.state(now) is not BreakerState.CLOSED:
            return
        self._outcomes.append((now, ok))
        while self._outcomes and now - self._outcomes[0][0] > self.config.window_s:
            self._outcomes.popleft()
        if ok or len(self._outcomes) < self.config.samples_min:
            return
        failures = sum(not good for _, good in self._outcomes)
        if failures / len(self._outcomes) >= self.config.failure_rate:
            self._move(BreakerState.OPEN, now, reason)

    def try_probe(self, now: float) -> bool:
        """Take the one probe slot; False unless half-open with the slot free."""
        if self.state(now) is not BreakerState.HALF_OPEN or self._probe_started_s is not None:
            return False
        self._probe_started_s = now
        return True

    @property
    def probing(self) -> bool:
        return self._probe_started_s is not None

    def settle_probe(self, ok: bool, now: float, reason: str) -> None:
        """End the probe; a late answer of one that was settled already is ignored."""
        if self._probe_started_s is None:
            return
        if now - self._probe_started_s >= self.config.probe_timeout_s:
            ok, reason = False, "probe timed out"
        self._probe_started_s = None
        self._move(BreakerState.CLOSED if ok else BreakerState.OPEN, now, reason)

    def _move(self, to: BreakerState, now: float, reason: str) -> None:
        was, self._state, self.since_s = self._state, to, now
        self._outcomes.clear()
        self._on_transition(Transition(self.name, was, to, now, reason))
