"""Endless flows of neighbours on what is shared equally: a link, a card's compute, its memory bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from faults.gpu.base import LinkInfo

SEEN_S = 0.05  # bytes over less than this are no measurement


@dataclass(frozen=True)
class Taken:
    """What neighbours take of a link from one competing flow, and what they have had."""

    flows: int
    dose: float
    had: float
    since_s: float


def flows_for(fraction: float) -> int:
    """The smallest number of flows s with s / (s + 1) >= fraction: that share they take from one competing flow."""
    return max(1, math.ceil(fraction / (1 - fraction) - 1e-9))


def taken(link: LinkInfo, neighbours: frozenset[int]) -> Taken:
    """The dose is 0 while it is too soon to say that anything moves, and if nothing does."""
    streams = {pid: link.streams[pid] for pid in neighbours & link.streams.keys()}
    flows = sum(stream.flows for stream in streams.values())
    since_s = min((stream.since_s for stream in streams.values()), default=math.inf)
    seen_s = link.read_s - since_s
    if seen_s < SEEN_S or not link.capacity_bytes_per_s:
        return Taken(flows, 0.0, 0.0, since_s)
    had = sum(link.bytes_by.get(pid, 0.0) for pid in streams) / seen_s / link.capacity_bytes_per_s
    return Taken(flows, flows / (flows + 1) if had > 0 else 0.0, had, since_s)
