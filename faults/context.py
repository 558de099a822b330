"""A broken CUDA context: every later call in it fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu, MemoryInfo
from faults.kept import OnCard

REPORTED_BEFORE_S = 1.0  # by a neighbour that then takes its page and breaks the context
_CLOCKS_APART_S = 0.05  # events are dated by another clock than pages


class CudaError(OnCard):
    """A process on the card runs into a CUDA error that its context never gets over."""

    kind: Literal["cuda_error"] = "cuda_error"
    code: Literal[700, 710, 719] = Field(
        default=700, description="700: illegal address; 710: assertion on the device; 719: launch failure."
    )
    victim: Literal["neighbour", "tenant"] = Field(
        default="neighbour", description="Whom it hits: a bystander, or the card's biggest tenant."
    )

    dose: ClassVar[str] = "contexts broken by the error"
    undo: ClassVar[str] = (
        "its neighbour ends; a tenant's context stays broken until the tenant ends or, in the simulation alone, lets "
        "go of it and opens another"
    )
    # What the driver reports with it: a page fault, processing stopped, an exception of the engine.
    xids: ClassVar[dict[int, int]] = {700: 31, 710: 43, 719: 13}
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That a bystander's error stays with the bystander; or, aimed at the service, what it does when every call "
        "in its context fails, and whether it serves again with a new one."
    )
    does_not_certify: ClassVar[str] = (
        "That only a new process helps, as it does on real hardware: in the simulation a process may let go of its "
        "broken context and open another without ending, and the bundled service does. What led to the error, a dump "
        "of the context, or work that was lost without an error before it."
    )
    real_method: ClassVar[str] = (
        "A kernel that reads a bad address or asserts, launched in the victim, as NVIDIA's resiliency extension "
        "(nvidia-resiliency-ext) does in its tests. Taken back by a restart of the victim."
    )
    privileges: ClassVar[str] = "to run code in the victim"

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that broke a context: its own, or that of a tenant."""
        with gpu.neighbour(
            "keep", card=self.card, error=self.code, victim=self.victim, xids=[self.xids[self.code]]
        ):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while a process on the card is stuck in that error, or was since the neighbour broke its context.

        A service that notices and starts anew has felt the fault, and must not make it look absent: the driver's
        report stands. What is left of it are the processes that are still stuck.
        """
        memory, errors = gpu.memory(self.card), gpu.context_errors()
        stuck = [pid for pid in memory.used_by if errors.get(pid) == self.code]
        began_s = self._began_s(gpu, memory)
        broken = max(len(stuck), int(began_s is not None))
        since_s = began_s if began_s is not None else memory.changed_s
        detail = f"stuck: {', '.join(map(str, sorted(stuck))) or 'nobody'}"
        return Effect(
            broken > 0, 1, broken, "contexts broken", since_s if broken else None, detail, len(stuck)
        )

    def _began_s(self, gpu: Gpu, memory: MemoryInfo) -> float | None:
        """When a neighbour took its page right after the driver's report of the error; None if none that is here did.

        Other neighbours take pages too, but not at the moment of such a report.
        """
        shift_s = time.time() - time.monotonic()
        reported_s = [
            event.at_us / 1e6 - shift_s
            for event in gpu.events()
            if event.card == self.card and event.data == self.xids[self.code]
        ]
        pages_s = [memory.marks[pid].at_s for pid in gpu.neighbours() & memory.marks.keys()]
        return max(
            (
                at_s
                for at_s in pages_s
                if any(-_CLOCKS_APART_S <= at_s - then_s <= REPORTED_BEFORE_S for then_s in reported_s)
            ),
            default=None,
        )
