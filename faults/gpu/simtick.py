"""One tick of a node's clock: what the links moved since the last one becomes use, power, heat and counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from faults.gpu.conditions import Conditions, active_nvlinks, clocks, warmth
from faults.gpu.layout import OWNERS
from faults.gpu.levers import LeverKind
from faults.gpu.links import Link
from faults.gpu.nodefile import NodeFile
from faults.gpu.telemetry import Throttle
from faults.gpu.topology import bandwidth, compute, pcie

RATES = {
    LeverKind.PCIE_REPLAYS_PER_S: ("pcie_replays",),
    LeverKind.NVLINK_CRC_PER_S: ("nvlink_crc_errors",),
    LeverKind.NVLINK_REPLAYS_PER_S: ("nvlink_replays", "nvlink_recoveries"),
    LeverKind.ECC_CORRECTED_PER_S: ("ecc_corrected", "ecc_corrected_volatile"),
}
WINDOW_S = 0.1  # use and throughput are weighted means of about so long
STRIDE_S = 0.1  # heat and throttling are followed in such steps, however long nobody ticked
STRIDES_MOST = 2000
POWER = Throttle.SW_POWER_CAP | Throttle.HW_POWER_BRAKE
HEAT = Throttle.HW_THERMAL | Throttle.SW_THERMAL


class Tick:
    """All cards from the last tick to this one; `links` are as of now, and under these conditions ever since."""

    def __init__(self, file: NodeFile, conditions: Conditions, links: Mapping[str, Link], dt: float) -> None:
        self._file, self._conditions, self._links, self._dt = file, conditions, links, dt

    def run(self) -> None:
        """Bring every card up to date."""
        for card in range(self._file.cards):
            self._use(card)
            self._count(card)
            self._credit_nvlinks(card)
            self._credit_owners(card)

    @property
    def _weight(self) -> float:
        return min(1.0, self._dt / WINDOW_S)

    @cached_property
    def _nvlinks(self) -> dict[int, list[str]]:
        """The names of each card's NVLinks."""
        ends = self._file.wiring.ends
        at: dict[int, list[str]] = {card: [] for card in range(self._file.cards)}
        for name in self._links:
            if name.startswith("nvlink:"):
                for card in ends(name):
                    at[card].append(name)
        return at

    def _use(self, card: int) -> None:
        get, put = self._file.card_field, self._file.set_card_field
        sm = self._share(compute(card), self._took(card, "sm_busy_s", compute(card)))
        hbm = self._share(bandwidth(card), self._took(card, "hbm_busy_s", bandwidth(card)))
        # A kernel that can't go on, such as a collective that waits for an absent rank, runs nevertheless.
        util = 1.0 if self._is_stuck(card) else min(1.0, sm + hbm)
        latest = {
            "gpu_util_percent": 100 * util,
            "mem_util_percent": 100 * hbm,
            "pcie_tx_bytes_per_s": self._took(card, "pcie_tx_bytes", pcie(card, "d2h")) / self._dt,
            "pcie_rx_bytes_per_s": self._took(card, "pcie_rx_bytes", pcie(card, "h2d")) / self._dt,
        }
        for name, value in latest.items():
            put(card, name, get(card, name) + (value - get(card, name)) * self._weight)
        self._warm(card, util)

    def _warm(self, card: int, util: float) -> None:
        """Power and heat, stride by stride: a card that gets too hot on the way slows down on the way."""
        get, put, profile = self._file.card_field, self._file.set_card_field, self._file.profile
        limit_w, heat_c = get(card, "power_limit_w"), self._conditions.most(LeverKind.HEAT_C, card)
        temperature_c, why = get(card, "temperature_c"), int(get(card, "throttle"))
        energy_j, hot_s, capped_s, power_w = 0.0, 0.0, 0.0, get(card, "power_w")
        strides = min(STRIDES_MOST, max(1, math.ceil(self._dt / STRIDE_S - 1e-9)))
        stride_s = self._dt / strides
        for _ in range(strides):
            sm_mhz, _, reasons = clocks(card, profile, self._conditions, temperature_c, bool(why & HEAT))
            why = int(reasons)
            clock = sm_mhz / profile.sm_clock_mhz
            power_w, temperature_c = warmth(profile, util, clock, limit_w, heat_c, temperature_c, stride_s)
            energy_j += power_w * stride_s
            hot_s += stride_s * bool(why & HEAT)
            capped_s += stride_s * bool(why & POWER)
        put(card, "power_w", power_w)
        put(card, "temperature_c", temperature_c)
        put(card, "throttle", why)
        put(card, "energy_j", get(card, "energy_j") + energy_j)
        put(card, "throttled_thermal_s", get(card, "throttled_thermal_s") + hot_s)
        put(card, "throttled_power_s", get(card, "throttled_power_s") + capped_s)

    def _count(self, card: int) -> None:
        file = self._file
        pages = file.profile.pages - file.pages[card].free
        file.set_card_field(card, "used_bytes", pages * file.profile.page_bytes)
        for kind, counters in RATES.items():
            if rate := self._conditions.total(kind, card):
                for counter in counters:
                    file.set_card_field(card, counter, file.card_field(card, counter) + rate * self._dt)

    def _credit_nvlinks(self, card: int) -> None:
        """What a directed link has moved is shared by those of its physical links that are up."""
        file, wiring = self._file, self._file.wiring
        up = active_nvlinks(card, wiring, self._conditions)
        for name in self._nvlinks[card]:
            places = wiring.physical(card, name)
            way = "tx" if name.startswith(f"nvlink:{card}>") else "rx"
            fields = {place: f"nvlink_{way}_bytes_{place}" for place in places}
            before = sum(file.card_field(card, field) for field in fields.values())
            carriers = [place for place in places if up[place]] or places
            more = max(0.0, self._links[name].bytes_total - before) / len(carriers)
            for place in carriers:
                file.set_card_field(card, fields[place], file.card_field(card, fields[place]) + more)

    def _credit_owners(self, card: int) -> None:
        """The share of the latest window in which each owner's kernels ran, in %."""
        d, layout, busy = self._file.d, self._file.layout, [0.0] * OWNERS
        work_at, busy_at = layout.owner_work(card), layout.true_owner_busy(card)
        for nth, name in enumerate((compute(card), bandwidth(card))):
            moved = self._links[name].bytes_by()
            for place, before in enumerate(d[work_at + nth : work_at + 2 * OWNERS : 2].tolist()):
                worked = moved.get(place + 1, 0.0)
                if worked != before:
                    d[work_at + 2 * place + nth] = worked
                    busy[place] += self._share(name, max(0.0, worked - before))
        for place, before in enumerate(d[busy_at : busy_at + OWNERS].tolist()):
            if before or busy[place]:
                d[busy_at + place] = before + (100 * min(1.0, busy[place]) - before) * self._weight

    def _share(self, name: str, moved: float) -> float:
        """The share of the time in which something moved over a link, at what it can move."""
        capacity = self._links[name].capacity
        return min(1.0, moved / capacity / self._dt) if capacity else 0.0

    def _took(self, card: int, field: str, link: str) -> float:
        """What a link has moved since the field last said so; the field says so now."""
        before, moved = self._file.card_field(card, field), self._links[link].bytes_total
        self._file.set_card_field(card, field, moved)
        return max(0.0, moved - before)

    def _is_stuck(self, card: int) -> bool:
        return any(
            not self._links[name].capacity and self._links[name].active
            for name in (compute(card), bandwidth(card), *self._nvlinks[card])
        )
