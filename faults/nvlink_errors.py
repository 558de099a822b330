"""NVLink errors: packets are damaged and sent again, which costs bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.kept import KeptCard
from faults.nvlink_down import links_up, wired_links
from faults.pace import REACHED, Pace

_LEVERS = {"crc": LeverKind.NVLINK_CRC_PER_S, "replay": LeverKind.NVLINK_REPLAYS_PER_S}
_COUNTED = Pace()


class NvlinkErrors(KeptCard):
    """A card's NVLinks count `per_s` errors a second, and lose a share of their rate to them."""

    kind: Literal["nvlink_errors"] = "nvlink_errors"
    errors: Literal["crc", "replay"] = Field(
        default="crc",
        description="crc: packets that arrived damaged; replay: packets sent again, with a recovery.",
    )
    per_s: float = Field(default=200, ge=10, le=1e6, description="Errors a second.")
    loss: float = Field(
        default=0.3, ge=0, le=0.95, description="Share of the links' rate that is lost to them."
    )

    dose: ClassVar[str] = "errors per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when bad links make exchanges with one card slower, and the error counters tell why."
    )
    does_not_certify: ClassVar[str] = (
        "How much of its rate a real link loses at so many errors: rate and loss are set apart here; nor links that "
        "go down over it, or data that was damaged unnoticed."
    )
    real_method: ClassVar[str] = (
        "The counters alone, by dcgmi's test injection into DCGM, whose health check fails on any replay; the links "
        "stay well. Taken back by injecting a good value."
    )
    privileges: ClassVar[str] = "to reach the DCGM host engine"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """Rate and loss; ValueError if none of the card's NVLinks leads anywhere."""
        wired_links(gpu.card(self.card), self.card)
        return {_LEVERS[self.errors]: self.per_s, LeverKind.NVLINK_LOSS: self.loss}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the counter moves at the asked rate, and a way has lost as much. What is left: the rate.

        A card whose links lead nowhere has no such errors.
        """
        info = gpu.card(self.card)
        count = info.nvlink_crc_errors if self.errors == "crc" else info.nvlink_replays
        measured = _COUNTED.per_s(gpu, (self.card, self.errors), count)
        lost = bool(links_up(info)) and info.nvlink_share <= (1 - self.loss) * (1 + 1e-9)
        visible = measured >= REACHED * self.per_s and lost
        since_s = info.changed_s if visible else None
        detail = f"{count:.0f} so far; the weakest way has {info.nvlink_share:.0%}"
        return Effect(visible, self.per_s, measured, "errors/s", since_s, detail, measured)
