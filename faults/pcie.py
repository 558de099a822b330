"""PCIe saturation: another process copies to and from a card without pause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fault, Fidelity
from faults.gpu.base import Gpu, LinkInfo
from faults.gpu.topology import DIRECTIONS, pcie

SEEN_S = 0.05  # bytes over less than this are no measurement


class PcieSaturation(Fault):
    """Another process copies over a card's PCIe, both ways, so that a competing copy gets little of it.

    `fraction` is the share that the neighbour takes from one competing copy. Flows share a link equally, so
    it runs the smallest number of streams s with s / (s + 1) >= fraction.
    """

    kind: Literal["pcie_saturation"] = "pcie_saturation"
    card: int = Field(default=0, ge=0, description="The card whose PCIe is saturated.")
    fraction: float = Field(
        default=0.9, gt=0, le=0.98, description="The share taken from one competing copy."
    )

    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when its copies between host and card get the rest of the link: swapping, "
        "loading and whatever waits for them take about 1 / (1 - fraction) times as long, and counters "
        "show who copies."
    )
    does_not_certify: ClassVar[str] = (
        "How real copy engines, switches and host memory arbitrate (the simulation shares equally among "
        "copies), or anything the host's own memory traffic would add."
    )

    def touches(self) -> frozenset[int]:
        """The one card."""
        return frozenset({self.card})

    @property
    def streams(self) -> int:
        """Copies at a time and direction: the smallest s with s / (s + 1) >= fraction."""
        return max(1, math.ceil(self.fraction / (1 - self.fraction) - 1e-9))

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that copies."""
        with gpu.neighbour("copy", card=self.card, streams=self.streams):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while neighbours have copies enough under way, both ways, and have had for 50 ms.

        Copies share a link equally, so n of them take n / (n + 1) from one that competes. That is the measured
        dose, as of now: it does not depend on how much the service copies, and falls at once when the
        neighbours stop. That their copies do move is read from their byte counters. What is left of the fault
        is the number of their copies.
        """
        neighbours = gpu.neighbours()
        ways = [_way(gpu.link(pcie(self.card, direction)), neighbours) for direction in DIRECTIONS]
        measured = min(way.dose for way in ways)
        visible = measured >= self.fraction * (1 - 1e-9)
        since_s = max(way.since_s for way in ways) if visible else None
        told = ", ".join(
            f"{name}: {way.copies} copies, {way.had:.2f} of the link since they began"
            for name, way in zip(DIRECTIONS, ways, strict=True)
        )
        left = sum(way.copies for way in ways)
        return Effect(visible, self.fraction, measured, "share of the link", since_s, told, left)


@dataclass(frozen=True)
class _Way:
    """Neighbours on one direction: the share they take from one competing copy, and what they have had."""

    copies: int
    dose: float
    had: float
    since_s: float


def _way(link: LinkInfo, neighbours: frozenset[int]) -> _Way:
    """The dose is 0 while it is too soon to say that anything moves, and if nothing does."""
    streams = {pid: link.streams[pid] for pid in neighbours & link.streams.keys()}
    copies = sum(stream.flows for stream in streams.values())
    since_s = min((stream.since_s for stream in streams.values()), default=math.inf)
    seen_s = link.read_s - since_s
    if seen_s < SEEN_S:
        return _Way(copies, 0.0, 0.0, since_s)
    had = sum(link.bytes_by.get(pid, 0.0) for pid in streams) / seen_s / link.capacity_bytes_per_s
    return _Way(copies, copies / (copies + 1) if had > 0 else 0.0, had, since_s)
