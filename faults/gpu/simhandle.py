"""One process's handle on a node's file: who it is there, and taking back what the dead held."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from faults.gpu.broken import ContextBroken
from faults.gpu.layout import OWNERS, REAPED, TICKED
from faults.gpu.levers import LeverKind, Row
from faults.gpu.nodefile import NodeFile
from faults.gpu.owners import Role
from faults.gpu.ownertable import OwnerTable
from faults.gpu.profiles import CardProfile
from faults.gpu.simcards import SimCards
from faults.gpu.simlinks import SimLinks
from faults.gpu.simmemory import SimMemory

REAP_EVERY_S = 0.02  # telemetry looks for dead owners at most this often
TICK_EVERY_S = 0.1  # and brings the cards up to date


class Handle:
    """Threads may share it; after a fork, attach again. Times are seconds of its clock."""

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
        self._cards = SimCards(self._file, self._links)

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

    def __enter__(self) -> Self:
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

    @property
    def topology(self) -> str:
        """How they are wired; one of TOPOLOGIES."""
        return self._file.wiring.topology

    def reclaim(self) -> int:
        """Take back what dead processes held; how many owners there were."""
        with self._file.writing:
            return self._reclaim()

    def tick(self) -> None:
        """Bring the cards' telemetry up to date; whoever reads it does so every now and then."""
        with self._file.writing:
            self._cards.tick(self._clock())

    def _owner(self) -> int:
        owner = self._owners.enter()
        if not owner and self._reclaim():
            owner = self._owners.enter()
        if not owner:
            raise RuntimeError(f"{OWNERS} live owners are on {self.path} already: no more fit")
        if error := self._owners.error(owner):
            raise ContextBroken(error)
        return owner

    def _card(self, card: int) -> int:
        if not 0 <= card < self.cards:
            raise ValueError(f"no card {card} on this node; it has cards 0 to {self.cards - 1}")
        return card

    def _attend(self, tick_every_s: float = TICK_EVERY_S) -> None:
        """What whoever reads telemetry does for the node first, when it is due."""
        now, d = self._clock(), self._file.d
        if abs(now - d[REAPED]) >= REAP_EVERY_S:
            self.reclaim()
        if abs(now - d[TICKED]) >= tick_every_s:
            self.tick()

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
        self._let_go(lambda row: row.owner == owner)
        self._owners.leave(owner)

    def _let_go(self, gone: Callable[[Row], bool]) -> None:
        levers = self._cards.levers
        if not any(gone(row) for row in levers.rows()):
            return
        rows = self._cards.change(lambda: levers.remove(gone), self._clock())
        kept = {row.value for row in self._cards.levers.rows() if row.kind == LeverKind.STOPPED_PID}
        for row in rows:
            if row.kind == LeverKind.STOPPED_PID and row.value not in kept:
                with contextlib.suppress(OSError):  # it is gone, or its id is another user's by now
                    os.kill(int(row.value), signal.SIGCONT)

    def _mend(self) -> None:
        """After a writer was cut off: nothing of nobody stays, and the rest follows from the levers."""
        known = self._owners.pids()
        self._memory.mend()
        self._links.mend()
        self._cards.levers.mend()
        self._let_go(lambda row: row.owner not in known)
        self._cards.follow(self._clock())
