"""The ladder of models: who answers, given the state of the memory breaker."""

from __future__ import annotations

from collections.abc import Sequence as Many

from target.breaker import Breaker
from target.sequence import Rung, Sequence


class Ladder:
    """Full precision while memory is sound; the light model while it is not; one probe request on the way back."""

    def __init__(self, memory: Breaker, rungs: Many[Rung], *, enabled: bool) -> None:
        self._memory = memory
        self._rungs = rungs
        self._probe: Sequence | None = None
        self.probes_with_requests = enabled and len(rungs) > 1

    def throttles(self, now: float) -> bool:
        """Whether fewer sequences than usual may run at once."""
        return self.probes_with_requests and not self._memory.is_closed(now)

    def choose(self, sequence: Sequence, now: float) -> Rung:
        """The rung that a sequence starts on; it stays there once it has given a token."""
        if sequence.pinned_rung and sequence.rung is not None:
            return sequence.rung
        if not self.probes_with_requests or self._memory.is_closed(now):
            return self._rungs[0]
        if self._memory.try_probe(now):
            self._probe = sequence
        if self._memory.probing and self._probe is sequence:
            return self._rungs[0]
        return self._rungs[-1]

    def ended(self, sequence: Sequence, reason: str, now: float) -> None:
        """Settle the probe if this was it. Whoever else opened or closed the breaker meanwhile has settled it."""
        if self._probe is sequence:
            self._probe = None
            self._memory.settle_probe(
                reason in ("stop", "length"), now, f"the probe request ended as {reason}"
            )
