"""The links of a simulated node, and the flows that share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from faults.gpu.base import LinkInfo, Stream
from faults.gpu.broken import DeviceLost
from faults.gpu.layout import FLOWS, SERIAL
from faults.gpu.links import UNFINISHED, Link
from faults.gpu.nodefile import NodeFile
from faults.gpu.ownertable import OwnerTable
from faults.gpu.transfer import FlowTiming, Part, Transfer


class SimLinks:
    """All links, in the node's file. `collect` and `info` lock for themselves; the rest wants `writing`."""

    def __init__(self, file: NodeFile, owners: OwnerTable, clock: Callable[[], float]) -> None:
        self._file = file
        self._owners = owners
        self._clock = clock
        self.names = file.wiring.names
        self._index = {name: index for index, name in enumerate(self.names)}
        self._nominal = [file.wiring.nominal(name) for name in self.names]
        self._ends = [file.wiring.ends(name) for name in self.names]

    def index(self, name: str) -> int:
        """A link's place; ValueError, listing some, if there is no such link."""
        try:
            return self._index[name]
        except KeyError:
            known = ", ".join((*self.names[:2], self.names[-1]))
            raise ValueError(
                f"no link {name!r} on a node of {self._file.cards} cards; it has {known} ..."
            ) from None

    def start(self, owner: int, flows: Sequence[tuple[str, float]], now: float) -> Transfer:
        """Put flows on their links at `now`, all of them or, with an error, none."""
        file, parts, ends_s, revisable = self._file, [], now, False
        serial = file.q[SERIAL]
        file.q[SERIAL] = serial + len(flows)
        for name, nbytes in flows:
            if not nbytes >= 0:
                raise ValueError(f"can't move {nbytes} bytes over {name}")
            self._refuse_lost(self.index(name))
        try:
            for name, nbytes in flows:
                serial += 1
                index = self._index[name]
                link = self._as_of(index, now)
                if len(link.flows) == FLOWS:
                    raise RuntimeError(
                        f"{name} has {FLOWS} flows under way or not yet collected: no more fit"
                    )
                flow = link.add(serial, owner, nbytes)
                rate, latency = self._nominal[index]
                ends_s = max(ends_s, link.finish_of(flow) + latency)
                revisable = revisable or len(link.flows) > 1 or link.capacity < rate
                parts.append(Part(index, serial, name, nbytes, flow.start_s))
                file.store_link(index, link)
        except BaseException:
            self.cancel(parts, now)
            raise
        return Transfer(self, parts, ends_s, revisable)

    def collect(self, transfer: Transfer, now: float | None) -> None:
        """Bring a transfer up to date: what finished is taken off its link and timed."""
        now = self._clock() if now is None else min(now, self._clock())
        if now < transfer.ends_s and not transfer.revisable:
            return
        file, ends_s, revisable = self._file, 0.0, False
        with file.writing:
            for part in transfer.parts:
                rate, latency = self._nominal[part.link]
                if part.timing is None:
                    self._refuse_lost(part.link)
                    link = self._as_of(part.link, now)
                    flow = link.find(part.serial)
                    if flow is None:
                        raise RuntimeError(
                            f"the flow on {part.name} is gone: cancelled, or its node was closed"
                        )
                    if flow.finish_s == UNFINISHED:
                        ends_s = max(ends_s, link.finish_of(flow) + latency)
                        revisable = revisable or len(link.flows) > 1 or link.capacity < rate
                    else:
                        elapsed = flow.finish_s - part.start_s + latency
                        part.timing = FlowTiming(
                            part.name, part.nbytes, elapsed, part.nbytes / rate + latency
                        )
                        link.remove(flow)
                    file.store_link(part.link, link)
                if part.timing is not None:
                    ends_s = max(ends_s, part.start_s + part.timing.elapsed_s)
        transfer.ends_s, transfer.revisable = ends_s, revisable
        transfer.open = now < ends_s

    def cancel(self, parts: Iterable[Part], now: float) -> list[FlowTiming]:
        """Take flows off their links, finished or not; what those that were not have moved until now."""
        cut_off = []
        for part in parts:
            link = self._as_of(part.link, now)
            flow = link.find(part.serial)
            if flow is not None:
                moved = link.remove(flow)
                self._file.store_link(part.link, link)
                rate, latency = self._nominal[part.link]
                cut_off.append(FlowTiming(part.name, moved, now - part.start_s, moved / rate + latency))
        return cut_off

    def set_capacities(self, capacities: Sequence[float], now: float) -> None:
        """From `now` on links move so much a second."""
        for index, capacity in enumerate(capacities):
            if self._file.link_capacity(index) != capacity:
                link = self._as_of(index, now)
                link.set_capacity(now, capacity)
                self._file.store_link(index, link)

    def give_back_all(self, owner: int, now: float) -> None:
        """Everything an owner has on the links: flows, and its byte counters."""
        for index in range(len(self.names)):
            link = self._as_of(index, now)
            if link.forget(owner):
                self._file.store_link(index, link)

    def mend(self) -> None:
        """After a writer was cut off: nothing of nobody stays. Records are whole, so the rest is as it was."""
        known = self._owners.pids()
        for index in range(len(self.names)):
            link = self._file.load_link(index)
            owners = {flow.owner for flow in link.flows}
            owners |= {owner for owner, done in enumerate(link.done_by, 1) if done}
            if strangers := owners - known.keys():
                for owner in strangers:
                    link.forget(owner)
                self._file.store_link(index, link)

    def all_as_of(self, now: float) -> dict[str, Link]:
        """Copies of all links as of `now`, by name."""
        return {name: self._as_of(index, now) for name, index in self._index.items()}

    def info(self, name: str) -> LinkInfo:
        """One link's telemetry, brought up to now on a copy."""
        index, now = self.index(name), self._clock()
        link, pids = self._file.consistent(lambda: (self._as_of(index, now), self._owners.pids()))
        streams: dict[int, Stream] = {}
        for flow in link.active:
            pid = pids.get(flow.owner, 0)
            known = streams.get(pid, Stream(0, math.inf))
            streams[pid] = Stream(known.flows + 1, min(known.since_s, flow.start_s))
        moved: dict[int, float] = {}
        for owner, nbytes in link.bytes_by().items():
            if pid := pids.get(owner, 0):
                moved[pid] = moved.get(pid, 0.0) + nbytes
        return LinkInfo(
            nominal_bytes_per_s=self._nominal[index][0],
            capacity_bytes_per_s=link.capacity,
            bytes_total=link.bytes_total,
            bytes_by={pid: nbytes for pid, nbytes in moved.items() if nbytes},
            flows=len(link.active),
            changed_s=link.changed_s,
            streams=streams,
            read_s=link.clock_s,
        )

    def _as_of(self, index: int, now: float) -> Link:
        """A copy of a link as of `now`; what changed on the way is in the file once it is stored."""
        link = self._file.load_link(index)
        link.advance(now)
        return link

    def _refuse_lost(self, index: int) -> None:
        for card in self._ends[index]:
            if self._file.card_field(card, "lost"):
                raise DeviceLost(card)
