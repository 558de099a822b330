"""Neighbours: other processes on the node, there to disturb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.gpu import spawn
from faults.gpu.owners import start_ticks
from faults.gpu.profiles import KIB, MIB, POCKET
from faults.gpu.sim import SimNode
from faults.gpu.spawn import NeighbourError, spawned

NVLINK = POCKET.nvlink_bytes_per_s / 3  # of one of three peers


def test_one_that_holds_leaves_what_was_asked_and_gives_it_back(node: SimNode) -> None:
    node.alloc(0, 20 * MIB)
    with node.neighbour("hold", card=0, leave_bytes=600 * KIB) as other:
        memory = node.memory(0)
        assert memory.free_bytes == 576 * KIB  # whole pages
        assert memory.used_by[other.pid] == 28 * MIB - 576 * KIB
        assert node.neighbours() == {other.pid}
        assert memory.marks[other.pid].free_bytes == 576 * KIB
    assert node.memory(0).used_by == {os.getpid(): 20 * MIB}
    assert node.neighbours() == frozenset()


def test_one_that_holds_finds_memory_in_small_pieces(node: SimNode) -> None:
    held = [node.alloc(0, 64 * KIB) for _ in range(POCKET.pages)]
    for each in held[::2]:
        node.free(each)
    with node.neighbour("hold", card=0, leave_bytes=0):
        assert node.memory(0).free_bytes == 0


def test_one_that_holds_does_not_chase(node: SimNode) -> None:
    ours = node.alloc(0, 20 * MIB)
    with node.neighbour("hold", card=0, leave_bytes=MIB):
        node.free(ours)
        time.sleep(0.05)
        assert node.memory(0).free_bytes == 21 * MIB


def test_one_that_copies_takes_its_share_both_ways(node: SimNode) -> None:
    with node.neighbour("copy", card=1, streams=3) as other:
        timings = node.transfer([("pcie:1:h2d", 32_000.0), ("pcie:1:d2h", 32_000.0)])
        assert [timing.elapsed_s for timing in timings] == pytest.approx([0.008 + 20e-6] * 2)
        assert node.link("pcie:1:d2h").streams[other.pid].flows == 3
        assert node.link("pcie:0:h2d").flows == 0
    assert node.link("pcie:1:h2d").flows == 0


def test_one_can_copy_one_way(node: SimNode) -> None:
    with node.neighbour("copy", card=0, streams=1, directions=["d2h"]):
        assert [node.link(name).flows for name in ("pcie:0:h2d", "pcie:0:d2h")] == [0, 1]


def test_it_is_undone_when_the_block_fails(node: SimNode) -> None:
    def failing() -> None:
        with node.neighbour("degrade", links=["nvlink:0>1", "nvlink:1>0"], factor=0.1):
            assert node.link("nvlink:1>0").capacity_bytes_per_s == pytest.approx(NVLINK / 10)
            raise OSError("something else")

    with pytest.raises(OSError, match="something else"):
        failing()
    assert node.link("nvlink:1>0").capacity_bytes_per_s == NVLINK


def test_one_that_was_killed_is_undone_too(node: SimNode, soon) -> None:
    with node.neighbour("hold", card=0, leave_bytes=0) as other:
        os.kill(other.pid, signal.SIGKILL)
        soon(lambda: node.memory(0).free_bytes == 48 * MIB)
    assert node.reclaim() == 0


def test_one_that_is_stuck_is_killed(node: SimNode, monkeypatch) -> None:
    monkeypatch.setattr(spawn, "_EXIT_WITHIN_S", 0.1)
    with node.neighbour("hold", card=0, leave_bytes=0) as other:
        os.kill(other.pid, signal.SIGSTOP)
    assert start_ticks(other.pid) is None
    assert node.memory(0).free_bytes == 48 * MIB


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("hold", {"card": 9, "leave_bytes": 0}, "cards 0 to 3"),
        ("degrade", {"links": ["nvlink:0>9"], "factor": 0.5}, "no link 'nvlink:0>9'"),
        ("dance", {}, "invalid choice: 'dance'"),
        ("hold", {}, "required: --card"),
    ],
)
def test_one_that_cannot_do_its_task_says_why(node: SimNode, task: str, settings, words: str) -> None:
    with pytest.raises(NeighbourError, match=words), node.neighbour(task, **settings):
        pass


def test_one_that_does_not_get_ready_is_given_up(path: Path, node: SimNode, monkeypatch) -> None:
    monkeypatch.setattr(spawn, "_READY_WITHIN_S", 0.05)
    undone = []
    with (
        node._file.writing,
        pytest.raises(NeighbourError, match=r"not ready within 0\.05 s"),
        ExitStack() as stack,
    ):
        stack.enter_context(spawned(path, "hold", {"card": 0, "leave_bytes": 0}, lambda: undone.append(1)))
    assert undone == [1]


def test_it_goes_when_its_parent_is_killed(path: Path, node: SimNode, elsewhere, soon) -> None:
    harness = elsewhere("block = node.neighbour('hold', card=0, leave_bytes=0); block.__enter__()")
    (other,) = node.neighbours()
    assert other != harness.pid
    harness.kill()
    soon(lambda: node.memory(0).free_bytes == 48 * MIB)
    soon(lambda: start_ticks(other) is None)


def test_it_goes_when_its_parent_is_killed_though_a_fork_of_it_lives(node: SimNode, elsewhere, soon) -> None:
    harness = elsewhere(
        "import os, time\n"
        "block = node.neighbour('hold', card=0, leave_bytes=0); block.__enter__()\n"
        "forked = os.fork()\n"
        "if not forked: os.close(0); os.close(1); time.sleep(4); os._exit(0)"
    )
    harness.kill()
    soon(lambda: node.memory(0).free_bytes == 48 * MIB)


def test_ctrl_c_in_the_terminal_is_not_for_it(node: SimNode) -> None:
    with node.neighbour("hold", card=0, leave_bytes=0) as other:
        assert os.getsid(other.pid) == other.pid


def test_it_imports_little() -> None:
    code = "import sys, faults.gpu.neighbour; print(' '.join(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "pydantic", "harness", "target"} & set(loaded.stdout.split())
