"""Trouble in a group of cards that work in step: one does not come, or comes late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.topology import compute
from faults.kept import KeptCard


def speed(gpu: Gpu, card: int) -> float:
    """What a card's compute does now, as a share of what it does at its best."""
    sm = gpu.link(compute(card))
    return sm.capacity_bytes_per_s / sm.nominal_bytes_per_s


class CollectiveHang(KeptCard):
    """A card no longer takes part: what is sent to it or by it stands still, and nothing reports an error."""

    kind: Literal["collective_hang"] = "collective_hang"

    dose: ClassVar[str] = "cards that are present but stand still"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a collective never ends: whether it notices without any error, what its "
        "clients get meanwhile, and whether it goes on once the card does."
    )
    does_not_certify: ClassVar[str] = (
        "The watchdogs of NCCL and PyTorch, which end the process after minutes, and that a real card that waits "
        "often shows itself fully busy."
    )
    real_method: ClassVar[str] = (
        "SIGSTOP to one rank's process, taken back by SIGCONT; or NVIDIA's cuda-checkpoint, --action lock or --toggle "
        "(driver 550 or later, by its README), taken back by the opposite. Whether NCCL lives on is unverified."
    )
    privileges: ClassVar[str] = "the same user as the rank, or root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """That it is absent."""
        return {LeverKind.ABSENT: 1}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the card is there, yet does nothing. That is also what is left of it."""
        info, works = gpu.card(self.card), speed(gpu, self.card)
        stands = float(not works and not info.lost)
        since_s = info.changed_s if stands else None
        detail = f"clock {info.sm_clock_mhz:.0f} MHz, weakest NVLink way {info.nvlink_share:.0%}"
        return Effect(bool(stands), 1, stands, "cards that stand still", since_s, detail, stands)


class Straggler(KeptCard):
    """A card works at `percent` of its speed, though its clocks look fine; the group waits for it."""

    kind: Literal["straggler"] = "straggler"
    percent: float = Field(default=30, ge=1, le=99, description="Share of its speed that is left, in %.")

    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "% of the speed that its clock promises"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when the slowest of its cards sets the pace and no clock, limit or counter says why."
    )
    does_not_certify: ClassVar[str] = (
        "What makes real cards slow unseen. The proof here is the rate that the simulated card's compute has; on "
        "hardware it takes a kernel of known work, timed."
    )
    real_method: ClassVar[str] = (
        "A low SM clock on one card (see clock_lock), as far as clocks may be seen; or a neighbour's kernels (see "
        "gpu_contention). Taken back with them."
    )
    privileges: ClassVar[str] = "clocks: root; kernels: any user who may use the card"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The share of its speed."""
        return {LeverKind.SLOW_FACTOR: self.percent / 100}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while compute is that much slower than its clock would have it. What is left: the lack of speed."""
        info, works = gpu.card(self.card), speed(gpu, self.card)
        promised = info.sm_clock_mhz / info.sm_clock_max_mhz
        measured = (
            100 * works / promised if promised and works else 100.0
        )  # one that stands still is no straggler
        visible = measured <= self.percent * (1 + 1e-9)
        since_s = info.changed_s if visible else None
        detail = f"{works:.0%} of full speed at {info.sm_clock_mhz:.0f} of {info.sm_clock_max_mhz:.0f} MHz"
        lacks = max(0.0, 100 - measured) if measured < 100 * (1 - 1e-9) else 0.0
        return Effect(visible, self.percent, measured, "% of its speed", since_s, detail, lacks)
