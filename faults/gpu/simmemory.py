"""The memory of a simulated node's cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.gpu.base import AllocMark, MemoryInfo
from faults.gpu.broken import DeviceLost
from faults.gpu.nodefile import NodeFile
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.ownertable import OwnerTable


@dataclass(frozen=True)
class Allocation:
    """A contiguous run of a card's pages, in the hands of the process that asked for it."""

    card: int
    first_page: int
    pages: int
    nbytes: int  # as asked; it takes up whole pages
    label: str = ""


class SimMemory:
    """Page tables of all cards, in the node's file. Only `info` may be called without `writing`."""

    def __init__(self, file: NodeFile, owners: OwnerTable) -> None:
        self._file = file
        self._owners = owners
        self._page_bytes = file.profile.page_bytes
        self._held: set[Allocation] = set()

    def take(self, owner: int, cards: Sequence[int], nbytes: int, label: str, now: float) -> list[Allocation]:
        """The same run on each card, or DeviceOutOfMemory and nothing on any."""
        pages = -(-nbytes // self._page_bytes)
        taken: list[Allocation] = []
        for card in cards:
            self.check_lost(card)
        try:
            for card in cards:
                first = self._file.pages[card].take(owner, pages)
                if first is None:
                    raise self.out_of_memory(card, nbytes)
                taken.append(Allocation(card, first, pages, nbytes, label))
        except BaseException:
            for each in taken:
                self._file.pages[each.card].give_back(owner, each.first_page, pages)
            raise
        self._held.update(taken)
        for card in cards:
            self._mark(owner, card, now)
        return taken

    def scatter(self, owner: int, card: int, largest_bytes: int, now: float) -> int:
        """Single pages, so placed that no free run is longer than `largest_bytes`; how many."""
        pages = self._file.pages[card].scatter(owner, largest_bytes // self._page_bytes)
        self._held.update(Allocation(card, page, 1, self._page_bytes, "scattered") for page in pages)
        if pages:
            self._mark(owner, card, now)
        return len(pages)

    def give_back(self, owner: int, allocation: Allocation, now: float) -> None:
        """ValueError if it isn't held, or not by this attachment."""
        if allocation not in self._held:
            raise ValueError(f"{allocation} is not held here: freed before, or by another attachment")
        self._file.pages[allocation.card].give_back(owner, allocation.first_page, allocation.pages)
        self._held.remove(allocation)
        self._file.d[self._file.layout.memory_changed(allocation.card)] = now

    def give_back_all(self, owner: int, now: float) -> None:
        """Everything an owner holds, on all cards."""
        for card, table in enumerate(self._file.pages):
            if table.give_back_all(owner):
                self._file.d[self._file.layout.memory_changed(card)] = now
        if owner == self._owners.mine:
            self._held.clear()

    def mend(self) -> None:
        """After a writer was cut off: pages of nobody are free."""
        known = {0, *self._owners.pids()}
        for table in self._file.pages:
            for owner in set(bytes(table.cells)) - known:
                table.give_back_all(owner)

    def info(self, card: int) -> MemoryInfo:
        """One card's memory, as it is."""
        table, d, layout = self._file.pages[card], self._file.d, self._file.layout
        used: dict[int, int] = {}
        marks: dict[int, AllocMark] = {}
        for owner, pid in self._owners.pids().items():
            if held := table.held_by(owner):
                used[pid] = used.get(pid, 0) + held * self._page_bytes
                at = layout.alloc_marks(card, owner)
                if pid not in marks or d[at] >= marks[pid].at_s:
                    marks[pid] = AllocMark(d[at], int(d[at + 1]))
        return MemoryInfo(
            total_bytes=self._file.profile.memory_bytes,
            free_bytes=table.free * self._page_bytes,
            largest_free_bytes=table.largest_free * self._page_bytes,
            used_by=used,
            changed_s=d[layout.memory_changed(card)],
            marks=marks,
        )

    def check_lost(self, card: int) -> None:
        """DeviceLost if it is."""
        if self._file.card_field(card, "lost"):
            raise DeviceLost(card)

    def _mark(self, owner: int, card: int, now: float) -> None:
        """That an owner has just allocated on a card."""
        d, layout = self._file.d, self._file.layout
        at = layout.alloc_marks(card, owner)
        d[at], d[at + 1] = now, self._file.pages[card].free * self._page_bytes
        d[layout.memory_changed(card)] = now

    def out_of_memory(self, card: int, nbytes: int) -> DeviceOutOfMemory:
        """The error, as the card is now."""
        info = self.info(card)
        return DeviceOutOfMemory(
            card, nbytes, info.free_bytes, info.total_bytes, info.largest_free_bytes, dict(info.used_by)
        )
