"""A simulated node of GPU cards that several processes share.

Its state is one file that each process maps; an owner that dies, however it dies, gives back what it held.
The service and its neighbours use the data side (alloc, transfer, degrade), the harness the control side
(memory, link, neighbour). Times are seconds of CLOCK_MONOTONIC, or of the clock it was given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from faults.gpu.base import LinkInfo, MemoryInfo, Neighbour
from faults.gpu.degradations import Degradation
from faults.gpu.layout import OWNERS, REAPED
from faults.gpu.nodefile import NodeFile
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.owners import Role
from faults.gpu.ownertable import OwnerTable
from faults.gpu.profiles import CardProfile, profile
from faults.gpu.simlinks import SimLinks
from faults.gpu.simmemory import Allocation, SimMemory
from faults.gpu.spawn import spawned
from faults.gpu.transfer import FlowTiming, Transfer

REAP_EVERY_S = 0.02  # telemetry looks for dead owners at most this often
_RECHECK_S = 0.005  # how long a wait that others may shorten sleeps at a stretch
_SPIN_S = 1e-4  # below this a sleep would end late; above it, it is aimed this far short


class SimNode:
    """One process's handle on a node. Threads may share it; after a fork, attach again."""

    def __init__(
        self,
        path: Path | str,
        *,
        role: Role = "tenant",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._file = NodeFile(Path(path).absolute(), self._mend)
        self._owners = OwnerTable(self._file, role)
        self._memory = SimMemory(self._file, self._owners)
        self._links = SimLinks(self._file, self._owners, clock)

    @classmethod
    def create(
        cls,
        path: Path | str,
        profile_name: str = "pocket",
        cards: int = 4,
        *,
        role: Role = "tenant",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> SimNode:
        """A new node, attached. FileExistsError if the file exists, ValueError for a bad profile or count."""
        NodeFile.create(Path(path), profile(profile_name), cards)
        return cls(path, role=role, clock=clock, sleep=sleep)

    @classmethod
    def attach(
        cls,
        path: Path | str,
        *,
        role: Role = "tenant",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> SimNode:
        """An existing node. FileNotFoundError if there is no file, NodeFileError if it is something else."""
        return cls(path, role=role, clock=clock, sleep=sleep)

    def close(self) -> None:
        """Give back all that was got through this handle, and let go of the file; may be called again."""
        if self._file.is_open:
            if self._owners.mine:
                with self._file.writing:
                    self._give_back_all(self._owners.mine)
            self._file.close()

    def destroy(self) -> None:
        """Close, and remove the file. Processes still attached keep what they mapped."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> SimNode:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The node's file."""
        return self._file.path

    @property
    def profile(self) -> CardProfile:
        """What its cards are like."""
        return self._file.profile

    @property
    def cards(self) -> int:
        """How many cards it has, numbered from 0."""
        return self._file.cards

    # The data side.

    def alloc(self, card: int, nbytes: int, label: str = "") -> Allocation:
        """Memory of one card, in whole pages; DeviceOutOfMemory if no free run is long enough."""
        return self._alloc([self._card(card)], nbytes, label)[0]

    def alloc_all(self, nbytes: int, label: str = "") -> list[Allocation]:
        """As much on every card, or DeviceOutOfMemory (naming the card) and nothing on any."""
        return self._alloc(range(self.cards), nbytes, label)

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back; ValueError if it isn't held."""
        with self._file.writing:
            self._memory.give_back(self._owners.mine, allocation, self._clock())

    def start(self, flows: Sequence[tuple[str, float]]) -> Transfer:
        """Start copies of so many bytes over these links; ENDLESS bytes go on until cancelled."""
        with self._file.writing:
            return self._links.start(self._owner(), flows, self._clock())

    def wait(self, transfer: Transfer) -> list[FlowTiming]:
        """Sleep until everything has arrived; the timings are device time, however late the host wakes up."""
        while not transfer.done():
            if transfer.revisable:
                self._reclaim_if_due()
                self._sleep_until(min(transfer.ends_s, self._clock() + _RECHECK_S))
            else:
                self._sleep_until(transfer.ends_s)
        return transfer.timings

    def transfer(self, flows: Sequence[tuple[str, float]]) -> list[FlowTiming]:
        """Start copies and wait for them."""
        return self.wait(self.start(flows))

    def cancel(self, transfer: Transfer) -> None:
        """Take what is left of a transfer off its links."""
        with self._file.writing:
            self._links.cancel(transfer.parts, self._clock())
        transfer.cancelled = transfer.open

    def degrade(self, links: Sequence[str], factor: float) -> Degradation:
        """Keep links at `factor` of nominal until restored or this process dies; the smallest wins."""
        with self._file.writing:
            return self._links.degrade(self._owner(), links, factor, self._clock())

    def restore(self, degradation: Degradation) -> None:
        """Undo a degradation; doing it again changes nothing."""
        with self._file.writing:
            self._links.restore(degradation, self._clock())

    # The control side.

    def memory(self, card: int) -> MemoryInfo:
        """One card's memory."""
        self._card(card)
        self._reclaim_if_due()
        return self._file.consistent(lambda: self._memory.info(card))

    def link(self, name: str) -> LinkInfo:
        """One link's capacity, counters and flows, up to now."""
        self._reclaim_if_due()
        return self._links.info(name)

    def links(self) -> Sequence[str]:
        """The names of all directed links."""
        return self._links.names

    def neighbours(self) -> frozenset[int]:
        """Process ids of those that hold something in order to disturb."""
        self._reclaim_if_due()
        return self._file.consistent(self._owners.neighbours)

    def neighbour(self, task: str, **settings: object) -> AbstractContextManager[Neighbour]:
        """A process that disturbs the node while the block lasts; faults.gpu.neighbour has the tasks."""
        return spawned(self.path, task, settings, gone=self.reclaim)

    def reclaim(self) -> int:
        """Take back what dead processes held; how many owners there were."""
        with self._file.writing:
            return self._reclaim()

    def _alloc(self, cards: Sequence[int], nbytes: int, label: str) -> list[Allocation]:
        if nbytes < 1:
            raise ValueError(f"can't allocate {nbytes} bytes")
        with self._file.writing:
            owner = self._owner()
            try:
                return self._memory.take(owner, cards, nbytes, label, self._clock())
            except DeviceOutOfMemory:
                if not self._reclaim():
                    raise
            return self._memory.take(owner, cards, nbytes, label, self._clock())

    def _owner(self) -> int:
        owner = self._owners.enter()
        if not owner and self._reclaim():
            owner = self._owners.enter()
        if not owner:
            raise RuntimeError(f"{OWNERS} live owners are on {self.path} already: no more fit")
        return owner

    def _card(self, card: int) -> int:
        if not 0 <= card < self.cards:
            raise ValueError(f"no card {card} on this node; it has cards 0 to {self.cards - 1}")
        return card

    def _reclaim_if_due(self) -> None:
        if abs(self._clock() - self._file.d[REAPED]) >= REAP_EVERY_S:
            self.reclaim()

    def _reclaim(self) -> int:
        dead = self._owners.dead()
        for owner in dead:
            self._give_back_all(owner)
        self._file.d[REAPED] = self._clock()
        return len(dead)

    def _give_back_all(self, owner: int) -> None:
        now = self._clock()
        self._memory.give_back_all(owner, now)
        self._links.give_back_all(owner, now)
        self._owners.leave(owner)

    def _mend(self) -> None:
        self._memory.mend()
        self._links.mend(self._clock())

    def _sleep_until(self, then: float) -> None:
        if then == math.inf:
            raise ValueError("an endless flow never arrives: cancel it instead of waiting")
        while (left := then - self._clock()) > 0:
            self._sleep(left - _SPIN_S if left > 2 * _SPIN_S else 0.0)
