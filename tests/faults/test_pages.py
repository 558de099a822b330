"""The page table of one card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.gpu.pages import PageTable

PAGES = 40


def table() -> PageTable:
    return PageTable(bytearray(PAGES))


def test_the_first_run_that_fits_is_taken() -> None:
    pages = table()
    pages.take(1, 3)
    pages.take(2, 2)
    pages.take(3, 5)
    pages.give_back(2, 3, 2)
    assert pages.take(4, 3) == 10
    assert pages.take(5, 2) == 3


def test_memory_in_small_pieces_is_free_and_yet_of_no_use() -> None:
    pages = table()
    for _ in range(PAGES // 2):
        pages.take(1, 1)
        pages.take(2, 1)
    pages.give_back_all(2)
    assert (pages.free, pages.largest_free) == (PAGES // 2, 1)
    assert pages.take(3, 2) is None


def test_pages_of_others_are_not_given_back() -> None:
    pages = table()
    pages.take(1, 4)
    with pytest.raises(ValueError, match="don't all belong to owner 2"):
        pages.give_back(2, 0, 4)


@pytest.mark.parametrize(("owner", "count"), [(0, 1), (256, 1), (1, 0), (1, -1)])
def test_an_impossible_wish_is_refused(owner: int, count: int) -> None:
    with pytest.raises(ValueError, match="can't take"):
        table().take(owner, count)


steps = st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, PAGES)), max_size=60)


@given(steps)
def test_allocations_never_overlap_and_what_is_free_and_used_is_all_there_is(
    walk: list[tuple[bool, int, int]],
) -> None:
    pages, held = table(), list[tuple[int, range]]()
    for takes, owner, count in walk:
        if takes or not held:
            largest = pages.largest_free
            first = pages.take(owner, count)
            assert (first is None) == (count > largest)
            if first is not None:
                held.append((owner, range(first, first + count)))
        else:
            owner, run = held.pop(count % len(held))
            pages.give_back(owner, run.start, len(run))
        taken = [page for _, run in held for page in run]
        assert len(taken) == len(set(taken))
        assert pages.free + len(taken) == PAGES
        assert sum(pages.held_by(owner) for owner in (1, 2, 3)) == len(taken)
