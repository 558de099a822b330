"""A broken CUDA context: every later call of the process fails, until it is started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.kept import OnCard

REPORTED_BEFORE_S = 1.0  # by a neighbour that then breaks the context and takes its page


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
    undo: ClassVar[str] = "its neighbour ends; a tenant's broken context needs a restart"
    # What the driver reports with it: a page fault, processing stopped, an exception of the engine.
    xids: ClassVar[dict[int, int]] = {700: 31, 710: 43, 719: 13}
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
        # The neighbour takes a page when it begins, and reports before it breaks anything.
        began_s = max(
            (memory.marks[pid].at_s for pid in gpu.neighbours() & memory.marks.keys()), default=None
        )
        broken = max(len(stuck), self._reported(gpu, began_s))
        since_s = began_s if began_s is not None else memory.changed_s
        detail = f"stuck: {', '.join(map(str, sorted(stuck))) or 'nobody'}"
        return Effect(
            broken > 0, 1, broken, "contexts broken", since_s if broken else None, detail, len(stuck)
        )

    def _reported(self, gpu: Gpu, began_s: float | None) -> int:
        """1 if the driver has reported the error on the card since the neighbour began."""
        if began_s is None:
            return 0
        began_us = (began_s + time.time() - time.monotonic() - REPORTED_BEFORE_S) * 1e6
        return int(
            any(
                event.card == self.card and event.data == self.xids[self.code] and event.at_us >= began_us
                for event in gpu.events()
            )
        )
