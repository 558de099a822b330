"""NVLinks that go down: some of a card's, or all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.telemetry import NVLINKS_MAX, CardInfo
from faults.kept import KeptCard

XID = 74  # NVLink error
RESET = 1  # NVML's field 230, the recovery action


class NvlinkLinksDown(KeptCard):
    """The first `down` of a card's physical NVLinks are down; the others carry what is left."""

    kind: Literal["nvlink_links_down"] = "nvlink_links_down"
    down: int = Field(default=9, ge=1, le=NVLINKS_MAX, description="How many of the card's NVLinks are down.")

    dose: ClassVar[str] = "NVLinks of the card that are down"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a card exchanges with its peers over fewer links than it has: slower by that "
        "share, and telemetry names the links that are down."
    )
    does_not_certify: ClassVar[str] = (
        "What NCCL or an engine decides at its start from the links it finds, such as another route or another "
        "all-reduce, nor errors on the way down."
    )
    real_method: ClassVar[str] = (
        "Single links: none that is public. All links of all cards: the kernel module's parameter "
        "NVreg_NvLinkDisable=1 (nv-reg.h of the open kernel modules), taken back by a reload or reboot without it. For "
        "NCCL alone: NCCL_P2P_DISABLE=1 at the engine's start, taken back by a restart."
    )
    privileges: ClassVar[str] = "root; for NCCL alone to start the engine with another environment"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """How many; ValueError if not as many of the card's lead anywhere."""
        if self.down > (wired := len(wired_links(gpu.card(self.card), self.card))):
            raise ValueError(
                f"card {self.card} has {wired} NVLinks that lead somewhere, so {self.down} can't go down"
            )
        return {LeverKind.NVLINKS_DOWN: self.down}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while all of those are down, on a card that is there. They are also what is left of it.

        A link is down at both of its ends: one that a peer lost counts here as well. One that leads nowhere can't
        go down, and does not count.
        """
        info = gpu.card(self.card)
        up = links_up(info)
        down = sum(not is_up for is_up in up[: self.down])
        visible = down == self.down and not info.lost
        since_s = info.changed_s if visible else None
        detail = f"{sum(up)} of {len(up)} up; the weakest way has {info.nvlink_share:.0%}"
        return Effect(visible, self.down, down, "links down", since_s, detail, down)


class NvlinkFatal(KeptCard):
    """A fatal NVLink error (Xid 74): all links of a card are down, until it is reset."""

    kind: Literal["nvlink_fatal"] = "nvlink_fatal"

    dose: ClassVar[str] = "% of the card's NVLinks that are down"
    undo: ClassVar[str] = "its neighbour ends, for the reset, and the links come up"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when exchanges with one card stand still, while the card itself works and answers."
    )
    does_not_certify: ClassVar[str] = (
        "That the contexts at both ends die of it, as has been seen (open-gpu-kernel-modules, issue 1355), nor the "
        "reset or reboot that brings real links up again."
    )
    real_method: ClassVar[str] = (
        "None that is public and safe. A line with Xid 74 in the kernel's log, or dcgmi's test injection into DCGM, "
        "for what watches them; the links stay up."
    )
    privileges: ClassVar[str] = "to write to the kernel's log (root), or to reach the DCGM host engine"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """All links, and what the driver recommends; ValueError if none of the card's leads anywhere."""
        info = gpu.card(self.card)
        wired_links(info, self.card)
        return {LeverKind.NVLINKS_DOWN: info.nvlinks, LeverKind.RECOVERY_ACTION: RESET}

    def xids(self) -> tuple[int, ...]:
        """NVLink error."""
        return (XID,)

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while none is up on a card that is there and asks for a reset. What is left: all of them down."""
        info = gpu.card(self.card)
        up = links_up(info)
        down = 100 * (1 - sum(up) / len(up)) if up else 0.0
        visible = down == 100 and not info.lost and info.recovery_action >= RESET
        since_s = info.changed_s if visible else None
        detail = f"Xid {info.last_xid:.0f} last; recovery action {info.recovery_action:.0f}"
        return Effect(visible, 100, down, "% of links down", since_s, detail, float(down == 100))


def links_up(info: CardInfo) -> list[bool]:
    """Which of a card's physical links are up, of those that lead somewhere, by their place."""
    wired, active = int(info.nvlinks_wired), int(info.nvlinks_active)
    return [bool(active >> place & 1) for place in range(NVLINKS_MAX) if wired >> place & 1]


def wired_links(info: CardInfo, card: int) -> list[bool]:
    """The same; ValueError if none of the card's leads anywhere."""
    if not (up := links_up(info)):
        raise ValueError(
            f"card {card} has no NVLinks that lead anywhere: it has no peer over NVLink on this node"
        )
    return up
