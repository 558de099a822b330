"""A memory leak: another process takes a card's memory bit by bit."""

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
from faults.pace import REACHED, Pace

_GROWTH = Pace(window_s=1.0)  # whole pages, and by a process that may be kept waiting


class VramLeak(OnCard):
    """Another process takes `mb_per_s` of a card's memory and gives none of it back, until the card is full."""

    kind: Literal["vram_leak"] = "vram_leak"
    mb_per_s: float = Field(
        default=2048, ge=1024, le=65_536, description="MiB of the full-size card that are taken a second."
    )

    builds_up: ClassVar[bool] = True  # it disturbs by what it has taken, not by how fast

    dose: ClassVar[str] = "MiB of the full-size card taken per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "Whether the service notices that a card fills up before it is full, and what it does by then."
    )
    does_not_certify: ClassVar[str] = (
        "A leak of the service's own, which a restart of it would end, or one that is slow enough to take days."
    )
    real_method: ClassVar[str] = (
        "A process of its own that allocates some more every second, up to a ceiling. Taken back by ending it."
    )
    privileges: ClassVar[str] = "none: any user who may use the card"

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that leaks."""
        with gpu.neighbour("leak", card=self.card, bytes_per_s=self.mb_per_s * MIB / gpu.profile.scale):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while what neighbours hold grows as fast as asked, or the card has nothing more to take.

        What is left of the fault are the neighbours' bytes on the card. A neighbour that holds a single page does
        not count: that much has every process that computes or copies there.
        """
        memory, shown = gpu.memory(self.card), gpu.profile.scale / MIB
        held = sum(held_by_neighbours(gpu, memory).values())
        measured = _GROWTH.per_s(gpu, self.card, held) * shown
        full = bool(held) and memory.free_bytes < gpu.profile.page_bytes
        visible = full or measured >= REACHED * self.mb_per_s
        since_s = memory.changed_s if visible else None
        detail = f"neighbours hold {held * shown:.0f} MiB; {memory.free_bytes * shown:.0f} MiB are free"
        return Effect(visible, self.mb_per_s, measured, "MiB/s", since_s, detail, held)
