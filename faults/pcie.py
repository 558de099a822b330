"""PCIe saturation: another process copies to and from a card without pause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fault, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.topology import DIRECTIONS, pcie
from faults.streams import flows_for, taken


class PcieSaturation(Fault):
    """Another process copies over a card's PCIe, both ways, so that a competing copy gets little of it.

    `fraction` is the share that the neighbour takes from one competing copy. Flows share a link equally, so
    it runs the smallest number of streams s with s / (s + 1) >= fraction: 9 for 0.9. The limit of 0.98 (49 streams)
    keeps room among the 128 flows that a link has slots for.
    """

    kind: Literal["pcie_saturation"] = "pcie_saturation"
    card: int = Field(default=0, ge=0, description="The card whose PCIe is saturated.")
    fraction: float = Field(
        default=0.9, gt=0, le=0.98, description="The share taken from one competing copy."
    )

    dose: ClassVar[str] = "share of the link taken from one competing copy"
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
    real_method: ClassVar[str] = (
        "A process of its own that copies pinned memory with cudaMemcpyAsync in a loop, both ways, on streams of "
        "their own; or NVIDIA's nvbandwidth, repeated. Taken back by ending it. Verified by a copy of one's own."
    )
    privileges: ClassVar[str] = "none: any user who may use the card"

    def touches(self) -> frozenset[int]:
        """The one card."""
        return frozenset({self.card})

    @property
    def streams(self) -> int:
        """Copies at a time and direction: the smallest s with s / (s + 1) >= fraction."""
        return flows_for(self.fraction)

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that copies."""
        with gpu.neighbour("copy", card=self.card, streams=self.streams):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while neighbours have copies enough under way, both ways, and have had for 50 ms.

        Copies share a link equally, so n of them take n / (n + 1) from one that competes. That is the measured
        dose, as of now: it does not depend on how much the service copies, and falls at once when the
        neighbours stop. A service with many copies at a time gets a larger share than 1 - `fraction`; that is
        its doing, not a weaker fault. That the neighbours' copies do move is read from their byte counters. What
        is left of the fault is the number of their copies.
        """
        neighbours = gpu.neighbours()
        ways = [taken(gpu.link(pcie(self.card, direction)), neighbours) for direction in DIRECTIONS]
        measured = min(way.dose for way in ways)
        visible = measured >= self.fraction * (1 - 1e-9)
        since_s = max(way.since_s for way in ways) if visible else None
        told = ", ".join(
            f"{name}: {way.flows} copies, {way.had:.2f} of the link since they began"
            for name, way in zip(DIRECTIONS, ways, strict=True)
        )
        left = sum(way.flows for way in ways)
        return Effect(visible, self.fraction, measured, "share of the link", since_s, told, left)
