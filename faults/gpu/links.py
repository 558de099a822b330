"""One directed link: a processor-sharing server, so every active flow gets an equal share of its capacity.

Pure: it is told the time. `served` is the bytes that a flow would have got by now, had it been active ever
since the link was last idle. So a flow that joins at `served` with n bytes is finished at `served + n`,
whoever else comes and goes, and finish times are exact however late `advance` is called.
"""

from __future__ import annotations

import math

from faults.gpu.layout import OWNERS

UNFINISHED = math.inf
ENDLESS = math.inf  # the size of a stream of copies back to back, with no end


class Flow:
    """Bytes of one owner on their way over one link."""

    __slots__ = ("finish_s", "from_served", "owner", "serial", "start_s", "to_served")

    def __init__(
        self,
        serial: int,
        owner: int,
        from_served: float,
        to_served: float,
        start_s: float,
        finish_s: float = UNFINISHED,
    ) -> None:
        self.serial = serial
        self.owner = owner
        self.from_served = from_served
        self.to_served = to_served
        self.start_s = start_s
        self.finish_s = finish_s  # when its last byte left; the link's latency comes on top


class Link:
    """The state of one directed link at `clock_s`. Finished flows stay in `flows` until they are removed."""

    __slots__ = ("bytes_done", "capacity", "changed_s", "clock_s", "done_by", "flows", "served")

    def __init__(
        self,
        flows: list[Flow],
        capacity: float,
        clock_s: float = 0.0,
        served: float = 0.0,
        bytes_done: float = 0.0,
        changed_s: float = 0.0,
        done_by: list[float] | None = None,
    ) -> None:
        self.capacity = capacity
        self.clock_s = clock_s
        self.served = served
        self.bytes_done = bytes_done  # of flows that are no longer active
        self.changed_s = changed_s  # when the capacity last changed
        # Bytes of flows that are no longer active, by owner, from 1 on.
        self.done_by = [0.0] * OWNERS if done_by is None else done_by
        self.flows = flows

    @property
    def active(self) -> list[Flow]:
        """The flows that still have bytes to move."""
        return [flow for flow in self.flows if flow.finish_s == UNFINISHED]

    @property
    def bytes_total(self) -> float:
        """All bytes moved until `clock_s`."""
        return self.bytes_done + sum(self.moved(flow) for flow in self.active)

    def bytes_by(self) -> dict[int, float]:
        """All bytes moved until `clock_s`, by owner."""
        found = {owner: nbytes for owner, nbytes in enumerate(self.done_by, 1) if nbytes}
        for flow in self.active:
            found[flow.owner] = found.get(flow.owner, 0.0) + self.moved(flow)
        return found

    def moved(self, flow: Flow) -> float:
        """Bytes an active flow has moved until `clock_s`."""
        return min(self.served, flow.to_served) - flow.from_served

    def advance(self, now: float) -> list[Flow]:
        """Let time pass until `now`; the flows that finished on the way, in order."""
        finished: list[Flow] = []
        if not self.flows:  # most links, most of the time
            self.served = 0.0
            if now > self.clock_s:
                self.clock_s = now
            return finished
        active = [flow for flow in self.flows if flow.finish_s == UNFINISHED]
        if active and not self.capacity:  # nothing moves
            self.clock_s = max(now, self.clock_s)
            return finished
        while active:
            first = active[0] if len(active) == 1 else min(active, key=_to_served)
            at = self.clock_s + (first.to_served - self.served) * len(active) / self.capacity
            if at > now:
                if now > self.clock_s:
                    self.served += (now - self.clock_s) * self.capacity / len(active)
                    self.clock_s = now
                return finished
            self.clock_s = first.finish_s = max(at, self.clock_s)
            self.served = first.to_served
            self._credit(first.owner, first.to_served - first.from_served)
            active.remove(first)
            finished.append(first)
        self.served = 0.0
        self.clock_s = max(now, self.clock_s)
        return finished

    def add(self, serial: int, owner: int, nbytes: float) -> Flow:
        """A new flow from `clock_s` on."""
        flow = Flow(serial, owner, self.served, self.served + nbytes, self.clock_s)
        self.flows.append(flow)
        return flow

    def remove(self, flow: Flow) -> float:
        """Take a flow off the link; the bytes it moved, if it had not finished."""
        self.flows.remove(flow)
        if flow.finish_s != UNFINISHED:
            return 0.0
        moved = self.moved(flow)
        self._credit(flow.owner, moved)
        return moved

    def forget(self, owner: int) -> bool:
        """Take everything of an owner off the link, and what is known of it; whether there was anything."""
        theirs = [flow for flow in self.flows if flow.owner == owner]
        for flow in theirs:
            self.remove(flow)
        known, self.done_by[owner - 1] = self.done_by[owner - 1], 0.0
        return bool(known or theirs)

    def find(self, serial: int) -> Flow | None:
        """The flow of that serial number, if it is here."""
        for flow in self.flows:
            if flow.serial == serial:
                return flow
        return None

    def finish_of(self, flow: Flow) -> float:
        """When a flow finishes (or did) if nobody comes, leaves early, or changes the capacity.

        UNFINISHED on a link that has none, and for a flow without end.
        """
        if flow.finish_s != UNFINISHED:
            return flow.finish_s
        if not self.capacity or flow.to_served == ENDLESS:
            return UNFINISHED
        active = [each for each in self.flows if each.finish_s == UNFINISHED]
        if len(active) == 1 and active[0] is flow:
            return self.clock_s + (flow.to_served - self.served) / self.capacity
        at, served = self.clock_s, self.served
        for sharing, each in zip(range(len(active), 0, -1), sorted(active, key=_to_served), strict=True):
            at += (each.to_served - served) * sharing / self.capacity
            served = each.to_served
            if each is flow:
                return at
        raise ValueError(f"flow {flow.serial} is not on this link")

    def set_capacity(self, now: float, capacity: float) -> None:
        """From `now` on the link moves `capacity` bytes per second."""
        self.advance(now)
        if capacity != self.capacity:
            self.capacity = capacity
            self.changed_s = now

    def _credit(self, owner: int, nbytes: float) -> None:
        self.bytes_done += nbytes
        self.done_by[owner - 1] += nbytes


def _to_served(flow: Flow) -> float:
    return flow.to_served
