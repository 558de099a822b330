"""A node's state in a file that several processes map.

One writer at a time: `flock` between processes (the kernel lets go for a dead one), a lock between threads.
`writing` keeps the sequence number odd while it lasts: readers see whether they read something whole, and
the next writer sees whether the one before it was cut off, and mends what can be derived.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from faults.gpu.layout import (
    CARDS,
    CARDS_MAX,
    CELL,
    FLOW_CELLS,
    FLOWS,
    LINK_HEAD_CELLS,
    LINK_RECORD_CELLS,
    MAGIC,
    MAGIC_VALUE,
    NAME_CELLS,
    NODE_ID,
    PROFILE,
    SEQUENCE,
    Layout,
)
from faults.gpu.links import Flow, Link
from faults.gpu.pages import PageTable
from faults.gpu.profiles import CardProfile, profile
from faults.gpu.telemetry import FIELD_AT
from faults.gpu.topology import Wiring

T = TypeVar("T")

_HEAD = struct.Struct(f"{PROFILE}q" + f"{NAME_CELLS * CELL}s" * 3)
_LINKS = [struct.Struct(f"{LINK_HEAD_CELLS + FLOW_CELLS * n}d") for n in range(FLOWS + 1)]
_READ_ATTEMPTS = 8


class NodeFileError(ValueError):
    """The file is not a node this version can read."""


class NodeClosed(ValueError):
    """Somebody else closed this handle on the node."""


class NodeFile:
    """The mapped file: cells as integers `q` and doubles `d`, the page tables, and who may write."""

    def __init__(self, path: Path, mend: Callable[[], None]) -> None:
        """Map an existing node; NodeFileError if it is none. `mend` is called after a writer was cut off."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.wiring, self.layout = _read_head(self._fd, path)
            self.profile, self.cards = self.wiring.profile, self.wiring.cards
            self._map = mmap.mmap(self._fd, self.layout.size)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = memoryview(self._map)
        cells = self._bytes[: self.layout.size // CELL * CELL]
        self.q, self.d = cells.cast("q"), cells.cast("d")
        cells.release()
        self.pages = [PageTable(self._bytes[self.layout.page_bytes(card)]) for card in range(self.cards)]
        self._link_at = [self.layout.link(index) for index in range(self.layout.links)]
        self._card_at = [self.layout.true_card(card) for card in range(self.cards)]
        self.writing = _Writing(self.q, self._fd, mend)

    @classmethod
    def create(cls, path: Path, card: CardProfile, cards: int, topology: str) -> None:
        """Write a new node at `path`; FileExistsError if something is there."""
        if not 1 <= cards <= CARDS_MAX:
            raise ValueError(f"a node has 1 to {CARDS_MAX} cards, not {cards}")
        wiring = Wiring(card, cards, topology)
        head = [0] * PROFILE
        head[MAGIC], head[CARDS], head[NODE_ID] = MAGIC_VALUE, cards, secrets.randbits(62)
        head[SEQUENCE] = 1  # as if a writer had been cut off: whoever comes first derives what can be derived
        with path.open("xb") as file:
            try:
                # Reserved, not just sized: a full disk is an error now, not a bus error later.
                os.posix_fallocate(file.fileno(), 0, Layout(cards, card.pages, len(wiring.names)).size)
                names = (card.name.encode(), card.product.encode(), topology.encode())
                file.write(_HEAD.pack(*head, *names))
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        return self._fd >= 0

    def close(self) -> None:
        """Unmap; may be called again."""
        if not self.is_open:
            return
        self.writing.end()
        for view in (self.q, self.d, *(table.cells for table in self.pages), self._bytes):
            assert isinstance(view, memoryview)
            view.release()
        self._map.close()
        os.close(self._fd)
        self._fd = -1

    def consistent(self, read: Callable[[], T]) -> T:
        """What `read` reads while nobody writes; it doesn't keep writers waiting unless they never pause."""
        for _ in range(_READ_ATTEMPTS):
            before = self.q[SEQUENCE]
            if before % 2 == 0:
                with suppress(ValueError, OverflowError):  # half-written cells may make no sense
                    seen = read()
                    if self.q[SEQUENCE] == before:
                        return seen
        with self.writing:
            return read()

    def card_field(self, card: int, field: str) -> float:
        """One figure of a card's telemetry, as it is."""
        return float(self.d[self._card_at[card] + FIELD_AT[field]])

    def set_card_field(self, card: int, field: str, value: float) -> None:
        """Wants `writing`."""
        self.d[self._card_at[card] + FIELD_AT[field]] = value

    def load_link(self, index: int) -> Link:
        """A link's state, as a copy."""
        at = self._record(index)
        count = int(self.d[at])
        if not 0 <= count <= FLOWS:  # a reader came amid a write
            raise ValueError(f"link {index} can't have {count} flows")
        cells = _LINKS[count].unpack_from(self._map, at * CELL)
        flows = [
            Flow(int(cells[i]), int(cells[i + 1]), *cells[i + 2 : i + FLOW_CELLS])
            for i in range(LINK_HEAD_CELLS, len(cells), FLOW_CELLS)
        ]
        _, capacity, clock_s, served, done, changed_s, *done_by = cells[:LINK_HEAD_CELLS]
        return Link(flows, capacity, clock_s, served, done, changed_s, done_by)

    def link_capacity(self, index: int) -> float:
        """What a link moves per second, without the rest of its state."""
        return float(self.d[self._record(index) + 1])

    def store_link(self, index: int, link: Link) -> None:
        """Write a link's state: all of it or, if a crash comes in between, nothing. The last cell decides."""
        flows = link.flows
        cells = [float(len(flows)), link.capacity, link.clock_s, link.served, link.bytes_done, link.changed_s]
        cells += link.done_by
        for f in flows:
            cells += (f.serial, f.owner, f.from_served, f.to_served, f.start_s, f.finish_s)
        at = self._link_at[index]
        other = 1 - (self.q[at] & 1)
        _LINKS[len(flows)].pack_into(self._map, (at + 1 + LINK_RECORD_CELLS * other) * CELL, *cells)
        self.q[at] = other

    def _record(self, index: int) -> int:
        """Where the record of a link lies that counts."""
        at = self._link_at[index]
        return int(at + 1 + LINK_RECORD_CELLS * (self.q[at] & 1))


class _Writing:
    """The right to write, as a `with` block; not reentrant."""

    def __init__(self, q: memoryview, fd: int, mend: Callable[[], None]) -> None:
        self._q, self._fd, self._mend = q, fd, mend
        self._threads = threading.Lock()
        self._ended = False
        self._pid = os.getpid()

    def end(self) -> None:
        """Nobody may write through this handle from now on: the number of its file may soon be another's."""
        with self._threads:
            self._ended = True

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("a node attached before a fork can't be used after it: attach in each process")
        self._threads.acquire()
        try:
            if self._ended:
                raise NodeClosed("the node was closed")
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise
        try:
            if self._q[SEQUENCE] % 2 == 0:
                self._q[SEQUENCE] += 1
            else:
                self._mend()
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._threads.release()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            # Refusals (out of memory, bad arguments) come before the first write or undo what they wrote,
            # but an interrupt can come anywhere: then the next writer mends.
            if error is None or isinstance(error, Exception):
                self._q[SEQUENCE] += 1
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._threads.release()


def _read_head(fd: int, path: Path) -> tuple[Wiring, Layout]:
    """What the head says; NodeFileError if it makes no sense."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise NodeFileError(f"{path} is not a simulated node: it is only {len(head)} bytes long")
    cells = _HEAD.unpack(head)
    if cells[MAGIC] != MAGIC_VALUE:
        raise NodeFileError(f"{path} is not a simulated node of this version (it starts with {head[:8]!r})")
    cards = cells[CARDS]
    if not 1 <= cards <= CARDS_MAX:
        raise NodeFileError(f"{path} claims {cards} cards; a node has 1 to {CARDS_MAX}")
    name, _, topology = (cell.rstrip(b"\0").decode(errors="replace") for cell in cells[PROFILE:])
    try:
        wiring = Wiring(profile(name), cards, topology)
    except ValueError as error:
        raise NodeFileError(f"{path}: {error}") from error
    layout = Layout(cards, wiring.profile.pages, len(wiring.names))
    size = os.fstat(fd).st_size
    if size != layout.size:
        raise NodeFileError(f"{path} is {size} bytes long; a node of {cards} {name} cards has {layout.size}")
    return wiring, layout
