"""Memory pressure: another process takes a card's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fault, Fidelity
from faults.foreign import held_by_neighbours
from faults.gpu.base import Gpu
from faults.gpu.profiles import MIB


class VramOom(Fault):
    """Another process takes a card's memory until at most `free_mb` are free, so that others run out.

    `free_mb` is in MiB of the card the profile stands for, is scaled down to the simulated one and met in whole
    pages: 1024 MiB of an 80 GiB card are 614 KiB of a `pocket` card, of which 576 KiB stay free. The neighbour
    takes memory once, in runs of up to 16 pages, and keeps it; what the service frees afterwards is there to be
    used again. On a card where the service has left no more than `free_mb` already, it takes nothing, and the
    fault has no effect.
    """

    kind: Literal["vram_oom"] = "vram_oom"
    card: int = Field(default=0, ge=0, description="The card whose memory is taken.")
    free_mb: float = Field(default=1024, gt=0, description="MiB of the full-size card that are left free.")

    builds_up: ClassVar[bool] = True  # the neighbour allocates run by run
    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "MiB of the full-size card left free"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when another process leaves it this much memory: its own allocations then "
        "fail, with contiguous first-fit fragmentation, until it frees something or the other process "
        "goes."
    )
    does_not_certify: ClassVar[str] = (
        "Anything about a real driver: virtual memory that hides fragmentation, caching allocators that hold "
        "freed memory back, memory of CUDA contexts and graphs, or a process that dies of the failure."
    )
    real_method: ClassVar[str] = (
        "A process of its own that allocates with cudaMalloc (or torch.empty) up to a ceiling that leaves some 512 "
        "MiB. Taken back by ending it: the driver frees what a dead process held. An engine that takes its whole "
        "pool at its start feels it only if the memory is gone before."
    )
    privileges: ClassVar[str] = "none: any user who may use the card"

    def touches(self) -> frozenset[int]:
        """The one card."""
        return frozenset({self.card})

    def leave_bytes(self, gpu: Gpu) -> int:
        """The bytes of the simulated card that are left free."""
        return int(self.free_mb * MIB / gpu.profile.scale)

    def check_node(self, gpu: Gpu) -> None:
        """More can't be left free than there is."""
        there_mb = gpu.memory(self.card).total_bytes * gpu.profile.scale / MIB
        if self.free_mb >= there_mb:
            raise ValueError(f"free_mb: {self.free_mb:g}: the card has {there_mb:g} MiB in all")

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that holds the memory."""
        with gpu.neighbour("hold", card=self.card, leave_bytes=self.leave_bytes(gpu)):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while a neighbour holds memory and no more than asked is free, or was once it had it.

        A service that reacts by freeing memory has felt the fault, and must not make it look absent. What is
        left of the fault are the neighbours' bytes on the card. A neighbour that holds a single page does not count:
        that much has every process that computes or copies there.
        """
        memory, leave_bytes = gpu.memory(self.card), self.leave_bytes(gpu)
        held = held_by_neighbours(gpu, memory)
        marks = [memory.marks[pid] for pid in held.keys() & memory.marks.keys()]
        dosed = [mark for mark in marks if mark.free_bytes <= leave_bytes]
        free_bytes = min([memory.free_bytes, *(mark.free_bytes for mark in marks)])
        since_s = None
        if dosed:
            since_s = min(mark.at_s for mark in dosed)
        elif marks and free_bytes <= leave_bytes:
            since_s = memory.changed_s  # the service itself took the last of it
        shown = gpu.profile.scale / MIB
        return Effect(
            visible=since_s is not None,
            asked=self.free_mb,
            measured=free_bytes * shown,
            unit="MiB free",
            since_s=since_s,
            detail=f"{memory.free_bytes * shown:.0f} MiB free now; neighbours that hold memory: {len(marks)}",
            residual=sum(held.values()),
        )
