"""The block pool: nothing is lost, nothing is handed out twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from target.kv import SLAB_BLOCKS, KvPool, KvShape, aligned


class CardFull(Exception):
    pass


class Slabs:
    """Where the pool's slabs come from."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.live: list[object] = []
        self.asked: list[int] = []

    def grow(self, nbytes: int) -> object:
        self.asked.append(nbytes)
        if len(self.live) >= self.room:
            raise CardFull
        handle = object()
        self.live.append(handle)
        return handle


def a_pool(least: int = 1, most: int = 3, slabs: Slabs | None = None) -> tuple[KvPool, Slabs]:
    slabs = slabs or Slabs()
    return KvPool(KvShape(1000, least, most), slabs.grow, slabs.live.remove), slabs


def take(pool: KvPool, count: int) -> list[int]:
    blocks = [pool.allocate() for _ in range(count)]
    assert None not in blocks
    return [block for block in blocks if block is not None]


def test_a_pool_starts_with_the_slabs_that_it_never_gives_back() -> None:
    pool, slabs = a_pool(least=2)
    assert (pool.total, pool.free, pool.held, pool.blocks_most) == (32, 32, 0, 48)
    assert slabs.asked == [16 * 1024, 16 * 1024]  # a block of 1,000 bytes takes four pages of 256
    assert pool.shrink() == 0
    assert len(slabs.live) == 2


def test_sizes_are_rounded_up_to_whole_pages() -> None:
    assert [aligned(n) for n in (1, 256, 257)] == [256, 256, 512]


def test_the_lowest_free_block_is_handed_out_first_so_that_high_slabs_drain() -> None:
    pool, _ = a_pool()
    assert take(pool, 4) == [0, 1, 2, 3]
    pool.drop(2)
    pool.drop(0)
    assert take(pool, 3) == [0, 2, 4]


def test_an_empty_pool_hands_out_none() -> None:
    pool, _ = a_pool()
    take(pool, 16)
    assert pool.allocate() is None
    assert pool.grow()
    assert pool.allocate() == 16


def test_a_pool_grows_to_its_limit_and_no_further() -> None:
    pool, slabs = a_pool(most=3)
    assert [pool.grow(), pool.grow(), pool.grow()] == [True, True, False]
    assert len(slabs.live) == 3


def test_growing_on_a_full_card_raises_and_changes_nothing() -> None:
    pool, _ = a_pool(slabs=Slabs(room=1))
    with pytest.raises(CardFull):
        pool.grow()
    assert (pool.total, pool.free) == (16, 16)
    pool.check_integrity()


def test_a_pinned_block_is_not_handed_out_before_the_last_reference_is_dropped() -> None:
    pool, _ = a_pool()
    (block,) = take(pool, 1)
    pool.pin(block)
    pool.drop(block)
    assert (pool.held, pool.free) == (1, 15)
    assert block not in take(pool, 15)
    pool.drop(block)
    assert take(pool, 1) == [block]


def test_a_free_block_can_be_neither_dropped_nor_pinned() -> None:
    pool, _ = a_pool()
    with pytest.raises(KeyError):
        pool.drop(3)
    with pytest.raises(KeyError):
        pool.pin(3)


def test_only_slabs_without_a_held_block_are_given_back() -> None:
    pool, slabs = a_pool(most=4)
    for _ in range(3):
        pool.grow()
    blocks = take(pool, 33)  # two slabs, and one block of the third
    assert pool.shrink() == 1  # the fourth
    pool.drop(blocks[32])
    for block in blocks[:16]:
        pool.drop(block)
    assert pool.shrink() == 2  # the third and the first; the second is held
    assert len(slabs.live) == 1
    pool.check_integrity()


def test_shrinking_leaves_the_free_blocks_that_it_is_asked_to_keep() -> None:
    pool, _ = a_pool(most=4)
    for _ in range(3):
        pool.grow()
    take(pool, 8)
    assert pool.shrink(keep_free=20) == 2
    assert pool.free == 24


def test_a_slab_that_was_given_back_comes_again_under_its_old_number() -> None:
    pool, _ = a_pool()
    pool.grow()
    pool.shrink()
    pool.grow()
    assert take(pool, 17)[-1] == 16


def test_fragmentation_is_the_share_of_free_blocks_outside_the_longest_run() -> None:
    pool, _ = a_pool()
    assert pool.fragmentation == 0
    blocks = take(pool, 16)
    assert pool.fragmentation == 0  # nothing is free
    for block in blocks[::2]:
        pool.drop(block)
    assert pool.fragmentation == 1 - 1 / 8
    pool.drop(blocks[1])
    assert pool.fragmentation == 1 - 3 / 9


def test_closing_gives_every_slab_back_even_with_blocks_held() -> None:
    pool, slabs = a_pool(least=2)
    take(pool, 20)
    pool.close()
    assert (slabs.live, pool.total, pool.held) == ([], 0, 0)


SPOILS: dict[str, tuple[Callable[[KvPool], object], str]] = {
    "held and free": (lambda pool: pool._free.append(0), "both free and held"),
    "free twice": (lambda pool: pool._free.append(3), "free twice"),
    "lost": (lambda pool: pool._free.remove(5), "neither free nor held"),
    "without a reference": (lambda pool: pool._references.update({0: 0}), "no reference"),
    "of no slab": (lambda pool: pool._free.append(99), "neither free nor held"),
}


@pytest.mark.parametrize(("spoil", "complaint"), SPOILS.values(), ids=SPOILS.keys())
def test_the_inventory_finds_a_block_that_is(spoil: Callable[[KvPool], object], complaint: str) -> None:
    pool, _ = a_pool()
    take(pool, 1)
    pool.check_integrity()
    spoil(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check_integrity()


class PoolWalk(RuleBasedStateMachine):
    """Any order of moves; `references` is what the holders believe."""

    def __init__(self) -> None:
        super().__init__()
        self.slabs = Slabs(room=4)
        self.pool, _ = a_pool(least=1, most=6, slabs=self.slabs)
        self.references: dict[int, int] = {}

    @rule()
    def allocate(self) -> None:
        block = self.pool.allocate()
        assert block not in self.references, "handed out while it is held"
        if block is not None:
            self.references[block] = 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.pin(block)
        self.references[block] += 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.drop(block)
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]

    @rule()
    def grow(self) -> None:
        try:
            self.pool.grow()
        except CardFull:
            assert len(self.slabs.live) == 4

    @rule(keep_free=st.integers(0, 40))
    def shrink(self, keep_free: int) -> None:
        free = self.pool.free
        if self.pool.shrink(keep_free=keep_free):
            assert self.pool.free >= keep_free
        else:
            assert self.pool.free == free

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity()
        assert self.pool.free + self.pool.held == self.pool.total == len(self.slabs.live) * SLAB_BLOCKS
        assert self.pool.held == len(self.references)


PoolWalk.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPoolWalk = PoolWalk.TestCase
