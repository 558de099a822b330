"""A simulated node of GPU cards that several processes share.

Its state is one file that each process maps; an owner that dies, however it dies, gives back what it held.
The service and its neighbours use the data side (alloc, transfer, keep), the harness the control side
(memory, link, card, neighbour). Times are seconds of CLOCK_MONOTONIC, or of the clock it was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from faults.gpu.nodefile import NodeFile
from faults.gpu.owners import Role
from faults.gpu.profiles import profile
from faults.gpu.simcontrol import ControlSide
from faults.gpu.simdata import DataSide


class SimNode(DataSide, ControlSide):
    """One process's handle on a node. Threads may share it; after a fork, attach again."""

    @classmethod
    def create(
        cls,
        path: Path | str,
        profile_name: str = "pocket",
        cards: int = 4,
        *,
        topology: str | None = None,
        role: Role = "tenant",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> SimNode:
        """A new node, attached; wired as such cards usually are if no topology is named.

        FileExistsError if the file exists, ValueError for a bad profile, count or topology.
        """
        card = profile(profile_name)
        NodeFile.create(Path(path), card, cards, topology or card.topology)
        node = cls(path, role=role, clock=clock, sleep=sleep)
        with node._file.writing:
            node._cards.begin()
            node._cards.tick(clock())
        return node

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
