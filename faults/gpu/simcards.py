"""What the cards of a simulated node show: clocks, power, heat, use and error counters, brought up to date by ticks.

A tick reads what the links have moved since the one before, lets the cards warm up or cool down, and writes what
follows. Whoever is attached ticks; a node that nobody attends is caught up with by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

from faults.gpu.conditions import (
    Conditions,
    active_nvlinks,
    capacities,
    clocks,
    pcie_link,
    weakest_nvlinks,
)
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
from faults.gpu.simlinks import SimLinks
from faults.gpu.simtick import HEAT, Tick
from faults.gpu.telemetry import NVLINKS_MAX, CardInfo, EventType, Monitoring
from faults.gpu.topology import NO_PEER, SWITCH

MONITORING = {LeverKind.NVML_DELAY_S: NVML_DELAY, LeverKind.NVML_ERROR: NVML_ERROR, LeverKind.FROZEN: FROZEN}
_INFO = [field.name for field in fields(CardInfo)]


class SimCards:
    """Telemetry of all cards, in the node's file. `info` and the like may be called without `writing`."""

    def __init__(self, file: NodeFile, links: SimLinks) -> None:
        self._file = file
        self._links = links
        self.levers = LeverTable(file)
        self.events = EventRing(file)

    def begin(self) -> None:
        """What never changes, or starts at something other than 0, of a new node's cards."""
        for card in range(self._file.cards):
            peers = self._file.wiring.peers[card]
            figures = nameplate(self._file.profile)
            figures["nvlinks_wired"] = sum(1 << place for place, peer in enumerate(peers) if peer >= SWITCH)
            for place in range(NVLINKS_MAX):
                figures[f"nvlink_peer_{place}"] = peers[place] if place < len(peers) else NO_PEER
            for name, value in figures.items():
                self._file.set_card_field(card, name, value)

    def change(self, alter: Callable[[], list[Row]], now: float) -> list[Row]:
        """Let levers come or go, say so on their cards, and have the node follow; which ones.

        The time before is accounted for first: nothing of it is charged to what comes, or spared what goes.
        """
        self._account(now)
        rows = alter()
        self._note(rows, now)
        self.follow(now)
        return rows

    def follow(self, now: float) -> None:
        """Everything that can be derived from the levers, as of now."""
        conditions, d = Conditions(self.levers.rows()), self._file.d
        for kind, cell in MONITORING.items():
            if d[cell] != conditions.most(kind):
                d[cell], d[MONITORING_CHANGED] = conditions.most(kind), now
        speeds = [self._follow(card, conditions) for card in range(self._file.cards)]
        rates = capacities(self._file.wiring, conditions, speeds)
        self._links.set_capacities(rates, now)
        for card, share in weakest_nvlinks(self._file.wiring, rates).items():
            self._file.set_card_field(card, "nvlink_share", share)
        self._show()

    def tick(self, now: float) -> None:
        """Let the time since the last tick count."""
        self._account(now)
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

    def _account(self, now: float) -> None:
        d = self._file.d
        dt, d[TICKED] = (now - d[TICKED] if d[TICKED] else 0.0), now
        if dt > 0:
            Tick(self._file, Conditions(self.levers.rows()), self._links.all_as_of(now), dt).run()

    def _note(self, rows: Iterable[Row], now: float) -> None:
        """On the cards that levers are on: when they came or went."""
        for row in rows:
            if row.kind in MONITORING:
                continue
            on_link = row.kind == LeverKind.LINK_FACTOR
            cards = self._file.wiring.ends(self._links.names[row.target]) if on_link else (row.target,)
            for card in cards:
                self._file.set_card_field(card, "changed_s", now)

    def _follow(self, card: int, conditions: Conditions) -> tuple[float, float]:
        """The shares of their full clocks that a card's SMs and memory run at."""
        file, profile = self._file, self._file.profile
        was_hot = bool(int(file.card_field(card, "throttle")) & HEAT)
        temperature_c = file.card_field(card, "temperature_c")
        sm_mhz, mem_mhz, why = clocks(card, profile, conditions, temperature_c, was_hot)
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

    def _show(self) -> None:
        """Have monitoring see the cards as they are, unless it stands still."""
        d, layout, cards = self._file.d, self._file.layout, self._file.cards
        if d[FROZEN]:
            return
        for size, shown, true in (
            (CARD_CELLS * cards, layout.card(0), layout.true_card(0)),
            (OWNERS * cards, layout.owner_busy(0), layout.true_owner_busy(0)),
        ):
            d[shown : shown + size] = d[true : true + size]
