"""A timeout of the GPU's own processor (GSP), through which the driver talks to a card."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.kept import KeptCard

XIDS = (119, 154)  # a timeout of an RPC to the GSP; the recovery action has changed
RESET = 1  # NVML's field 230, the recovery action
RESET_REQUIRED = 16  # nvml.h
_CLOCKS_APART_S = 0.05  # events are dated by another clock than levers


class GspTimeout(KeptCard):
    """The driver waits for a card's GSP in vain (Xid 119): NVML calls take seconds, then fail; a reset is due."""

    kind: Literal["gsp_timeout"] = "gsp_timeout"
    delay_ms: float = Field(default=3000, ge=1, le=60_000, description="How long an NVML call hangs, in ms.")

    dose: ClassVar[str] = "ms that a call hangs before it fails"
    undo: ClassVar[str] = "its neighbour ends, for the reset"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That a service whose kernels still run does not hang along with NVML, and that Xid and recovery action "
        "tell which card is to be reset."
    )
    does_not_certify: ClassVar[str] = (
        "New contexts, allocations and launches that need the GSP and hang as well, and that calls on other cards "
        "may do better than here, where NVML as a whole hangs."
    )
    real_method: ClassVar[str] = (
        "None that is public and safe. A library of one's own in the place of libnvidia-ml.so.1 hangs and fails as "
        "much, and a line with Xid 119 in the kernel's log is what a detector reads. A real one takes a reset."
    )
    privileges: ClassVar[str] = "to start what monitors with another environment; the kernel's log: root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """Delay and failure of the calls, and what the driver recommends."""
        return {
            LeverKind.NVML_DELAY_S: self.delay_ms / 1000,
            LeverKind.NVML_ERROR: RESET_REQUIRED,
            LeverKind.RECOVERY_ACTION: RESET,
        }

    def xids(self) -> tuple[int, ...]:
        """The timeout, and the change of the recovery action."""
        return XIDS

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while calls hang as long as asked and say that a reset is required (16), and the card asks for one.

        And it must have reported Xid 119 since the one or the other began. What is left of it: any delay, if all the
        rest is there.
        """
        monitoring, info = gpu.monitoring(), gpu.card(self.card)
        delay_ms, asks = 1000 * monitoring.delay_s, info.recovery_action >= RESET
        began_s = min(monitoring.changed_s, info.changed_s)
        ours = monitoring.error == RESET_REQUIRED and asks and self._reported(gpu, began_s)
        visible = ours and delay_ms >= self.delay_ms * (1 - 1e-9)
        since_s = info.changed_s if visible else None
        detail = f"Xid {info.last_xid:.0f} last; NVML answers {monitoring.error}; action {info.recovery_action:.0f}"
        return Effect(visible, self.delay_ms, delay_ms, "ms", since_s, detail, delay_ms if ours else 0.0)

    def _reported(self, gpu: Gpu, began_s: float) -> bool:
        """Whether the card has reported the timeout since then."""
        began_us = (began_s + time.time() - time.monotonic() - _CLOCKS_APART_S) * 1e6
        return any(
            event.card == self.card and event.data == XIDS[0] and event.at_us >= began_us
            for event in gpu.events()
        )
