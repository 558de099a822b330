"""A broken CUDA context: every later call of the process fails, until it is started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.kept import OnCard


class CudaError(OnCard):
    """A process on the card runs into a CUDA error that its context never gets over."""

    kind: Literal["cuda_error"] = "cuda_error"
    code: Literal[700, 710, 719] = Field(
        default=700, description="700: illegal address; 710: assertion on the device; 719: launch failure."
    )
    victim: Literal["neighbour", "tenant"] = Field(
        default="neighbour", description="Whom it hits: a bystander, or the card's biggest tenant."
    )

    dose: ClassVar[str] = "contexts stuck in the error"
    undo: ClassVar[str] = "its neighbour ends; a tenant's broken context needs a restart"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That a bystander's error stays with the bystander; or, aimed at the service, what it does when every call "
        "on its cards fails, and that only a new process helps."
    )
    does_not_certify: ClassVar[str] = (
        "What led to the error, a dump of the context, or work that was lost without an error before it."
    )
    real_method: ClassVar[str] = (
        "A kernel that reads a bad address or asserts, launched in the victim, as NVIDIA's resiliency extension "
        "(nvidia-resiliency-ext) does in its tests. Taken back by a restart of the victim."
    )
    privileges: ClassVar[str] = "to run code in the victim"

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that broke a context: its own, or that of a tenant."""
        with gpu.neighbour("keep", card=self.card, error=self.code, victim=self.victim):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while a process on the card is stuck in that error. They are also what is left of it.

        A tenant stays stuck until it ends: the fault is gone when somebody has started it again.
        """
        memory, errors = gpu.memory(self.card), gpu.context_errors()
        stuck = [pid for pid in memory.used_by if errors.get(pid) == self.code]
        # The neighbour takes a page when it begins.
        began = [memory.marks[pid].at_s for pid in gpu.neighbours() & memory.marks.keys()]
        since_s = max(began, default=memory.changed_s) if stuck else None
        detail = f"stuck: {', '.join(map(str, sorted(stuck))) or 'nobody'}"
        return Effect(bool(stuck), 1, len(stuck), "contexts stuck", since_s, detail, len(stuck))
