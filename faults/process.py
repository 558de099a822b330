"""A process on the cards that stands still: alive, holding all it has, and doing nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.owners import is_stopped
from faults.kept import OnCard


class EngineStall(OnCard):
    """The biggest tenant of a card is stopped (SIGSTOP), as if its host had forgotten it."""

    kind: Literal["engine_stall"] = "engine_stall"

    dose: ClassVar[str] = "tenants of the card that are stopped"
    undo: ClassVar[str] = "its neighbour ends, and the process goes on (SIGCONT)"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "real"}
    certifies: ClassVar[str] = (
        "What clients get from a service that accepts connections and never answers, and whether it picks up what "
        "it held when it goes on."
    )
    does_not_certify: ClassVar[str] = (
        "A supervisor that kills what does not answer, unless there is one, and an engine of several processes of "
        "which only one stands still."
    )
    real_method: ClassVar[str] = (
        "SIGSTOP to the process, as here; state T in /proc/PID/stat. Taken back by SIGCONT."
    )
    privileges: ClassVar[str] = "the same user as the process, or root"

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that stopped the process."""
        with gpu.neighbour("stop", card=self.card):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the kernel says that a tenant with memory on the card is stopped. They are what is left."""
        memory = gpu.memory(self.card)
        on_card = sorted(memory.used_by.keys() & gpu.tenants())
        stopped = [pid for pid in on_card if is_stopped(pid)]
        # Card 0 is where the node notes who keeps a process stopped.
        since_s = gpu.card(0).changed_s if stopped else None
        detail = f"stopped: {', '.join(map(str, stopped)) or 'none'} of {len(on_card)} tenants on the card"
        return Effect(bool(stopped), 1, len(stopped), "tenants stopped", since_s, detail, len(stopped))
