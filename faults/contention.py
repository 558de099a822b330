"""Contention: another process keeps a card busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.topology import bandwidth, compute
from faults.kept import OnCard
from faults.streams import flows_for, taken


class GpuContention(OnCard):
    """Another process runs kernels without pause, so that a competing one gets little of the card."""

    kind: Literal["gpu_contention"] = "gpu_contention"
    fraction: float = Field(
        default=0.75, gt=0, le=0.98, description="The share taken from one competing kernel."
    )
    kernels: Literal["compute", "memory"] = Field(
        default="compute", description="What they are bound by: compute, or memory bandwidth."
    )

    dose: ClassVar[str] = "share of the card taken from one competing kernel"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when its kernels get the rest of a card, at clocks that are fine, and the card's use "
        "by process shows whose kernels run."
    )
    does_not_certify: ClassVar[str] = (
        "How a real card shares: without MPS it gives time slices, with it the split depends on what the kernels "
        "need; here they share equally."
    )
    real_method: ClassVar[str] = (
        "A process of its own that multiplies large matrices in a loop; under MPS with a share of its own, or with "
        "HAMi-core's limit on the victim. Taken back by ending it."
    )
    privileges: ClassVar[str] = "none: any user who may use the card"

    @property
    def shared(self) -> str:
        """What the kernels take of the card."""
        return compute(self.card) if self.kernels == "compute" else bandwidth(self.card)

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that computes."""
        with gpu.neighbour("busy", shares=[self.shared], streams=flows_for(self.fraction)):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while neighbours run kernels enough, and have for 50 ms. What is left of it are their kernels."""
        way = taken(gpu.link(self.shared), gpu.neighbours())
        visible = way.dose >= self.fraction * (1 - 1e-9)
        since_s = way.since_s if visible else None
        detail = f"{way.flows} kernels, {way.had:.2f} of the card since they began"
        return Effect(visible, self.fraction, way.dose, "share of the card", since_s, detail, way.flows)
