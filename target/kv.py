"""The paged KV cache of one rung: blocks of tokens, taken from slabs that are allocated on the cards.

A block is an index into the rung's KV tensors. Slabs come and go with demand, so that a neighbour who takes
the card's memory is felt as a failed allocation, as on a card that several processes share.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

SLAB_BLOCKS = 16
BLOCK_TOKENS = 16
ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class KvShape:
    """Bytes of one block on one card, and how many slabs the pool may have (`least` are never given back)."""

    block_bytes: int
    slabs_least: int
    slabs_most: int

    @property
    def slab_bytes(self) -> int:
        return SLAB_BLOCKS * aligned(self.block_bytes)

    @property
    def token_bytes(self) -> int:
        """Of the KV of one token, on one card."""
        return self.block_bytes // BLOCK_TOKENS


def aligned(nbytes: int) -> int:
    """Rounded up to whole pages of the block table."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class KvPool:
    """Blocks with reference counts. `grow` allocates a slab (and may raise), `release` gives one back."""

    def __init__(
        self, shape: KvShape, grow: Callable[[int], object], release: Callable[[object], None]
    ) -> None:
        self.shape = shape
        self._grow = grow
        self._release = release
        self._slabs: dict[int, object] = {}
        self._free: list[int] = []  # a heap: the lowest block goes first, so that high slabs drain
        self._references: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        """Take the slabs that are never given back, as far as they are missing."""
        while len(self._slabs) < self.shape.slabs_least:
            self.grow()

    @property
    def total(self) -> int:
        return len(self._slabs) * SLAB_BLOCKS

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return len(self._references)

    @property
    def blocks_most(self) -> int:
        return self.shape.slabs_most * SLAB_BLOCKS

    def grow(self) -> bool:
        """Add a slab; False at the pool's limit. Raises the device's out-of-memory error when a card is full."""
        if len(self._slabs) >= self.shape.slabs_most:
            return False
        index = next(i for i in range(self.shape.slabs_most) if i not in self._slabs)
        self._slabs[index] = self._grow(self.shape.slab_bytes)
        for block in range(index * SLAB_BLOCKS, (index + 1) * SLAB_BLOCKS):
            heapq.heappush(self._free, block)
        return True

    def allocate(self) -> int | None:
        """A block with one reference, the lowest that is free; None if none is."""
        if not self._free:
            return None
        block = heapq.heappop(self._free)
        self._references[block] = 1
        return block

    def pin(self, block: int) -> None:
        """One more reference, e.g. of a copy in flight; the block is not handed out before the last is dropped."""
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """One reference less; the last one frees the block."""
        self._references[block] -= 1
        if self._references[block] == 0:
            del self._references[block]
            heapq.heappush(self._free, block)

    def shrink(self, *, keep_free: int = 0) -> int:
        """Give back slabs without a held block, while `keep_free` blocks stay free; returns how many."""
        released = 0
        free = set(self._free)
        for index in sorted(self._slabs, reverse=True):
            blocks = set(range(index * SLAB_BLOCKS, (index + 1) * SLAB_BLOCKS))
            spare = len(free) - SLAB_BLOCKS >= keep_free
            if len(self._slabs) <= self.shape.slabs_least or not spare:
                break
            if blocks <= free:
                free -= blocks
                self._free = sorted(free)  # which is a heap
                self._release(self._slabs.pop(index))
                released += 1
        return released

    def close(self) -> None:
        """Give back every slab."""
        for handle in self._slabs.values():
            self._release(handle)
        self._slabs.clear()
        self._free.clear()
        self._references.clear()

    @property
    def fragmentation(self) -> float:
        """1 − largest contiguous free run ÷ total free; 0 with nothing free."""
        if not self._free:
            return 0.0
        longest = run = 0
        previous = -2
        for block in sorted(self._free):
            run = run + 1 if block == previous + 1 else 1
            longest, previous = max(longest, run), block
        return 1.0 - longest / len(self._free)

    def check_integrity(self) -> None:
        """AssertionError unless every block is either free or held, and nothing else is."""
        blocks = {i * SLAB_BLOCKS + j for i in self._slabs for j in range(SLAB_BLOCKS)}
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & self._references.keys(), "a block is both free and held"
        assert free | self._references.keys() == blocks, "a block is neither free nor held"
        assert all(count > 0 for count in self._references.values()), "a held block has no reference"
