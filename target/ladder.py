"""The ladder of models: who answers, given the state of the memory breaker, and what that breaker is told.

While memory is short, a request that names the first model is answered by the light one like any other, and its
answer says so; one that names the light model always gets it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from target.breaker import Breaker, BreakerState
from target.config import EngineConfig
from target.device import Headroom
from target.sequence import Rung, Sequence


class Ladder:
    """Full precision while memory is sound; the light model while it is not; one probe request on the way back."""

    def __init__(self, memory: Breaker, rungs: Many[Rung], config: EngineConfig) -> None:
        self._memory = memory
        self._rungs = tuple(rungs)
        self._low_fraction = config.memory_low_fraction
        self._probe: Sequence | None = None
        self._probes_with_requests = config.countermeasures.vram and len(rungs) > 1

    def throttles(self, now: float) -> bool:
        """Whether fewer sequences than usual may run at once."""
        return self._probes_with_requests and not self._memory.is_closed(now)

    def choices(self, sequence: Sequence, now: float) -> tuple[Rung, ...]:
        """Rungs that a sequence may start on, the best first; it stays on one once it has given a token."""
        if sequence.pinned_rung and sequence.rung is not None:
            return (sequence.rung,)
        if not self.throttles(now):
            return self._rungs[:1]
        if self._memory.probing:
            return self._rungs[:1] if self._probe is sequence else self._rungs[-1:]
        if self._memory.state(now) is BreakerState.HALF_OPEN:
            return (self._rungs[0], self._rungs[-1])  # as the probe, if there is room for it
        return self._rungs[-1:]

    def started(self, sequence: Sequence, now: float) -> None:
        """A sequence got its room on one of its `choices`: on the first rung in half-open, it is the probe."""
        may_probe = self._probes_with_requests and not sequence.pinned_rung
        if may_probe and sequence.rung == self._rungs[0] and self._memory.try_probe(now):
            self._probe = sequence

    def ended(self, sequence: Sequence, reason: str, now: float) -> None:
        """Settle the probe if this was it. Whoever else opened or closed the breaker meanwhile has settled it."""
        if self._probe is sequence:
            self._probe = None
            self._memory.settle_probe(
                reason in ("stop", "length"), now, f"the probe request ended as {reason}"
            )

    def saw_headroom(self, headroom: Headroom, now: float) -> None:
        """A reading of free memory. Our own growth stops above the watermark, so less is somebody else's doing."""
        low = headroom.free_bytes < self._low_fraction * headroom.total_bytes
        reason = f"{headroom.free_bytes / 2**20:.2f} of {headroom.total_bytes / 2**20:.0f} MiB free"
        if low:
            self._is_short(now, reason)
            return
        self._memory.record(True, now, reason)
        if not self._probes_with_requests and self._memory.try_probe(now):
            self._memory.settle_probe(True, now, reason)

    def saw_out_of_memory(self, error: Exception, now: float) -> None:
        """An allocation failed."""
        self._is_short(now, f"allocation failed: {error}")

    def _is_short(self, now: float, reason: str) -> None:
        """Evidence while closed; in half-open a failed probe, whether or not one is under way."""
        self._memory.record(False, now, reason)
        if self._memory.probing or self._memory.try_probe(now):
            self._memory.settle_probe(False, now, reason)
