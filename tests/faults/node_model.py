"""What a node of two `pocket` cards must do, worked out another way than the node works it out.

Memory is a list of intervals; a link lets its flows run in steps from one end to the next; what levers add up to is
written out by hand. It knows nothing of pages, files, serial numbers or processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from faults.gpu.levers import LeverKind

CARDS, PAGES, PAGE = 2, 768, 65_536
LINKS = {
    **{f"pcie:{card}:{way}": (16e6, 20e-6, (card,)) for card in range(CARDS) for way in ("h2d", "d2h")},
    **dict.fromkeys(("nvlink:0>1", "nvlink:1>0"), (288e6, 5e-6, (0, 1))),
    **{f"{what}:{card}": (1.0, 0.0, (card,)) for card in range(CARDS) for what in ("sm", "hbm")},
}  # rate, latency, and the cards that a link touches
NAMES = list(LINKS)


@dataclass(eq=False)
class Run:
    """Contiguous pages in somebody's hands."""

    owner: int
    card: int
    first: int
    pages: int


@dataclass(eq=False)
class Copy:
    """One flow on one link."""

    owner: int
    link: str
    size: float
    began: float
    left: float
    ended: float = math.inf

    @property
    def arrives(self) -> float:
        return self.ended + LINKS[self.link][1]


@dataclass(eq=False)
class Kept:
    """One lever."""

    owner: int
    kind: LeverKind
    targets: tuple[int, ...]
    value: float


@dataclass
class Model:
    """Everything that is on the node, and what it has moved."""

    now: float
    runs: list[Run] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    total: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    moved: dict[tuple[str, int], float] = field(default_factory=dict)

    # Memory.

    def gaps(self, card: int) -> list[tuple[int, int]]:
        """Free runs of a card, as first page and length."""
        found, at = [], 0
        for run in sorted((run for run in self.runs if run.card == card), key=lambda run: run.first):
            if run.first > at:
                found.append((at, run.first - at))
            at = run.first + run.pages
        return [*found, (at, PAGES - at)] if at < PAGES else found

    def free(self, card: int) -> int:
        return sum(length for _, length in self.gaps(card)) * PAGE

    def largest(self, card: int) -> int:
        return max((length for _, length in self.gaps(card)), default=0) * PAGE

    def place(self, card: int, nbytes: int) -> int | None:
        """Where an allocation goes: the first gap that is long enough."""
        pages = math.ceil(nbytes / PAGE)
        return next((first for first, length in self.gaps(card) if length >= pages), None)

    def take(self, owner: int, card: int, nbytes: int) -> Run:
        first = self.place(card, nbytes)
        assert first is not None
        self.runs.append(Run(owner, card, first, math.ceil(nbytes / PAGE)))
        return self.runs[-1]

    # Links.

    def under_way(self, link: str) -> list[Copy]:
        return [copy for copy in self.copies if copy.link == link and copy.ended == math.inf]

    def pass_time(self, until: float) -> None:
        """Every link by itself, from one end of a copy to the next."""
        for link in NAMES:
            at = self.now
            while (active := self.under_way(link)) and (rate := self.capacity(link) / len(active)) > 0:
                step = min(until - at, min(copy.left for copy in active) / rate)
                shortest = min(copy.left for copy in active)
                for copy in active:
                    done = rate * step if copy.left > shortest or step >= until - at else copy.left
                    done = min(done, copy.left)
                    copy.left -= done
                    self.total[link] += done
                    self.moved[link, copy.owner] = self.moved.get((link, copy.owner), 0.0) + done
                at += step
                for copy in active:
                    if copy.left <= 1e-9 * max(1e-6, copy.size) and copy.size < math.inf:
                        copy.ended = at
                if at >= until:
                    break
        self.now = until

    def start(self, owner: int, link: str, size: float) -> Copy:
        self.copies.append(Copy(owner, link, size, self.now, size))
        if size == 0 and self.capacity(link):
            self.copies[-1].ended = self.now
        return self.copies[-1]

    def gone(self, owner: int) -> None:
        """An owner leaves: all that is its own goes with it."""
        self.runs = [run for run in self.runs if run.owner != owner]
        self.copies = [copy for copy in self.copies if copy.owner != owner]
        self.kept = [each for each in self.kept if each.owner != owner]
        self.moved = {key: moved for key, moved in self.moved.items() if key[1] != owner}

    # Levers.

    def values(self, kind: LeverKind, target: int) -> list[float]:
        return [each.value for each in self.kept if each.kind == kind and target in each.targets]

    def is_on(self, kind: LeverKind, card: int) -> bool:
        return bool(self.values(kind, card))

    def sm_mhz(self, card: int) -> float:
        mhz = min([1980.0, *self.values(LeverKind.SM_CLOCK_MHZ, card)])
        for watts in self.values(LeverKind.POWER_CAP_W, card):
            mhz = min(mhz, 1980 * (watts - 70) / (700 - 70))
        return min(mhz, 990.0) if self.is_on(LeverKind.POWER_BRAKE, card) else mhz

    def mem_mhz(self, card: int) -> float:
        return min([2619.0, *self.values(LeverKind.MEM_CLOCK_MHZ, card)])

    def capacity(self, link: str) -> float:
        rate, _, cards = LINKS[link]
        if any(self.is_on(kind, card) for kind in (LeverKind.LOST, LeverKind.ABSENT) for card in cards):
            return 0.0
        rate *= min([1.0, *self.values(LeverKind.LINK_FACTOR, NAMES.index(link))])
        card, kind = cards[0], link.partition(":")[0]
        if kind == "pcie":
            gen = min([5.0, *self.values(LeverKind.PCIE_GEN, card)])
            width = min([16.0, *self.values(LeverKind.PCIE_WIDTH, card)])
            lane = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938}
            return rate * lane[int(gen)] / 3.938 * width / 16 * self._left(LeverKind.PCIE_LOSS, [card])
        if kind == "nvlink":
            down = max(int(n) for card in cards for n in [0, *self.values(LeverKind.NVLINKS_DOWN, card)])
            return rate * (18 - down) / 18 * self._left(LeverKind.NVLINK_LOSS, cards)
        clock = self.sm_mhz(card) / 1980 if kind == "sm" else self.mem_mhz(card) / 2619
        return rate * clock * min([1.0, *self.values(LeverKind.SLOW_FACTOR, card)])

    def refuses(self, card: int, nbytes: int) -> bool:
        return any(nbytes >= limit for limit in self.values(LeverKind.ALLOC_LIMIT_BYTES, card))

    def _left(self, kind: LeverKind, cards: tuple[int, ...] | list[int]) -> float:
        return 1 - max([0.0, *(loss for card in cards for loss in self.values(kind, card))])
