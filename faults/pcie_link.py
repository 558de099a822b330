"""A PCIe link that is worse than it could be: it trained lower, or has to repeat what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.topology import DIRECTIONS, pcie
from faults.kept import KeptCard
from faults.pace import REACHED, Pace

_REPLAYS = Pace()


def share_of_nominal(gpu: Gpu, card: int) -> float:
    """The share of its nominal rate that a card's PCIe has now, in the worse direction, in %."""
    ways = [gpu.link(pcie(card, direction)) for direction in DIRECTIONS]
    return 100 * min(way.capacity_bytes_per_s / way.nominal_bytes_per_s for way in ways)


class PcieLinkDegrade(KeptCard):
    """A card's PCIe link has trained at a lower generation or width than it could."""

    kind: Literal["pcie_link_degrade"] = "pcie_link_degrade"
    gen: int = Field(default=3, ge=1, le=5, description="The PCIe generation it runs at, at most.")
    width: Literal[1, 2, 4, 8, 16] = Field(default=8, description="How many lanes it has, at most.")

    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "lanes times their rate, % of the link at its best"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when copies between host and card have a narrower or slower link, which "
        "generation and width tell of, and nobody else is on it."
    )
    does_not_certify: ClassVar[str] = (
        "The retraining itself, in which the link is away for a moment, and cards that lower their generation when "
        "idle: a detector must look under load."
    )
    real_method: ClassVar[str] = (
        "setpci on the port above the card: a lower target speed in LnkCtl2, then a retrain; lspci -vvv then says "
        "(downgraded). Taken back by the old speed and a retrain, or a reboot. It can hang the host: a lab only."
    )
    privileges: ClassVar[str] = "root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """Generation and width; ValueError if the link is no better than that at its best."""
        info = gpu.card(self.card)
        if self.gen >= info.pcie_gen_max and self.width >= info.pcie_width_max:
            raise ValueError(
                f"gen {self.gen} x{self.width} is no worse than card {self.card}'s link at its best, "
                f"gen {info.pcie_gen_max:.0f} x{info.pcie_width_max:.0f}"
            )
        return {LeverKind.PCIE_GEN: self.gen, LeverKind.PCIE_WIDTH: self.width}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while generation and width are no more than asked, and the link is slower for it."""
        info = gpu.card(self.card)
        gen, width = min(self.gen, info.pcie_gen_max), min(self.width, info.pcie_width_max)
        asked = 100 * lanes(gen, width) / lanes(info.pcie_gen_max, info.pcie_width_max)
        measured = 100 * lanes(info.pcie_gen, info.pcie_width) / lanes(info.pcie_gen_max, info.pcie_width_max)
        share = share_of_nominal(gpu, self.card)
        lower = (info.pcie_gen_max - info.pcie_gen) + (info.pcie_width_max - info.pcie_width)
        as_low = info.pcie_gen <= self.gen and info.pcie_width <= self.width
        visible = bool(lower) and as_low and share < 100
        since_s = info.changed_s if visible else None
        detail = f"gen {info.pcie_gen:.0f} x{info.pcie_width:.0f}; {share:.0f} % of the nominal rate"
        return Effect(visible, asked, measured, "% of lanes x rate", since_s, detail, lower)


class PcieReplayStorm(KeptCard):
    """A card's PCIe link repeats packets, `per_s` times a second, and loses a share of its rate to it."""

    kind: Literal["pcie_replay_storm"] = "pcie_replay_storm"
    per_s: float = Field(default=200, ge=10, le=1e6, description="Replays a second.")
    loss: float = Field(
        default=0.3, ge=0, le=0.95, description="Share of the link's rate that is lost to them."
    )

    dose: ClassVar[str] = "replays per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a bad contact makes the host's link to a card slower, and its replay counter "
        "tells why."
    )
    does_not_certify: ClassVar[str] = (
        "How much of its rate a real link loses at so many replays: rate and loss are set apart here; nor a link "
        "that retrains or goes down over it."
    )
    real_method: ClassVar[str] = (
        "The counter alone, by dcgmi's test injection (field 202) into DCGM; the link stays well. Taken back by "
        "injecting a good value."
    )
    privileges: ClassVar[str] = "to reach the DCGM host engine"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """Rate and loss."""
        return {LeverKind.PCIE_REPLAYS_PER_S: self.per_s, LeverKind.PCIE_LOSS: self.loss}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the counter moves at the asked rate, and the link has lost as much. What is left: the rate."""
        info, share = gpu.card(self.card), share_of_nominal(gpu, self.card)
        measured = _REPLAYS.per_s(gpu, self.card, info.pcie_replays)
        visible = measured >= REACHED * self.per_s and share <= 100 * (1 - self.loss) * (1 + 1e-9)
        since_s = info.changed_s if visible else None
        detail = f"{info.pcie_replays:.0f} replays so far; {share:.0f} % of the nominal rate"
        return Effect(visible, self.per_s, measured, "replays/s", since_s, detail, measured)


def lanes(gen: float, width: float) -> float:
    """Lanes times what each carries: it doubles with every generation, but for some percent of coding."""
    return float(width * 2 ** (gen - 1))
