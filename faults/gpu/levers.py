"""Conditions that owners keep a node in: a table in its file. They last until released, or their owner dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from faults.gpu.layout import LEVER_CELLS, LEVERS, LEVERS_KEPT, SERIAL
from faults.gpu.nodefile import NodeFile


class LeverKind(IntEnum):
    """What is kept. Targets are card numbers, except for links (their place) and monitoring (0)."""

    LINK_FACTOR = 1  # share of a link's nominal capacity; the smallest wins
    SM_CLOCK_MHZ = 2  # at most; the smallest wins
    MEM_CLOCK_MHZ = 3
    POWER_CAP_W = 4
    HEAT_C = 5  # added to what the card would have; the largest wins
    POWER_BRAKE = 6  # 1
    SLOW_FACTOR = 7  # share of the card's speed that is left, with clocks that look fine; the smallest wins
    PCIE_GEN = 8
    PCIE_WIDTH = 9
    PCIE_REPLAYS_PER_S = 10  # summed
    PCIE_LOSS = 11  # share of PCIe lost to replays; the largest wins
    NVLINKS_DOWN = 12  # how many of the card's links; the largest wins
    NVLINK_CRC_PER_S = 13
    NVLINK_REPLAYS_PER_S = 14
    NVLINK_LOSS = 15
    LOST = 16  # 1
    ABSENT = 17  # 1: it no longer takes part; what is sent to it or by it stands still
    ALLOC_LIMIT_BYTES = 18  # an allocation of as many or more is refused; the smallest wins
    ECC_CORRECTED_PER_S = 19
    REMAP_PENDING = 20  # 1
    RECOVERY_ACTION = 21  # the largest wins
    NVML_DELAY_S = 22  # the largest wins
    NVML_ERROR = 23  # the largest wins
    FROZEN = 24  # 1
    STOPPED_PID = 25  # the value is a process that was stopped; it goes on when the lever goes


RANGES: dict[LeverKind, tuple[float, float]] = {  # of shares; other values are 0 or more
    LeverKind.SLOW_FACTOR: (0.001, 1.0),
    LeverKind.PCIE_LOSS: (0.0, 0.999),
    LeverKind.NVLINK_LOSS: (0.0, 0.999),
    LeverKind.SM_CLOCK_MHZ: (1.0, 1e6),
    LeverKind.MEM_CLOCK_MHZ: (1.0, 1e6),
    LeverKind.PCIE_WIDTH: (1.0, 16.0),
}


@dataclass(frozen=True)
class Lever:
    """One condition, kept on one or more targets until it is released or its owner dies."""

    serial: int
    kind: LeverKind
    targets: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Row:
    """One target of one lever, as it stands in the table."""

    slot: int
    serial: int
    owner: int
    kind: int
    target: int
    value: float
    since_s: float


class LeverTable:
    """One slot for each target of each lever. Wants the file's `writing`."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file

    def add(self, owner: int, kind: LeverKind, targets: Iterable[int], value: float, now: float) -> list[Row]:
        """Its rows count from now on. RuntimeError if the table is full."""
        q, d, wanted = self._file.q, self._file.d, tuple(targets)
        free = [slot for slot, serial in enumerate(self._serials()) if serial == 0]
        if len(free) < len(wanted):
            raise RuntimeError(f"{LEVERS} conditions are kept on this node already: no more fit")
        q[SERIAL] = serial = q[SERIAL] + 1
        q[LEVERS_KEPT] += len(wanted)
        for slot, target in zip(free, wanted, strict=False):
            at = self._file.layout.lever(slot)
            q[at + 1], q[at + 2], q[at + 3], d[at + 4], d[at + 5] = owner, kind, target, value, now
            q[at] = serial  # last: now it counts
        return [row for row in self.rows() if row.serial == serial]

    def remove(self, gone: Callable[[Row], bool]) -> list[Row]:
        """Those no longer count; doing it again changes nothing."""
        rows = [row for row in self.rows() if gone(row)]
        for row in rows:
            self._file.q[self._file.layout.lever(row.slot)] = 0
        self._file.q[LEVERS_KEPT] -= len(rows)
        return rows

    def mend(self) -> None:
        """After a writer was cut off: count what is kept."""
        self._file.q[LEVERS_KEPT] = sum(serial != 0 for serial in self._serials())

    def rows(self) -> list[Row]:
        """Everything that is kept now."""
        q, d, layout = self._file.q, self._file.d, self._file.layout
        found: list[Row] = []
        if not q[LEVERS_KEPT]:
            return found
        for slot, serial in enumerate(self._serials()):
            if serial:
                at = layout.lever(slot)
                found.append(Row(slot, serial, q[at + 1], q[at + 2], q[at + 3], d[at + 4], d[at + 5]))
        return found

    def _serials(self) -> list[int]:
        at = self._file.layout.lever(0)
        return self._file.q[at : at + LEVERS * LEVER_CELLS : LEVER_CELLS].tolist()
