"""The two link breakers: they hear of every transfer, and say how the next one may go.

A transfer is judged while its step still runs, so that a link that turns weak is left within the step. In
half-open, the first direct transfer is the probe: it takes the slot before it begins and settles it when done.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from target.breaker import Breaker, BreakerState
from target.config import EngineConfig
from target.device import LinkReading
from target.links import LinkHealth, ring_around
from target.plan import Route


class Transfers:
    """KV over PCIe, and partial sums over NVLink."""

    def __init__(self, config: EngineConfig, breakers: Mapping[str, Breaker], cards: int) -> None:
        self.pcie = LinkHealth(breakers["pcie"])
        self.nvlink = LinkHealth(breakers["nvlink"])
        self._config = config
        self._cards = cards

    def direct_dma(self, now: float) -> bool:
        """Whether a step may be planned with direct copies; each chunk of them asks `begin_copy` again."""
        if self._config.preemption != "swap":
            return False
        state = self.pcie.breaker.state(now)
        return state is not BreakerState.OPEN or not self._config.countermeasures.pcie

    def begin_copy(self, now: float) -> int | None:
        """Tokens whose KV may go by direct DMA in the next chunk; None: none, until the breaker says otherwise."""
        breaker = self.pcie.breaker
        tries_direct = breaker.try_probe(now)
        if tries_direct or breaker.is_closed(now) or not self._config.countermeasures.pcie:
            return self._config.copy_tokens
        return None

    def saw_copy(self, readings: Many[LinkReading], now: float) -> None:
        """One chunk of direct DMA is done, either way."""
        self._saw(self.pcie, readings, now)

    def route(self, now: float) -> Route:
        """Direct while the links are whole, or to try them once; else a ring around the weak ones."""
        breaker = self.nvlink.breaker
        tries_direct = breaker.probing or breaker.try_probe(now)
        if tries_direct or breaker.is_closed(now) or not self._config.countermeasures.nvlink:
            return Route()
        return Route(ring_around(self.nvlink.weak(), self._cards))

    def saw_exchange(self, readings: Many[LinkReading], now: float) -> None:
        """One all-reduce is done."""
        self._saw(self.nvlink, readings, now)

    def _saw(self, link: LinkHealth, readings: Many[LinkReading], now: float) -> None:
        ok = link.observe(readings, now)
        if link.breaker.probing:
            if ok:
                link.forget()
            link.breaker.settle_probe(ok, now, "probe held" if ok else "probe found a weak link")
