"""Who keeps which link slow: a table in the node's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.gpu.layout import DEGRADATION_CELLS, DEGRADATIONS, SERIAL
from faults.gpu.nodefile import NodeFile


@dataclass(frozen=True)
class Degradation:
    """Links kept at `factor` of their nominal capacity, until it is restored or its owner dies."""

    serial: int
    links: tuple[str, ...]
    factor: float


class DegradationTable:
    """One slot for each link of each degradation. Wants the file's `writing`."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file

    def add(self, owner: int, links: Sequence[int], factor: float) -> int:
        """Its serial number. RuntimeError if the table is full."""
        q, d = self._file.q, self._file.d
        free = [slot for slot, serial in enumerate(self._serials()) if serial == 0]
        if len(free) < len(links):
            raise RuntimeError(f"{DEGRADATIONS} links are kept slow on this node already: no more fit")
        q[SERIAL] = serial = q[SERIAL] + 1
        for slot, link in zip(free, links, strict=False):
            at = self._file.layout.degradation(slot)
            q[at + 1], q[at + 2], d[at + 3] = owner, link, factor
            q[at] = serial  # last: now it counts
        return serial

    def remove(self, serial: int) -> None:
        """It counts no longer; doing it again changes nothing."""
        for slot, each in enumerate(self._serials()):
            if each == serial:
                self._file.q[self._file.layout.degradation(slot)] = 0

    def remove_all(self, owner: int) -> None:
        """None of an owner's count any longer."""
        q = self._file.q
        for slot, serial in enumerate(self._serials()):
            at = self._file.layout.degradation(slot)
            if serial and q[at + 1] == owner:
                q[at] = 0

    def factors(self) -> dict[int, float]:
        """The smallest factor on each link that has any."""
        q, d, smallest = self._file.q, self._file.d, dict[int, float]()
        for slot, serial in enumerate(self._serials()):
            if serial:
                at = self._file.layout.degradation(slot)
                smallest[q[at + 2]] = min(smallest.get(q[at + 2], 1.0), d[at + 3])
        return smallest

    def _serials(self) -> list[int]:
        at = self._file.layout.degradation(0)
        return self._file.q[at : at + DEGRADATIONS * DEGRADATION_CELLS : DEGRADATION_CELLS].tolist()
