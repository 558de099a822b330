"""Fragmentation: a card has memory left, but in small pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.foreign import held_by_neighbours
from faults.gpu.base import Gpu
from faults.gpu.profiles import MIB
from faults.kept import OnCard


class VramFragmentation(OnCard):
    """Another process holds single pages all over a card, so that no free run is longer than `largest_mb`.

    It takes them once; what the service frees afterwards can join up again.
    """

    kind: Literal["vram_fragmentation"] = "vram_fragmentation"
    largest_mb: float = Field(
        default=1024, gt=0, description="MiB of the full-size card; the longest free run that is left."
    )

    builds_up: ClassVar[bool] = True  # page by page
    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "MiB of the full-size card in the longest free run"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when an allocation fails for want of a contiguous run, while the memory that is "
        "free would be enough."
    )
    does_not_certify: ClassVar[str] = (
        "Fragmentation inside a caching allocator, and drivers whose virtual memory maps scattered pages into one "
        "range: there, only what must be physically contiguous notices."
    )
    real_method: ClassVar[str] = (
        "A process that allocates many blocks of the driver's granularity and frees all but some. Taken back by "
        "ending it. Hardly visible from outside, as NVML has no figure for the longest free run."
    )
    privileges: ClassVar[str] = "none: any user who may use the card"

    def largest_bytes(self, gpu: Gpu) -> int:
        """In bytes of the simulated card."""
        return int(self.largest_mb * MIB / gpu.profile.scale)

    def check_node(self, gpu: Gpu) -> None:
        """A run has at least a page, and is shorter than the card."""
        scale = gpu.profile.scale / MIB
        page_mb, there_mb = gpu.profile.page_bytes * scale, gpu.memory(self.card).total_bytes * scale
        if not page_mb <= self.largest_mb < there_mb:
            raise ValueError(
                f"largest_mb: {self.largest_mb:g}: from a page, {page_mb:.4g}, to below the card's {there_mb:g}"
            )

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that holds the pages in between."""
        with gpu.neighbour("scatter", card=self.card, largest_bytes=self.largest_bytes(gpu)):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while neighbours hold memory, and no run that is left is longer than asked.

        A card that is simply full shows as much, so there must be more free than the longest run. What is left
        of the fault are the neighbours' bytes. A neighbour that holds a single page does not count: that much has
        every process that computes or copies there, and this one takes it besides.
        """
        memory, shown = gpu.memory(self.card), gpu.profile.scale / MIB
        by_pid = held_by_neighbours(gpu, memory)
        held = sum(by_pid.values())
        in_pieces = memory.largest_free_bytes < memory.free_bytes
        visible = bool(held) and in_pieces and memory.largest_free_bytes <= self.largest_bytes(gpu)
        detail = f"{memory.free_bytes * shown:.0f} MiB free; neighbours hold {held * shown:.0f} MiB"
        marks = [memory.marks[pid].at_s for pid in by_pid.keys() & memory.marks.keys()]
        since_s = max(marks) if visible and marks else None
        measured = memory.largest_free_bytes * shown
        return Effect(visible, self.largest_mb, measured, "MiB in one run", since_s, detail, held)
