"""All-reduce over simulated cards: the partial sums really move, and the links are paid for.

The parts are added in the order of the ranks whatever the route, so that the protocol never changes the text.
All ranks live in one process, so the sum is formed once and stands for the copy that each rank would form.

direct: every rank sends its part to every other; each of the n(n-1) links carries the whole part, in one hop.
ring:   both directions of a ring; parts go unsummed to the rank that owns their chunk (so that it can add them
        in rank order), and the sums travel back. Per directed link, in parts:
            gather  sum over distances d = 1..n-1 of min(d, n-d), shared by 2n links; broadcast (n-1)/2n
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from target.device import Device
from target.plan import LinkWatch, Route


class AllReduce:
    """Sums one partial tensor per rank."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.waited_s = 0.0  # for transport, so far

    def __call__(self, parts: Sequence[Tensor], watch: LinkWatch) -> Tensor:
        """The sum of `parts` (one per rank, equal shapes), after the time that its transport takes."""
        ranks = len(parts)
        if ranks == 1:
            return parts[0]
        nbytes = parts[0].numel() * parts[0].element_size()
        received = torch.stack(list(parts))
        began_s = time.perf_counter()
        readings = self._device.exchange(flows(watch.route(), ranks, nbytes))
        self.waited_s += time.perf_counter() - began_s
        watch.saw_exchange(readings)
        total = received[0]
        for rank in range(1, ranks):
            total = total + received[rank]
        return total


def flows(route: Route, ranks: int, nbytes: float) -> list[tuple[int, int, float]]:
    """(from rank, to rank, bytes) of one all-reduce of `nbytes` per rank."""
    if route.ring is None:
        return [(a, b, nbytes) for a in range(ranks) for b in range(ranks) if a != b]
    hops = list(zip(route.ring, route.ring[1:] + route.ring[:1], strict=True))
    gather = sum(min(d, ranks - d) for d in range(1, ranks)) / (2 * ranks)
    broadcast = (ranks - 1) / (2 * ranks)
    share = nbytes * (gather + broadcast)
    if ranks == 2:  # both directions of the ring are the one pair of links
        return [(0, 1, nbytes), (1, 0, nbytes)]
    return [(a, b, share) for a, b in hops] + [(b, a, share) for a, b in hops]
