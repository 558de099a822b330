"""A lost card: it has fallen off the bus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.kept import KeptCard

XID = 79  # the GPU has fallen off the bus
REBOOT = 2  # NVML's field 230, the recovery action


class GpuLost(KeptCard):
    """A card falls off the bus (Xid 79): every call on it fails, and what it had under way stands still."""

    kind: Literal["gpu_lost"] = "gpu_lost"

    dose: ClassVar[str] = "cards lost"
    undo: ClassVar[str] = "its neighbour ends, and the card is back as it was, for the reboot"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a card of its group fails every call while the others are well, and whether it "
        "serves again once the card is back."
    )
    does_not_certify: ClassVar[str] = (
        "That a process whose card was lost needs a restart, as its contexts are gone for good, nor the reboot that "
        "a real one takes: here the card comes back with its memory as it was."
    )
    real_method: ClassVar[str] = (
        "nvmlDeviceModifyDrainState, then nvmlDeviceRemoveGpu_v2 (nvml.h): refused while a process or persistence "
        "mode holds the card, and the others are renumbered. Taken back by a rescan of the bus. A true Xid 79 takes a "
        "cold reboot. Seen through NVML alone: a preloaded library."
    )
    privileges: ClassVar[str] = "root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """That it is lost, and what the driver recommends."""
        return {LeverKind.LOST: 1, LeverKind.RECOVERY_ACTION: REBOOT}

    def xids(self) -> tuple[int, ...]:
        """Fallen off the bus."""
        return (XID,)

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the card is lost. That is also what is left of it."""
        info = gpu.card(self.card)
        since_s = info.changed_s if info.lost else None
        detail = f"Xid {info.last_xid:.0f} last; recovery action {info.recovery_action:.0f}"
        return Effect(bool(info.lost), 1, info.lost, "cards lost", since_s, detail, info.lost)
