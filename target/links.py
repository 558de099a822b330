"""Are the links whole? Judged by the service's own transfers, never by an idle link's state.

A link that carries nothing says nothing. One that carries our bytes at less than `HEALTHY` of its nominal rate,
again and again, opens its breaker; so does a neighbour's traffic, and that is meant: to the service they are the
same loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import permutations

from target.breaker import Breaker
from target.device import LinkReading

HEALTHY = 0.6
MEMORY_OF_LAST = 0.7  # weight of the past in a link's running health


class LinkHealth:
    """Feeds one breaker with the timings of one kind of link, and remembers which links are weak."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self._health: dict[str, float] = {}

    def observe(self, readings: Iterable[LinkReading], now: float) -> bool:
        """Take in one transfer over one or more links; True if all of them were healthy."""
        worst: LinkReading | None = None
        for reading in readings:
            past = self._health.get(reading.link, 1.0)
            self._health[reading.link] = MEMORY_OF_LAST * past + (1 - MEMORY_OF_LAST) * reading.health
            if worst is None or reading.health < worst.health:
                worst = reading
        if worst is None:
            return True
        ok = worst.health >= HEALTHY
        self.breaker.record(ok, now, f"{worst.link} carries {worst.health:.0%} of its nominal rate")
        return ok

    def weak(self) -> frozenset[str]:
        """Links whose running health is below `HEALTHY`."""
        return frozenset(link for link, health in self._health.items() if health < HEALTHY)

    def forget(self) -> None:
        """Start afresh, once a probe has shown that the links are whole."""
        self._health.clear()


def nvlink(a: int, b: int) -> str:
    """Name of the directed link from card `a` to card `b`."""
    return f"nvlink:{a}>{b}"


@lru_cache(maxsize=64)  # asked for every all-reduce, while the weak links hardly ever change
def ring_around(weak: frozenset[str], cards: int) -> tuple[int, ...]:
    """A ring over all cards that uses no weak link in either direction, or as few as there can be."""
    if cards < 3:
        return tuple(range(cards))

    def weak_hops(ring: tuple[int, ...]) -> int:
        hops = list(zip(ring, ring[1:] + ring[:1], strict=True))
        return sum((nvlink(a, b) in weak) + (nvlink(b, a) in weak) for a, b in hops)

    rings = ((0, *rest) for rest in permutations(range(1, cards)))
    if cards <= 6:
        return min(rings, key=weak_hops)
    # A ring of 8 has 5,040 orders; the first that avoids every weak link is as good as any.
    best = tuple(range(cards))
    for ring in rings:
        if weak_hops(ring) < weak_hops(best):
            best = ring
        if not weak_hops(best):
            break
    return best
