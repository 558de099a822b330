"""What the cards of a simulated node show: clocks, power, heat, use and error counters, brought up to date by ticks.

A tick reads what the links have moved since the one before, lets the cards warm up or cool down, and writes what
follows. Whoever is attached ticks; a node that nobody attends stands still, but for what its levers say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from faults.gpu.conditions import Conditions, active_nvlinks, capacities, clocks, pcie_link, warmth
from faults.gpu.eventring import EventRing
from faults.gpu.layout import (
    CARD_CELLS,
    FROZEN,
    MONITORING_CHANGED,
    NVML_DELAY,
    NVML_ERROR,
    OWNERS,
    TICKED,
)
from faults.gpu.levers import LeverKind, LeverTable, Row
from faults.gpu.nameplate import nameplate
from faults.gpu.nodefile import NodeFile
from faults.gpu.ownertable import OwnerTable
from faults.gpu.simlinks import SimLinks
from faults.gpu.telemetry import (
    NVLINKS_MAX,
    CardInfo,
    EventType,
    Monitoring,
    Throttle,
)
from faults.gpu.topology import bandwidth, compute, pcie

MONITORING = {LeverKind.NVML_DELAY_S: NVML_DELAY, LeverKind.NVML_ERROR: NVML_ERROR, LeverKind.FROZEN: FROZEN}
RATES = {
    LeverKind.PCIE_REPLAYS_PER_S: ("pcie_replays",),
    LeverKind.NVLINK_CRC_PER_S: ("nvlink_crc_errors",),
    LeverKind.NVLINK_REPLAYS_PER_S: ("nvlink_replays", "nvlink_recoveries"),
    LeverKind.ECC_CORRECTED_PER_S: ("ecc_corrected", "ecc_corrected_volatile"),
}
WINDOW_S = 0.1  # use and throughput are weighted means of about so long
_INFO = [field.name for field in fields(CardInfo)]
_POWER, _HEAT = Throttle.SW_POWER_CAP | Throttle.HW_POWER_BRAKE, Throttle.HW_THERMAL | Throttle.SW_THERMAL


class SimCards:
    """Telemetry of all cards, in the node's file. `info` and the like may be called without `writing`."""

    def __init__(self, file: NodeFile, owners: OwnerTable, links: SimLinks) -> None:
        self._file = file
        self._owners = owners
        self._links = links
        self.levers = LeverTable(file)
        self.events = EventRing(file)
        self._seen: dict[
            int, tuple[float, dict[int, float]]
        ] = {}  # by card: when, and its owners' work by then

    def begin(self) -> None:
        """What never changes, or starts at something other than 0, of a new node's cards."""
        for each in range(self._file.cards):
            for name, value in nameplate(self._file.profile).items():
                self._file.set_card_field(each, name, value)
            peers = self._file.wiring.peers[each]
            for place in range(NVLINKS_MAX):
                peer = peers[place] if place < len(peers) else -2
                self._file.set_card_field(each, f"nvlink_peer_{place}", peer)

    def changed(self, rows: Iterable[Row], now: float) -> None:
        """Levers came or went: say so on the cards that they are on, and have the node follow."""
        for row in rows:
            if row.kind in MONITORING:
                continue
            on_link = row.kind == LeverKind.LINK_FACTOR
            cards = self._file.wiring.ends(self._links.names[row.target]) if on_link else (row.target,)
            for card in cards:
                self._file.set_card_field(card, "changed_s", now)
        self.follow(now)

    def follow(self, now: float) -> None:
        """Everything that can be derived from the levers, as of now."""
        conditions, d = Conditions(self.levers.rows()), self._file.d
        for kind, cell in MONITORING.items():
            if d[cell] != conditions.most(kind):
                d[cell], d[MONITORING_CHANGED] = conditions.most(kind), now
        speeds = [self._follow(card, conditions) for card in range(self._file.cards)]
        self._links.set_capacities(capacities(self._file.wiring, conditions, speeds), now)
        for card in range(self._file.cards):
            self._file.set_card_field(card, "nvlink_share", self._weakest(card))
        self._show()

    def tick(self, now: float) -> None:
        """Let the time since the last tick count."""
        d = self._file.d
        dt, d[TICKED] = (now - d[TICKED] if d[TICKED] else 0.0), now
        conditions = Conditions(self.levers.rows())
        for card in range(self._file.cards):
            if dt > 0:
                self._tick(card, conditions, dt, now)
        self.follow(now)

    def report(self, card: int, xid: int) -> None:
        """An Xid of a card."""
        self.events.add(card, EventType.XID, xid)
        self._file.set_card_field(card, "last_xid", xid)
        self._show()

    def count(self, card: int, counts: dict[str, float]) -> None:
        """Add to counters of a card."""
        for field, more in counts.items():
            self._file.set_card_field(card, field, self._file.card_field(card, field) + more)
        self._show()

    def info(self, card: int) -> CardInfo:
        """One card as it is."""
        at = self._file.layout.true_card(card)
        return CardInfo(*self._file.d[at : at + len(_INFO)].tolist())

    def shown(self, card: int) -> CardInfo:
        """One card as monitoring shows it."""
        at = self._file.layout.card(card)
        return CardInfo(*self._file.d[at : at + len(_INFO)].tolist())

    def monitoring(self) -> Monitoring:
        """What monitoring has to put up with."""
        d = self._file.d
        return Monitoring(d[NVML_DELAY], int(d[NVML_ERROR]), bool(d[FROZEN]), d[MONITORING_CHANGED])

    def _follow(self, card: int, conditions: Conditions) -> tuple[float, float]:
        """The shares of their full clocks that a card's SMs and memory run at."""
        file, profile = self._file, self._file.profile
        was_hot = bool(int(file.card_field(card, "throttle")) & _HEAT)
        sm_mhz, mem_mhz, why = clocks(
            card, profile, conditions, file.card_field(card, "temperature_c"), was_hot
        )
        gen, width, _ = pcie_link(card, profile, conditions)
        up = active_nvlinks(card, file.wiring, conditions)
        settings = {
            "lost": conditions.most(LeverKind.LOST, card),
            "sm_clock_mhz": sm_mhz,
            "mem_clock_mhz": mem_mhz,
            "throttle": why,
            "power_limit_w": conditions.least(LeverKind.POWER_CAP_W, card, profile.power_w),
            "pcie_gen": gen,
            "pcie_width": width,
            "remap_pending": conditions.most(LeverKind.REMAP_PENDING, card),
            "recovery_action": conditions.most(LeverKind.RECOVERY_ACTION, card),
            "nvlinks_active": sum(1 << place for place, is_up in enumerate(up) if is_up),
        }
        for name, value in settings.items():
            file.set_card_field(card, name, value)
        return sm_mhz / profile.sm_clock_mhz, mem_mhz / profile.mem_clock_mhz

    def _tick(self, card: int, conditions: Conditions, dt: float, now: float) -> None:
        file, profile, get = self._file, self._file.profile, self._file.card_field
        sm = self._share(compute(card), self._took(card, "sm_busy_s", compute(card), now), dt)
        hbm = self._share(bandwidth(card), self._took(card, "hbm_busy_s", bandwidth(card), now), dt)
        # A kernel that can't go on, such as a collective that waits for an absent rank, runs nevertheless.
        util = 1.0 if self._is_stuck(card) else min(1.0, sm + hbm)
        power_w, temperature_c = warmth(
            profile,
            util,
            get(card, "sm_clock_mhz") / profile.sm_clock_mhz,
            get(card, "power_limit_w"),
            conditions.most(LeverKind.HEAT_C, card),
            get(card, "temperature_c"),
            dt,
        )
        why = int(get(card, "throttle"))
        latest = {
            "gpu_util_percent": 100 * util,
            "mem_util_percent": 100 * hbm,
            "pcie_tx_bytes_per_s": self._took(card, "pcie_tx_bytes", pcie(card, "d2h"), now) / dt,
            "pcie_rx_bytes_per_s": self._took(card, "pcie_rx_bytes", pcie(card, "h2d"), now) / dt,
        }
        weight = min(1.0, dt / WINDOW_S)
        figures = {
            name: get(card, name) + (value - get(card, name)) * weight for name, value in latest.items()
        }
        figures |= {
            "power_w": power_w,
            "energy_j": get(card, "energy_j") + power_w * dt,
            "temperature_c": temperature_c,
            "throttled_power_s": get(card, "throttled_power_s") + dt * bool(why & _POWER),
            "throttled_thermal_s": get(card, "throttled_thermal_s") + dt * bool(why & _HEAT),
            "used_bytes": (profile.pages - file.pages[card].free) * profile.page_bytes,
        }
        for kind, counters in RATES.items():
            if rate := conditions.total(kind, card):
                figures |= {counter: get(card, counter) + rate * dt for counter in counters}
        for name, value in figures.items():
            file.set_card_field(card, name, value)
        self._credit_nvlinks(card, now)
        self._credit_owners(card, now)

    def _share(self, name: str, moved: float, dt: float) -> float:
        """The share of `dt` in which something moved over a link, at what it can move."""
        capacity = self._links.capacity(name)
        return min(1.0, moved / capacity / dt) if capacity else 0.0

    def _took(self, card: int, field: str, link: str, now: float) -> float:
        """What a link has moved since the field last said so; the field says so now."""
        before, moved = self._file.card_field(card, field), self._links.total(link, now)
        self._file.set_card_field(card, field, moved)
        return max(0.0, moved - before)

    def _credit_nvlinks(self, card: int, now: float) -> None:
        """Bytes of each physical NVLink: those of a peer's links are shared by all that are up, or were."""
        wiring = self._file.wiring
        for name in self._nvlinks_at(card):
            places = wiring.physical(card, name)
            way = "tx" if name.startswith(f"nvlink:{card}>") else "rx"
            share = self._links.total(name, now) / len(places)
            for place in places:
                self._file.set_card_field(card, f"nvlink_{way}_bytes_{place}", share)

    def _credit_owners(self, card: int, now: float) -> None:
        """The share of the time since this process last looked in which each owner's kernels ran, in %."""
        work = dict.fromkeys(range(1, OWNERS + 1), 0.0)
        for name in (compute(card), bandwidth(card)):
            if rate := self._links.capacity(name):
                for owner, moved in self._links.by_owner(name, now).items():
                    work[owner] += moved / rate
        then, before = self._seen.get(card, (now, work))
        self._seen[card] = now, work
        d, layout = self._file.d, self._file.layout
        for owner, worked in work.items():
            busy = (worked - before[owner]) / (now - then) if now > then else 0.0
            d[layout.owner_busy(card, owner)] = 100 * min(1.0, max(0.0, busy))

    def _nvlinks_at(self, card: int) -> Sequence[str]:
        ends = self._file.wiring.ends
        return [name for name in self._links.names if name.startswith("nvlink:") and card in ends(name)]

    def _is_stuck(self, card: int) -> bool:
        return any(
            self._links.flows(name) and not self._links.capacity(name)
            for name in (compute(card), bandwidth(card), *self._nvlinks_at(card))
        )

    def _weakest(self, card: int) -> float:
        """The smallest share of its nominal capacity that an NVLink of a card has."""
        shares = [
            self._links.capacity(name) / self._file.wiring.nominal(name)[0] for name in self._nvlinks_at(card)
        ]
        return min(shares, default=0.0)

    def _show(self) -> None:
        """Have monitoring see the cards as they are, unless it stands still."""
        d, layout = self._file.d, self._file.layout
        if not d[FROZEN]:
            size = CARD_CELLS * self._file.cards
            shown, true = layout.card(0), layout.true_card(0)
            d[shown : shown + size] = d[true : true + size]
