"""Copies under way: what was started together, and how long each part took on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class FlowTiming(NamedTuple):
    """One finished copy over one link. `nominal_s` is what it takes on an undisturbed link to oneself."""

    link: str
    nbytes: float
    elapsed_s: float
    nominal_s: float

    @property
    def slowdown(self) -> float:
        """How many times longer than undisturbed."""
        return self.elapsed_s / self.nominal_s


@dataclass(slots=True)
class Part:
    """One flow of a transfer. `link` is an index; `serial` finds the flow on it."""

    link: int
    serial: int
    name: str
    nbytes: float
    start_s: float
    timing: FlowTiming | None = None


class Collector(Protocol):
    """What can say how a transfer is getting on."""

    def collect(self, transfer: Transfer, now: float | None) -> None: ...


class Transfer:
    """Flows started together. Ask `done` from time to time, or have the node wait for it."""

    __slots__ = ("_collector", "cancelled", "ends_s", "open", "parts", "revisable")

    def __init__(self, collector: Collector, parts: list[Part], ends_s: float, revisable: bool) -> None:
        self._collector = collector
        self.parts = parts
        self.ends_s = ends_s  # when the last part arrives, as things stand
        self.revisable = revisable  # it may be sooner: others share a link, or a link is degraded
        self.open = True  # not all accounted for yet
        self.cancelled = False

    def done(self, now: float | None = None) -> bool:
        """Has everything arrived by `now` (on the node's clock; None: ask it)? Doesn't wait."""
        if self.cancelled:
            raise RuntimeError("the transfer was cancelled: it will never be done")
        if self.open:
            self._collector.collect(self, now)
        return not self.open

    @property
    def timings(self) -> list[FlowTiming]:
        """In the order started; RuntimeError before it is done."""
        if self.open:
            raise RuntimeError("the transfer is not done: wait for it, or ask done()")
        return [part.timing for part in self.parts if part.timing is not None]
