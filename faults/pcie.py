"""PCIe saturation: another process copies to and from a card without pause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fault, Fidelity
from faults.gpu.base import Gpu, LinkInfo
from faults.gpu.topology import DIRECTIONS, pcie

SEEN_S = 0.05  # a rate over less than this is no measurement
_REACHED = (
    0.85  # of the asked share; a victim with several copies at a time leaves the neighbour a little less
)


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
        """Visible once neighbours have had 0.85 of the asked share of the capacity, for 50 ms, both ways.

        The measured dose is the neighbours' counters over the time since their oldest copy began, as a
        share of the link's capacity: all of it while nobody competes, at least `fraction` when one copy
        does.
        """
        neighbours = gpu.neighbours()
        doses = [_dose(gpu.link(pcie(self.card, direction)), neighbours) for direction in DIRECTIONS]
        measured = min(share for share, _ in doses)
        visible = measured >= _REACHED * self.fraction
        since_s = max(since for _, since in doses) if visible else None
        ways = ", ".join(f"{name} {share:.2f}" for name, (share, _) in zip(DIRECTIONS, doses, strict=True))
        return Effect(visible, self.fraction, measured, "share of the link", since_s, ways)


def _dose(link: LinkInfo, neighbours: frozenset[int]) -> tuple[float, float]:
    """The share of a link's capacity that neighbours have had, and since when; 0 if it's too soon to say."""
    streams = {pid: link.streams[pid] for pid in neighbours & link.streams.keys()}
    since_s = min((stream.since_s for stream in streams.values()), default=math.inf)
    seen_s = link.read_s - since_s
    if seen_s < SEEN_S:
        return 0.0, since_s
    moved = sum(link.bytes_by.get(pid, 0.0) for pid in streams)
    return moved / seen_s / link.capacity_bytes_per_s, since_s
