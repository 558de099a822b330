"""The file that several processes map."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import pytest

from faults.gpu.layout import (
    CARD_CELLS,
    CELL,
    EVENT_CELLS,
    EVENTS,
    LEVER_CELLS,
    LEVERS,
    LINK_CELLS,
    OWNERS,
    SEQUENCE,
    Layout,
)
from faults.gpu.links import ENDLESS
from faults.gpu.nodefile import NodeFileError
from faults.gpu.profiles import MIB, POCKET
from faults.gpu.sim import SimNode


@pytest.mark.parametrize("content", [b"", b"short", os.urandom(100_000), b"\0" * 500_000])
def test_a_file_that_is_no_node_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(NodeFileError, match="is not a simulated node"):
        SimNode.attach(path)
    assert path.read_bytes() == content


def test_a_node_cut_short_is_refused(path: Path) -> None:
    SimNode.create(path).close()
    os.truncate(path, 5000)
    with pytest.raises(NodeFileError, match="5000 bytes long"):
        SimNode.attach(path)


def test_a_node_of_an_unknown_profile_or_of_too_many_cards_is_refused(path: Path) -> None:
    SimNode.create(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"pocket", b"wallet", 1))
    with pytest.raises(NodeFileError, match="unknown card profile 'wallet'"):
        SimNode.attach(path)
    path.write_bytes(whole[:CELL] + struct.pack("q", 99) + whole[2 * CELL :])
    with pytest.raises(NodeFileError, match="99 cards"):
        SimNode.attach(path)


def test_a_node_that_is_not_there_and_one_that_is_are_told_apart(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SimNode.attach(path)
    with SimNode.create(path), pytest.raises(FileExistsError):
        SimNode.create(path)
    with SimNode.attach(path) as node:
        node.destroy()
    assert not path.exists()


@pytest.mark.parametrize("cards", [0, 17])
def test_a_node_has_one_to_sixteen_cards(path: Path, cards: int) -> None:
    with pytest.raises(ValueError, match="1 to 16 cards"):
        SimNode.create(path, cards=cards)
    assert not path.exists()


def test_sixteen_cards_work(path: Path) -> None:
    with SimNode.create(path, cards=16) as node:
        node.alloc_all(MIB)
        node.transfer([("nvlink:15>14", 960.0), ("pcie:15:d2h", 160.0)])
        assert len(node.links()) == 16 * 19
        assert node.memory(15).free_bytes == 47 * MIB


def test_tables_do_not_overlap() -> None:
    layout = Layout(cards=3, pages=POCKET.pages, links=12)
    ends = [
        (layout.owner_pids + OWNERS, layout.owner_starts),
        (layout.owner_starts + OWNERS, layout.owner_roles),
        (layout.owner_roles + OWNERS, layout.owner_errors),
        (layout.owner_errors + OWNERS, layout.owner_busy(0)),
        (layout.owner_busy(2, OWNERS) + 1, layout.true_owner_busy(0)),
        (layout.true_owner_busy(2, OWNERS) + 1, layout.owner_work(0)),
        (layout.owner_work(2, OWNERS) + 2, layout.alloc_marks(0, 1)),
        (layout.alloc_marks(2, OWNERS) + 2, layout.memory_changed(0)),
        (layout.memory_changed(2) + 1, layout.card(0)),
        (layout.card(2) + CARD_CELLS, layout.true_card(0)),
        (layout.true_card(2) + CARD_CELLS, layout.event(0)),
        (layout.event(EVENTS - 1) + EVENT_CELLS, layout.lever(0)),
        (layout.lever(LEVERS - 1) + LEVER_CELLS, layout.link(0)),
        (CELL * (layout.link(11) + LINK_CELLS), layout.page_bytes(0).start),
        (layout.page_bytes(2).stop, layout.size),
    ]
    assert [end for end, _ in ends] == [start for _, start in ends]


def test_what_a_writer_that_was_cut_off_left_is_mended_by_the_next(still: SimNode, path: Path) -> None:
    still.alloc(0, MIB)
    slow = still.degrade(["nvlink:0>1"], 0.5)
    file = still._file
    file.q[SEQUENCE] += 1  # as a writer that died amid its writing leaves it
    file.pages[0].take(33, 5)
    link = file.load_link(still._links.index("nvlink:0>1"))
    link.capacity = 1.0
    link.add(1, 33, ENDLESS)
    file.store_link(still._links.index("nvlink:0>1"), link)

    seen = still.link("nvlink:0>1")
    assert (seen.capacity_bytes_per_s, seen.flows) == (POCKET.nvlink_bytes_per_s / 2, 0)
    assert still.memory(0).free_bytes == 47 * MIB
    assert file.q[SEQUENCE] % 2 == 0
    still.let_go(slow)


def test_an_interrupt_amid_writing_does_not_wedge_the_node(still: SimNode) -> None:
    def interrupted() -> None:
        with still._file.writing:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    still.alloc(0, MIB)
    assert still._file.q[SEQUENCE] % 2 == 0


def test_a_reader_does_not_wait_for_a_writer_that_pauses(still: SimNode) -> None:
    seen = []
    with still._file.writing:
        still._file.q[SEQUENCE] += 1
        reader = threading.Thread(target=lambda: seen.append(still._file.consistent(lambda: 7)))
        reader.start()
        reader.join(5)
        still._file.q[SEQUENCE] += 1
    assert seen == [7]


def test_a_handle_from_before_a_fork_is_refused_after_it(node: SimNode) -> None:
    child = os.fork()
    if child == 0:
        try:
            node.alloc(0, MIB)
        except RuntimeError:
            os._exit(42)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42


def test_there_is_room_for_so_many_owners(path: Path) -> None:
    with SimNode.create(path, cards=1) as node:
        handles = [SimNode.attach(path) for _ in range(OWNERS)]
        for handle in handles:
            handle.alloc(0, 1)
        with pytest.raises(RuntimeError, match="no more fit"):
            node.alloc(0, 1)
        for handle in handles:
            handle.close()
        node.alloc(0, 1)


def test_threads_of_one_handle_do_not_trip_over_each_other(node: SimNode) -> None:
    def work() -> None:
        for _ in range(30):
            held = node.alloc(0, MIB)
            node.transfer([("nvlink:0>1", 100.0), ("nvlink:1>0", 100.0)])
            node.free(held)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert node.memory(0).free_bytes == 48 * MIB
    assert node.link("nvlink:0>1").bytes_total == pytest.approx(4 * 30 * 100.0)
    assert node.link("nvlink:0>1").flows == 0
