"""A node shared by processes, some of which die."""

from __future__ import annotations

import os
import signal
import time

import pytest

from faults.gpu.layout import SERIAL
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.owners import is_alive, start_ticks
from faults.gpu.profiles import MIB, POCKET
from faults.gpu.sim import SimNode

NVLINK = POCKET.nvlink_bytes_per_s / 3  # of one of three peers


def test_two_processes_see_one_node(node: SimNode, elsewhere) -> None:
    ours = node.alloc(0, 10 * MIB)
    other = elsewhere(
        "assert node.memory(0).free_bytes == 38 * 2**20\n"
        "node.alloc(0, 5 * 2**20); node.degrade(['nvlink:0>1'], 0.5)\n"
        "node.start([('pcie:1:h2d', float('inf'))])"
    )
    memory = node.memory(0)
    assert memory.used_by == {os.getpid(): 10 * MIB, other.pid: 5 * MIB}
    assert node.link("nvlink:0>1").capacity_bytes_per_s == NVLINK / 2
    assert node.link("pcie:1:h2d").streams.keys() == {other.pid}
    node.free(ours)
    assert node.memory(0).used_by == {other.pid: 5 * MIB}


def test_a_killed_owner_gives_back_memory_flows_and_degradations(node: SimNode, elsewhere, soon) -> None:
    other = elsewhere(
        "node.alloc_all(20 * 2**20); node.degrade(['nvlink:0>1'], 0.5)\n"
        "node.start([('pcie:1:h2d', float('inf'))] * 3)"
    )
    moved = node.link("pcie:1:h2d").bytes_total
    other.kill()
    soon(lambda: node.memory(0).free_bytes == 48 * MIB)  # not reaped by its parent yet: a zombie is dead
    assert node.memory(3).used_by == {}
    assert node.link("nvlink:0>1").capacity_bytes_per_s == NVLINK
    link = node.link("pcie:1:h2d")
    assert (link.flows, link.bytes_by) == (0, {})
    assert link.bytes_total >= moved  # what it moved was moved


def test_an_allocation_that_fails_looks_for_the_dead_first(node: SimNode, elsewhere) -> None:
    other = elsewhere("node.alloc(0, 40 * 2**20)")
    with pytest.raises(DeviceOutOfMemory, match=f"Process {other.pid} has 40.00 MiB"):
        node.alloc(0, 20 * MIB)
    other.kill()
    other.wait()
    node.alloc(0, 20 * MIB)


def test_reclaim_says_how_many_were_dead(node: SimNode, elsewhere) -> None:
    others = [elsewhere("node.alloc(0, 2**20)") for _ in range(2)]
    assert node.reclaim() == 0
    for other in others:
        other.kill()
        other.wait()
    assert node.reclaim() == 2
    assert node.reclaim() == 0


def test_a_wait_on_a_shared_link_ends_sooner_when_the_other_dies(node: SimNode, elsewhere) -> None:
    other = elsewhere("node.start([('pcie:0:h2d', float('inf'))] * 9)")
    copy = node.start([("pcie:0:h2d", POCKET.pcie_bytes_per_s * 0.2)])  # 2 s with the other, 0.2 s without
    other.kill()
    (timing,) = node.wait(copy)
    assert 0.2 < timing.elapsed_s < 1.5


def test_a_writer_killed_while_it_holds_the_lock_does_not_wedge_the_node(node: SimNode, elsewhere) -> None:
    node.alloc(1, MIB)
    other = elsewhere("node.alloc(0, 2**20); node._file.writing.__enter__()")
    os.kill(other.pid, signal.SIGKILL)
    node.alloc(0, 48 * MIB)
    assert node.memory(1).free_bytes == 47 * MIB


def test_killed_amid_a_storm_of_writes_the_node_stays_whole(node: SimNode, elsewhere) -> None:
    for _ in range(3):
        other = elsewhere(
            "import threading, itertools\n"
            "def storm():\n"
            "    for _ in itertools.count():\n"
            "        held = node.alloc_all(2**20); node.let_go(node.degrade(['nvlink:0>1'], 0.5))\n"
            "        node.cancel(node.start([('pcie:0:h2d', 1e5), ('nvlink:2>3', 1e4)]))\n"
            "        for each in held: node.free(each)\n"
            "threading.Thread(target=storm, daemon=True).start()"
        )
        before = node._file.q[SERIAL]
        for _ in range(100):
            node.free(node.alloc(0, MIB))
            memory = node.memory(1)
            assert memory.free_bytes + sum(memory.used_by.values()) == memory.total_bytes
            time.sleep(0.0005)
        assert node._file.q[SERIAL] > before + 10  # there was a storm
        other.kill()
        other.wait()
        node.reclaim()
        for card in range(node.cards):
            assert node.memory(card).free_bytes == 48 * MIB
        for name in node.links():
            link = node.link(name)
            assert (link.flows, link.capacity_bytes_per_s) == (0, link.nominal_bytes_per_s)


def test_a_process_is_told_from_a_later_one_with_its_id() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    assert is_alive(os.getpid(), ticks)
    assert not is_alive(os.getpid(), ticks - 1)
    assert start_ticks(2**22 + 1) is None
