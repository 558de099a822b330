"""The control side of a simulated node: telemetry, and neighbours to be had. It only observes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from faults.gpu.base import LinkInfo, MemoryInfo, Neighbour
from faults.gpu.simhandle import REAP_EVERY_S, Handle
from faults.gpu.spawn import spawned
from faults.gpu.telemetry import CardInfo, Event, Monitoring


class ControlSide(Handle):
    """What the harness reads of a node; see `faults.gpu.base.Gpu`."""

    def memory(self, card: int) -> MemoryInfo:
        """One card's memory."""
        self._card(card)
        self._attend()
        return self._file.consistent(lambda: self._memory.info(card))

    def link(self, name: str) -> LinkInfo:
        """One link's capacity, counters and flows, up to now."""
        self._attend()
        return self._links.info(name)

    def links(self) -> Sequence[str]:
        """The names of all directed links, and of the cards' compute and memory bandwidth."""
        return self._links.names

    def card(self, card: int) -> CardInfo:
        """One card's clocks, power, heat, errors and counters."""
        self._card(card)
        self._attend(tick_every_s=REAP_EVERY_S)
        return self._file.consistent(lambda: self._cards.info(card))

    def shown_card(self, card: int) -> CardInfo:
        """The same, as monitoring shows it: it may stand still."""
        self._card(card)
        self._attend()
        return self._file.consistent(lambda: self._cards.shown(card))

    def events(self, after: int = 0) -> Sequence[Event]:
        """What cards reported, as far as it is kept, with a serial above `after`."""
        return self._file.consistent(lambda: self._cards.events.after(after))

    def monitoring(self) -> Monitoring:
        """What whoever asks through NVML has to put up with."""
        self._attend()
        return self._file.consistent(self._cards.monitoring)

    def context_errors(self) -> Mapping[int, int]:
        """The CUDA error that a process's context is stuck in, per process id."""
        self._attend()

        def read() -> dict[int, int]:
            return {
                pid: error
                for owner, pid in self._owners.pids().items()
                if (error := self._owners.error(owner))
            }

        return self._file.consistent(read)

    def tenants(self) -> frozenset[int]:
        """Process ids of those that hold something in order to work."""
        self._attend()
        return self._file.consistent(lambda: frozenset(self._owners.with_role("tenant").values()))

    def neighbours(self) -> frozenset[int]:
        """Process ids of those that hold something in order to disturb."""
        self._attend()
        return self._file.consistent(lambda: frozenset(self._owners.with_role("neighbour").values()))

    def neighbour(self, task: str, **settings: object) -> AbstractContextManager[Neighbour]:
        """A process that disturbs the node while the block lasts; faults.gpu.neighbour has the tasks."""
        return spawned(self.path, task, settings, gone=self.reclaim)
