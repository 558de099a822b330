"""What the service needs of its cards: the data side, as a protocol.

The engine allocates slabs of KV on every card at once, copies over PCIe, and exchanges partial sums over
NVLink. Each transfer returns device-side timings, as a pair of CUDA events would: work-based, so an idle link
has none, and a busy host does not distort them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal["h2d", "d2h"]
Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class LinkReading:
    """One transfer over one directed link: bytes, seconds it took, seconds it takes at the nominal rate."""

    link: str
    nbytes: float
    elapsed_s: float
    nominal_s: float

    @property
    def health(self) -> float:
        """Achieved ÷ nominal rate: 1 for a link that is whole and unshared."""
        return min(1.0, self.nominal_s / self.elapsed_s) if self.elapsed_s > 0 else 1.0


@dataclass(frozen=True)
class Headroom:
    """Memory of the fullest card, in bytes."""

    free_bytes: int
    total_bytes: int


class AsyncCopy(Protocol):
    """A copy under way; what it reads or writes must not be reused before it is done."""

    def readings(self) -> Sequence[LinkReading] | None:
        """Timings of every card's link once all are done; None before."""


class Kernel(Protocol):
    """What keeps every card busy while the host computes it in the cards' stead."""

    def finish(self, worked_s: float) -> None:
        """The host worked that long on it; wait for what cards that are slower than usual still owe."""

    def cancel(self) -> None: ...


class Device(Protocol):
    """The cards of one service. Sizes are per card."""

    @property
    def cards(self) -> int: ...

    @property
    def out_of_memory(self) -> type[Exception]:
        """What `alloc` raises when a card is full."""

    @property
    def broken(self) -> type[Exception]:
        """What anything raises once a card is lost or the context is stuck in an error, until `reopen`."""

    def reopen(self) -> None:
        """Give everything back and begin anew, with a new context."""

    def start_kernel(self, bound: Bound) -> Kernel:
        """From now on every card is busy with work that its compute, or its memory bandwidth, limits."""

    def alloc(self, nbytes: int, label: str) -> object:
        """The same number of bytes on every card, or on none."""

    def free(self, handle: object) -> None: ...

    def headroom(self) -> Headroom: ...

    def copy(self, direction: Direction, nbytes: int) -> Sequence[LinkReading]:
        """Copy on every card's PCIe link and wait for the slowest."""

    def start_copy(self, direction: Direction, nbytes: int) -> AsyncCopy: ...

    def exchange(self, flows: Sequence[tuple[int, int, float]]) -> Sequence[LinkReading]:
        """Move (from card, to card, bytes) over NVLink, all at once, and wait for the slowest."""
