"""The data side of a simulated node: memory, copies and kernels, and the conditions that neighbours keep it in."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from typing import ClassVar

from faults.gpu.broken import CUDA_ERRORS, ContextBroken, DeviceLost
from faults.gpu.conditions import LANE_BYTES_PER_S, Conditions
from faults.gpu.levers import RANGES, Lever, LeverKind
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.owners import is_stopped
from faults.gpu.simhandle import Handle
from faults.gpu.simmemory import Allocation
from faults.gpu.telemetry import CardInfo
from faults.gpu.transfer import FlowTiming, Transfer

_RECHECK_S = 0.005  # how long a wait that others may shorten sleeps at a stretch
_STOPS_WITHIN_S = 1.0
_SPIN_S = 1e-4  # below this a sleep would end late; above it, it is aimed this far short
_NODE_WIDE = {LeverKind.NVML_DELAY_S, LeverKind.NVML_ERROR, LeverKind.FROZEN, LeverKind.STOPPED_PID}


class DataSide(Handle):
    """What a process does with a node. DeviceLost from a card that is gone, ContextBroken from then on."""

    broken: ClassVar[tuple[type[Exception], ...]] = (DeviceLost, ContextBroken)

    def alloc(self, card: int, nbytes: int, label: str = "") -> Allocation:
        """Memory of one card, in whole pages; DeviceOutOfMemory if no free run is long enough."""
        return self._alloc([self._card(card)], nbytes, label)[0]

    def alloc_all(self, nbytes: int, label: str = "") -> list[Allocation]:
        """As much on every card, or DeviceOutOfMemory (naming the card) and nothing on any."""
        return self._alloc(range(self.cards), nbytes, label)

    def scatter(self, card: int, largest_bytes: int) -> int:
        """Take single pages of a card so that no free run is longer than `largest_bytes`; how many were taken."""
        with self._file.writing:
            owner = self._owner()
            return self._memory.scatter(owner, self._card(card), largest_bytes, self._clock())

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back; ValueError if it isn't held."""
        with self._file.writing:
            self._memory.give_back(self._owners.mine, allocation, self._clock())

    def route(self, source: int, to: int) -> tuple[str, ...]:
        """The links that bytes from one card to another go over, all at the same time."""
        return self._file.wiring.route(source, to)

    def start(self, flows: Sequence[tuple[str, float]]) -> Transfer:
        """Start copies of so many bytes (or seconds of work) on these links; ENDLESS ones go on until cancelled."""
        with self._file.writing:
            return self._links.start(self._owner(), flows, self._clock())

    def wait(self, transfer: Transfer) -> list[FlowTiming]:
        """Sleep until everything has arrived; the timings are device time, however late the host wakes up."""
        while not transfer.done():
            if transfer.revisable:
                self._attend()
                self._sleep_until(min(transfer.ends_s, self._clock() + _RECHECK_S))
            else:
                self._sleep_until(transfer.ends_s)
        return transfer.timings

    def transfer(self, flows: Sequence[tuple[str, float]]) -> list[FlowTiming]:
        """Start copies and wait for them."""
        return self.wait(self.start(flows))

    def cancel(self, transfer: Transfer) -> list[FlowTiming]:
        """Take what is left of a transfer off its links; what that has moved, and how long it took."""
        with self._file.writing:
            timings = self._links.cancel(transfer.parts, self._clock())
        transfer.cancelled = transfer.open
        return timings

    def keep(self, kind: LeverKind, targets: Sequence[int], value: float) -> Lever:
        """Keep the node in a condition until it is let go, or this process dies. ValueError if it makes no sense."""
        self._check(kind, targets, value)
        with self._file.writing:
            owner, levers, now = self._owner(), self._cards.levers, self._clock()
            rows = self._cards.change(lambda: levers.add(owner, kind, targets, value, now), now)
        return Lever(rows[0].serial, kind, tuple(targets), value)

    def let_go(self, lever: Lever) -> None:
        """Undo a condition; doing it again changes nothing."""
        with self._file.writing:
            self._let_go(lambda row: row.serial == lever.serial)

    def degrade(self, links: Sequence[str], factor: float) -> Lever:
        """Keep links at `factor` of nominal; the smallest wins."""
        return self.keep(LeverKind.LINK_FACTOR, [self._links.index(name) for name in links], factor)

    def stop_process(self, pid: int) -> Lever:
        """Stop a process (SIGSTOP); it goes on when the lever goes. RuntimeError if it doesn't stop.

        The node is held until every thread of it stands still, so that none of them can stop while it holds the node.
        """
        lever = self.keep(LeverKind.STOPPED_PID, [0], pid)
        with self._file.writing:
            os.kill(pid, signal.SIGSTOP)
            until = time.monotonic() + _STOPS_WITHIN_S
            while not is_stopped(pid):
                if time.monotonic() > until:
                    self._let_go(lambda row: row.serial == lever.serial)
                    raise RuntimeError(f"process {pid} has not stopped within {_STOPS_WITHIN_S:g} s")
                time.sleep(0.001)
        return lever

    def report(self, card: int, xid: int) -> None:
        """An Xid event of a card."""
        with self._file.writing:
            self._cards.report(self._card(card), xid)

    def count(self, card: int, **counts: float) -> None:
        """Add to counters of a card, by their names in CardInfo."""
        if unknown := counts.keys() - CardInfo.__dataclass_fields__.keys():
            raise ValueError(f"no such counters: {', '.join(sorted(unknown))}")
        with self._file.writing:
            self._cards.count(self._card(card), counts)

    def break_context(self, pid: int, error: int) -> None:
        """A process's context is stuck in a CUDA error from now on. ValueError if it isn't here."""
        if error not in CUDA_ERRORS:
            raise ValueError(f"no CUDA error {error}; known: {', '.join(map(str, CUDA_ERRORS))}")
        with self._file.writing:
            owners = [owner for owner, each in self._owners.pids().items() if each == pid]
            if not owners:
                raise ValueError(f"process {pid} holds nothing on this node")
            for owner in owners:
                self._owners.set_error(owner, error)

    def _check(self, kind: LeverKind, targets: Sequence[int], value: float) -> None:
        if kind == LeverKind.LINK_FACTOR:
            if not 0 < value <= 1:
                raise ValueError(
                    f"a degraded link keeps a share above 0 and up to 1 of its capacity, not {value}"
                )
            return
        least, most = RANGES.get(kind, (0.0, math.inf))
        if kind == LeverKind.POWER_CAP_W:
            least = self.profile.power_min_w
        if not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"{kind.name} can't be {value:g}: it goes from {least:g} to {most:g}")
        if kind == LeverKind.PCIE_GEN and value not in LANE_BYTES_PER_S:
            raise ValueError(f"no PCIe generation {value:g}; known: {', '.join(map(str, LANE_BYTES_PER_S))}")
        if kind not in _NODE_WIDE:
            for card in targets:
                self._card(card)

    def _alloc(self, cards: Sequence[int], nbytes: int, label: str) -> list[Allocation]:
        if nbytes < 1:
            raise ValueError(f"can't allocate {nbytes} bytes")
        with self._file.writing:
            owner = self._owner()
            self._refuse(cards, nbytes)
            try:
                return self._memory.take(owner, cards, nbytes, label, self._clock())
            except DeviceOutOfMemory:
                if not self._reclaim():
                    raise
            return self._memory.take(owner, cards, nbytes, label, self._clock())

    def _refuse(self, cards: Sequence[int], nbytes: int) -> None:
        """DeviceOutOfMemory, and a count of it, if an allocation of that size is made to fail on one of the cards."""
        conditions = Conditions(self._cards.levers.rows())
        for card in cards:
            if conditions.least(LeverKind.ALLOC_LIMIT_BYTES, card, math.inf) <= nbytes:
                self._memory.check_lost(card)
                self._cards.count(card, {"refused_allocs": 1})
                raise self._memory.out_of_memory(card, nbytes)

    def _sleep_until(self, then: float) -> None:
        if then == math.inf:
            raise ValueError("an endless flow never arrives: cancel it instead of waiting")
        while (left := then - self._clock()) > 0:
            self._sleep(left - _SPIN_S if left > 2 * _SPIN_S else 0.0)
