"""Memory of a simulated node, as its users see it."""

from __future__ import annotations

import os
import pickle

import pytest

from faults.gpu.oom import DeviceOutOfMemory, size
from faults.gpu.profiles import KIB, MIB, POCKET, profile
from faults.gpu.sim import SimNode


def test_an_allocation_takes_whole_pages_and_shows_under_its_process(still: SimNode) -> None:
    still.alloc(0, 1)
    memory = still.memory(0)
    assert memory.free_bytes == 48 * MIB - 64 * KIB
    assert memory.used_by == {os.getpid(): 64 * KIB}
    assert still.memory(1).used_by == {}


def test_what_is_freed_is_free(still: SimNode) -> None:
    held = still.alloc(0, MIB)
    still.free(held)
    assert still.memory(0).free_bytes == 48 * MIB
    with pytest.raises(ValueError, match="freed before"):
        still.free(held)


def test_memory_changes_hands_at_the_moment_of_the_change(still: SimNode, clock) -> None:
    clock.now = 123.0
    held = still.alloc(1, MIB)
    assert still.memory(1).changed_s == 123.0
    assert still.memory(1).marks[os.getpid()].at_s == 123.0
    assert still.memory(1).marks[os.getpid()].free_bytes == 47 * MIB
    clock.now = 125.0
    still.free(held)
    assert still.memory(1).changed_s == 125.0
    assert still.memory(0).changed_s == 0.0


def test_running_out_says_what_cuda_says(still: SimNode) -> None:
    still.alloc(0, 48 * MIB - 576 * KIB)
    with pytest.raises(DeviceOutOfMemory) as raised:
        still.alloc(0, MIB)
    error = raised.value
    assert str(error) == (
        "Tried to allocate 1.00 MiB. GPU 0 has a total capacity of 48.00 MiB of which 576.00 KiB is free. "
        f"Process {os.getpid()} has 47.44 MiB memory in use."
    )
    assert (error.card, error.asked_bytes, error.free_bytes) == (0, MIB, 576 * KIB)
    assert (error.total_bytes, error.largest_free_bytes) == (48 * MIB, 576 * KIB)
    assert isinstance(error, MemoryError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_running_out_in_small_pieces_says_how_large_the_largest_is(still: SimNode) -> None:
    runs = [still.alloc(0, 16 * MIB) for _ in range(3)]
    still.free(runs[0])
    still.free(runs[2])
    with pytest.raises(DeviceOutOfMemory, match=r"32\.00 MiB is free \(largest free run: 16\.00 MiB\)"):
        still.alloc(0, 20 * MIB)


def test_all_cards_or_none(still: SimNode) -> None:
    still.alloc(1, 40 * MIB)
    before = still.memory(0)
    with pytest.raises(DeviceOutOfMemory, match="GPU 1"):
        still.alloc_all(10 * MIB)
    assert still.memory(0) == before
    assert [each.card for each in still.alloc_all(8 * MIB, "kv")] == [0, 1]


def test_closing_a_handle_gives_back_what_was_got_through_it(still: SimNode, path, clock) -> None:
    other = SimNode.attach(path, clock=clock)
    other.alloc(0, MIB)
    other.degrade(["nvlink:0>1"], 0.5)
    other.start([("pcie:0:h2d", 1e6)])
    other.close()
    other.close()
    assert still.memory(0).free_bytes == 48 * MIB
    assert still.link("nvlink:0>1").capacity_bytes_per_s == POCKET.nvlink_bytes_per_s
    assert still.link("pcie:0:h2d").flows == 0


def test_another_handle_cannot_free_it(still: SimNode, path, clock) -> None:
    held = still.alloc(0, MIB)
    with SimNode.attach(path, clock=clock) as other, pytest.raises(ValueError, match="another attachment"):
        other.free(held)


def test_a_card_that_is_not_there_and_no_bytes_are_refused(still: SimNode) -> None:
    with pytest.raises(ValueError, match="cards 0 to 1"):
        still.alloc(2, MIB)
    with pytest.raises(ValueError, match="cards 0 to 1"):
        still.memory(-1)
    with pytest.raises(ValueError, match="can't allocate 0 bytes"):
        still.alloc(0, 0)


def test_a_profile_knows_its_scale_and_an_unknown_one_is_refused_with_the_known() -> None:
    assert profile("pocket").scale == pytest.approx(80 * 1024 / 48)
    with pytest.raises(ValueError, match="known: a100-sxm-80, h100-sxm-80, h200-sxm-141, l40s, pocket"):
        profile("b300")


@pytest.mark.parametrize(
    ("nbytes", "text"), [(5, "5 bytes"), (2048, "2.00 KiB"), (3 * MIB, "3.00 MiB"), (80 * 2**30, "80.00 GiB")]
)
def test_sizes_read_as_cuda_prints_them(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
