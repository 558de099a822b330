"""What the levers on a node add up to: clocks and capacities. Pure: it is told the rows, times and temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from faults.gpu.levers import LeverKind, Row
from faults.gpu.profiles import CardProfile
from faults.gpu.telemetry import Throttle
from faults.gpu.topology import SWITCH, Wiring

COOLED_C = 3.0  # below the slowdown temperature before a hot card speeds up again
SLOWED = 0.5  # of its clock is left to a card that slows down for heat, or when its power supply tells it to
LANE_BYTES_PER_S = {
    1: 0.25e9,
    2: 0.5e9,
    3: 0.985e9,
    4: 1.969e9,
    5: 3.938e9,
}  # PCI-SIG: after encoding, a direction


class Conditions:
    """All that is kept on a node now, by kind and target."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._kept: dict[tuple[int, int], list[float]] = {}
        for row in rows:
            self._kept.setdefault((row.kind, row.target), []).append(row.value)

    def least(self, kind: LeverKind, target: int, otherwise: float) -> float:
        """The smallest value kept, or `otherwise` if that is smaller."""
        return min([*self._kept.get((kind, target), [otherwise]), otherwise])

    def most(self, kind: LeverKind, target: int = 0, otherwise: float = 0.0) -> float:
        """The largest value kept, or `otherwise` if that is larger."""
        return max([*self._kept.get((kind, target), [otherwise]), otherwise])

    def total(self, kind: LeverKind, target: int) -> float:
        """All values kept, added up."""
        return sum(self._kept.get((kind, target), ()))


def clocks(
    card: int, profile: CardProfile, conditions: Conditions, temperature_c: float, was_hot: bool
) -> tuple[float, float, Throttle]:
    """SM and memory clock in MHz, and why they are below what they could be.

    Power above idle is taken to be proportional to the SM clock, so a power cap of P leaves the share
    (P - idle) / (limit - idle) of it.
    """
    sm_mhz, mem_mhz, why = profile.sm_clock_mhz, profile.mem_clock_mhz, Throttle.NONE
    locked = conditions.least(LeverKind.SM_CLOCK_MHZ, card, sm_mhz)
    mem_locked = conditions.least(LeverKind.MEM_CLOCK_MHZ, card, mem_mhz)
    if locked < sm_mhz or mem_locked < mem_mhz:
        why |= Throttle.APPLICATIONS_CLOCKS
    cap_w = conditions.least(LeverKind.POWER_CAP_W, card, profile.power_w)
    share = (cap_w - profile.idle_w) / (profile.power_w - profile.idle_w)
    if profile.sm_clock_mhz * share < locked:
        locked, why = profile.sm_clock_mhz * share, why | Throttle.SW_POWER_CAP
    slowed = profile.sm_clock_mhz * SLOWED
    if temperature_c >= profile.slowdown_c or (was_hot and temperature_c > profile.slowdown_c - COOLED_C):
        locked, why = min(locked, slowed), why | Throttle.HW_THERMAL | Throttle.HW_SLOWDOWN
    if conditions.most(LeverKind.POWER_BRAKE, card):
        locked, why = min(locked, slowed), why | Throttle.HW_POWER_BRAKE | Throttle.HW_SLOWDOWN
    return locked, mem_locked, why


def warmth(
    profile: CardProfile, util: float, clock: float, limit_w: float, heat_c: float, was_c: float, dt: float
) -> tuple[float, float]:
    """A card's power in W, and its temperature in °C after `dt` seconds of it.

    Power is idle power and, in proportion to use and clock, what there is above it; the temperature draws near to
    what belongs to the power, by the profile's time constant, plus `heat_c` that comes from elsewhere.
    """
    spare_w = profile.power_w - profile.idle_w
    power_w = min(limit_w, profile.idle_w + spare_w * util * clock)
    goal_c = (
        profile.idle_c + (profile.loaded_c - profile.idle_c) * (power_w - profile.idle_w) / spare_w + heat_c
    )
    return power_w, goal_c + (was_c - goal_c) * math.exp(-dt / profile.settles_s)


def pcie_link(card: int, profile: CardProfile, conditions: Conditions) -> tuple[int, int, float]:
    """PCIe generation, width, and the share of the nominal rate that they and replays leave."""
    gen = int(conditions.least(LeverKind.PCIE_GEN, card, profile.pcie_gen))
    width = int(conditions.least(LeverKind.PCIE_WIDTH, card, profile.pcie_width))
    lanes = LANE_BYTES_PER_S[gen] * width / (LANE_BYTES_PER_S[profile.pcie_gen] * profile.pcie_width)
    return gen, width, lanes * (1 - conditions.most(LeverKind.PCIE_LOSS, card))


def active_nvlinks(card: int, wiring: Wiring, conditions: Conditions) -> list[bool]:
    """Which physical NVLinks of a card are up: all that lead somewhere, but for those down at either end."""
    peers, lost = wiring.peers[card], conditions.most(LeverKind.LOST, card)
    down = int(conditions.most(LeverKind.NVLINKS_DOWN, card))
    up = [peer >= SWITCH and place >= down and not lost for place, peer in enumerate(peers)]
    for peer in {peer for peer in peers if peer >= 0}:
        ours = [place for place, each in enumerate(peers) if each == peer]
        theirs = [place for place, each in enumerate(wiring.peers[peer]) if each == card]
        far_down = int(conditions.most(LeverKind.NVLINKS_DOWN, peer))
        for here, there in zip(ours, theirs, strict=True):
            up[here] = up[here] and there >= far_down and not conditions.most(LeverKind.LOST, peer)
    return up


def capacities(wiring: Wiring, conditions: Conditions, speeds: Sequence[tuple[float, float]]) -> list[float]:
    """What each link moves per second. `speeds` are the shares of their full clocks that SM and memory run at."""
    found, up = [], [active_nvlinks(card, wiring, conditions) for card in range(wiring.cards)]
    for index, name in enumerate(wiring.names):
        kind, ends = name.partition(":")[0], wiring.ends(name)
        share = conditions.least(LeverKind.LINK_FACTOR, index, 1.0)
        if any(_is_gone(card, conditions) for card in ends):
            share = 0.0
        elif kind == "pcie":
            share *= pcie_link(ends[0], wiring.profile, conditions)[2]
        elif kind == "nvlink":
            places = wiring.physical(ends[0], name)
            share *= sum(up[ends[0]][place] for place in places) / len(places)
            share *= 1 - max(conditions.most(LeverKind.NVLINK_LOSS, card) for card in ends)
        else:
            share *= speeds[ends[0]][kind == "hbm"]
            share *= conditions.least(LeverKind.SLOW_FACTOR, ends[0], 1.0)
        found.append(wiring.nominal(name)[0] * share)
    return found


def weakest_nvlinks(wiring: Wiring, rates: Sequence[float]) -> dict[int, float]:
    """By card: the smallest share of its nominal rate that an NVLink of it has; 1 if it has none."""
    weakest = dict.fromkeys(range(wiring.cards), 1.0)
    for name, rate in zip(wiring.names, rates, strict=True):
        if name.startswith("nvlink:"):
            for card in wiring.ends(name):
                weakest[card] = min(weakest[card], rate / wiring.nominal(name)[0])
    return weakest


def _is_gone(card: int, conditions: Conditions) -> bool:
    """Lost, or no longer taking part: what it has under way stands still."""
    return bool(conditions.most(LeverKind.LOST, card) or conditions.most(LeverKind.ABSENT, card))
