"""Allocation failures: a card refuses large allocations, however much of it is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.profiles import MIB
from faults.kept import OnCard
from faults.pace import Pace

TRIES_PER_S = 20
_REFUSALS = Pace()


class AllocFailure(OnCard):
    """Allocations of `at_least_mb` and more fail on a card, though memory is free.

    A counter that stands still proves nothing, so the neighbour tries such an allocation 20 times a second.
    """

    kind: Literal["alloc_failure"] = "alloc_failure"
    at_least_mb: float = Field(
        default=1024, gt=0, description="MiB of the full-size card; as large an allocation, or larger, fails."
    )

    dose: ClassVar[str] = "allocations refused per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a large allocation fails while smaller ones succeed: growing a pool, "
        "loading a model, capturing a graph."
    )
    does_not_certify: ClassVar[str] = (
        "Failures of every n-th allocation or of one phase only, and what a caching allocator would have served "
        "from what it holds already."
    )
    real_method: ClassVar[str] = (
        "A library that is preloaded into the engine and refuses in cudaMalloc, or a limit by HAMi-core; for "
        "PyTorch alone torch.cuda.set_per_process_memory_fraction. Taken back by a restart without it."
    )
    privileges: ClassVar[str] = "to start the engine with another environment"

    def at_least_bytes(self, gpu: Gpu) -> int:
        """In bytes of the simulated card."""
        return max(1, int(self.at_least_mb * MIB / gpu.profile.scale))

    def check_node(self, gpu: Gpu) -> None:
        """Only what would fit on the card can be made to fail."""
        there_mb = gpu.memory(self.card).total_bytes * gpu.profile.scale / MIB
        if self.at_least_mb > there_mb:
            raise ValueError(f"at_least_mb: {self.at_least_mb:g}: the card has {there_mb:g} MiB in all")

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that keeps the limit, and runs into it."""
        nbytes = self.at_least_bytes(gpu)
        with gpu.neighbour("refuse", card=self.card, at_least_bytes=nbytes, per_s=TRIES_PER_S):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the card counts refusals, at half the pace of the neighbour's attempts or faster."""
        info = gpu.card(self.card)
        asked, measured = TRIES_PER_S / 2, _REFUSALS.per_s(gpu, self.card, info.refused_allocs)
        visible = measured >= asked
        detail = (
            f"{info.refused_allocs:.0f} refused so far; {gpu.memory(self.card).free_bytes} bytes are free"
        )
        since_s = info.changed_s if visible else None
        return Effect(visible, asked, measured, "refused/s", since_s, detail, measured)
