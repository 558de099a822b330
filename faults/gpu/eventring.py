"""The latest events of a node's cards, in its file."""

from __future__ import annotations

import time

from faults.gpu.layout import EVENT_CELLS, EVENT_SERIAL, EVENTS
from faults.gpu.nodefile import NodeFile
from faults.gpu.telemetry import Event, EventType


class EventRing:
    """The last EVENTS are kept. `add` wants the file's `writing`."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file

    def add(self, card: int, event_type: EventType, data: int) -> None:
        """One more, at the present time."""
        q = self._file.q
        serial = q[EVENT_SERIAL] + 1
        at = self._file.layout.event((serial - 1) % EVENTS)
        q[at] = 0  # until it is whole
        q[at + 1], q[at + 2], q[at + 3], q[at + 4] = time.time_ns() // 1000, card, event_type, data
        q[at] = q[EVENT_SERIAL] = serial

    def after(self, serial: int) -> list[Event]:
        """Those that are kept and came after one, in order."""
        q, layout = self._file.q, self._file.layout
        cells = [q[layout.event(slot) : layout.event(slot) + EVENT_CELLS].tolist() for slot in range(EVENTS)]
        return sorted((Event(*each) for each in cells if each[0] > serial), key=lambda event: event.serial)
