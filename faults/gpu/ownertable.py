"""The node's table of owners: every page, flow and lever belongs to one of its slots.

A slot is one attachment of one process. What is reached through a slot is given back before the slot is.
"""

from __future__ import annotations

import os

from faults.gpu.layout import OWNERS
from faults.gpu.nodefile import NodeFile
from faults.gpu.owners import ROLES, Role, is_alive, start_ticks


class OwnerTable:
    """Owners by number, 1 to OWNERS. What changes it wants the file's `writing`."""

    def __init__(self, file: NodeFile, role: Role) -> None:
        self._file = file
        self._role = ROLES.index(role)
        self._mine = 0

    @property
    def mine(self) -> int:
        """This attachment's number; 0 as long as it has never held anything."""
        return self._mine

    def enter(self) -> int:
        """This attachment's number, with a slot taken if it has none; 0 if there is none left."""
        if self._mine:
            return self._mine
        q, layout, pid = self._file.q, self._file.layout, os.getpid()
        slots = self._pids()
        if 0 not in slots:
            return 0
        started = start_ticks(pid)
        if started is None:
            raise RuntimeError(f"a simulated node needs Linux's /proc, and /proc/{pid}/stat is not there")
        slot = slots.index(0)
        q[layout.owner_starts + slot] = started
        q[layout.owner_roles + slot] = self._role
        q[layout.owner_pids + slot] = pid
        self._mine = slot + 1
        return self._mine

    def leave(self, owner: int) -> None:
        """Free an owner's slot, once it holds nothing."""
        d, layout = self._file.d, self._file.layout
        for card in range(self._file.cards):
            at = layout.alloc_marks(card, owner)
            d[at] = d[at + 1] = 0.0
        self.set_error(owner, 0)
        self._file.q[layout.owner_pids + owner - 1] = 0
        if owner == self._mine:
            self._mine = 0

    def pids(self) -> dict[int, int]:
        """Process ids by owner."""
        return {slot + 1: pid for slot, pid in enumerate(self._pids()) if pid}

    def with_role(self, role: Role) -> dict[int, int]:
        """Process ids of those with a role, by owner."""
        q, at = self._file.q, self._file.layout.owner_roles
        return {owner: pid for owner, pid in self.pids().items() if ROLES[q[at + owner - 1] % 2] == role}

    def error(self, owner: int) -> int:
        """The CUDA error that an owner's context is stuck in; 0 if none."""
        return int(self._file.q[self._file.layout.owner_errors + owner - 1])

    def set_error(self, owner: int, code: int) -> None:
        """Until the owner leaves."""
        self._file.q[self._file.layout.owner_errors + owner - 1] = code

    def dead(self) -> list[int]:
        """Owners whose process is gone."""
        q, at = self._file.q, self._file.layout.owner_starts
        return [owner for owner, pid in self.pids().items() if not is_alive(pid, q[at + owner - 1])]

    def _pids(self) -> list[int]:
        at = self._file.layout.owner_pids
        return self._file.q[at : at + OWNERS].tolist()
