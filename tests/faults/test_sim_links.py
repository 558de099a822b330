"""Links of a simulated node, as its users see them."""

from __future__ import annotations

import os
import struct

import pytest

from faults.gpu import nodefile
from faults.gpu.layout import FLOWS
from faults.gpu.links import ENDLESS
from faults.gpu.profiles import POCKET
from faults.gpu.sim import SimNode

H2D = "pcie:0:h2d"
PCIE, LATENCY = POCKET.pcie_bytes_per_s, POCKET.pcie_latency_s


def test_an_undisturbed_copy_takes_its_nominal_time(still: SimNode) -> None:
    (timing,) = still.transfer([(H2D, PCIE / 100)])
    assert timing.elapsed_s == pytest.approx(0.01 + LATENCY)
    assert timing.nominal_s == pytest.approx(0.01 + LATENCY)
    assert timing.slowdown == pytest.approx(1.0)
    assert (timing.link, timing.nbytes) == (H2D, PCIE / 100)


def test_timings_are_device_time_however_late_the_host_comes(still: SimNode, clock) -> None:
    copy = still.start([(H2D, PCIE / 100)])
    clock.now += 5.0
    assert copy.done()
    assert copy.timings[0].elapsed_s == pytest.approx(0.01 + LATENCY)


def test_timings_come_in_the_order_started_though_they_end_in_another(still: SimNode) -> None:
    timings = still.transfer([(H2D, PCIE / 10), ("nvlink:0>1", 960.0), (H2D, PCIE / 100)])
    assert [timing.link for timing in timings] == [H2D, "nvlink:0>1", H2D]
    assert [timing.elapsed_s for timing in timings] == pytest.approx(
        [0.11 + LATENCY, 960 / POCKET.nvlink_bytes_per_s + POCKET.nvlink_latency_s, 0.02 + LATENCY]
    )


def test_a_copy_is_not_done_before_its_latency_is_over(still: SimNode, clock) -> None:
    copy = still.start([(H2D, PCIE)])
    with pytest.raises(RuntimeError, match="not done"):
        _ = copy.timings
    clock.now += 1.0 + LATENCY / 2
    assert not copy.done()
    clock.now += LATENCY
    assert not copy.done(now=clock.now - LATENCY)
    assert copy.done(now=clock.now)
    assert copy.done()


def test_two_handles_share_a_link_equally(still: SimNode, path, clock) -> None:
    with SimNode.attach(path, clock=clock, sleep=clock.sleep) as other:
        theirs = other.start([(H2D, PCIE)])
        ours = still.start([(H2D, PCIE)])
        still.wait(ours)
        other.wait(theirs)
        assert ours.timings[0].elapsed_s == pytest.approx(2.0 + LATENCY)
        assert theirs.timings[0].elapsed_s == pytest.approx(2.0 + LATENCY)


def test_directions_do_not_disturb_each_other(still: SimNode) -> None:
    timings = still.transfer(
        [("pcie:0:h2d", PCIE / 10), ("pcie:0:d2h", PCIE / 10), ("pcie:1:h2d", PCIE / 10)]
    )
    assert all(timing.slowdown == pytest.approx(1.0) for timing in timings)


def test_counters_count_up_to_now_and_per_process(still: SimNode, clock) -> None:
    still.start([(H2D, ENDLESS), (H2D, PCIE / 4)])
    clock.now += 0.25
    link = still.link(H2D)
    assert link.bytes_total == pytest.approx(PCIE / 4)
    assert link.bytes_by == pytest.approx({os.getpid(): PCIE / 4})
    assert (link.flows, link.streams[os.getpid()].flows, link.streams[os.getpid()].since_s) == (2, 2, 100.0)
    clock.now += 0.75
    link = still.link(H2D)
    assert link.bytes_by == pytest.approx({os.getpid(): PCIE})
    assert (link.flows, link.read_s) == (1, clock.now)


def test_the_counters_stay_when_a_copy_is_collected_or_cancelled(still: SimNode, clock) -> None:
    still.transfer([(H2D, 5000.0)])
    endless = still.start([(H2D, ENDLESS)])
    clock.now += 1.0
    still.cancel(endless)
    clock.now += 1.0
    assert still.link(H2D).bytes_total == pytest.approx(5000.0 + PCIE)
    assert still.link(H2D).bytes_by == pytest.approx({os.getpid(): 5000.0 + PCIE})
    with pytest.raises(RuntimeError, match="cancelled"):
        endless.done()


def test_waiting_for_an_endless_flow_is_refused(still: SimNode) -> None:
    with pytest.raises(ValueError, match="endless"):
        still.wait(still.start([("nvlink:0>1", ENDLESS)]))


def test_a_degraded_link_is_slow_until_it_is_restored(still: SimNode, clock) -> None:
    clock.now = 200.0
    slow = still.degrade(["nvlink:0>1"], 0.25)
    assert still.link("nvlink:0>1").capacity_bytes_per_s == POCKET.nvlink_bytes_per_s / 4
    assert still.link("nvlink:0>1").changed_s == 200.0
    assert still.link("nvlink:1>0").capacity_bytes_per_s == POCKET.nvlink_bytes_per_s
    copy = still.start([("nvlink:0>1", POCKET.nvlink_bytes_per_s)])
    clock.now += 1.0
    still.let_go(slow)
    still.let_go(slow)
    assert still.link("nvlink:0>1").changed_s == 201.0
    still.wait(copy)
    assert copy.timings[0].elapsed_s == pytest.approx(1.75 + POCKET.nvlink_latency_s)


def test_of_two_degradations_the_stronger_wins_and_the_weaker_stays(still: SimNode) -> None:
    weak, strong = still.degrade(["nvlink:0>1"], 0.5), still.degrade(["nvlink:0>1"], 0.1)
    shares = []
    for undo in (None, strong, weak):
        if undo is not None:
            still.let_go(undo)
        link = still.link("nvlink:0>1")
        shares.append(link.capacity_bytes_per_s / link.nominal_bytes_per_s)
    assert shares == pytest.approx([0.1, 0.5, 1.0])


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.5])
def test_a_factor_that_makes_no_sense_is_refused(still: SimNode, factor: float) -> None:
    with pytest.raises(ValueError, match="share above 0"):
        still.degrade(["nvlink:0>1"], factor)


def test_an_unknown_link_and_negative_bytes_are_refused_and_nothing_is_started(still: SimNode) -> None:
    with pytest.raises(ValueError, match="no link 'nvlink:0>7'"):
        still.start([(H2D, 5.0), ("nvlink:0>7", 5.0)])
    with pytest.raises(ValueError, match="can't move -1"):
        still.start([(H2D, 5.0), (H2D, -1)])
    assert still.link(H2D).flows == 0
    with pytest.raises(ValueError, match="no link"):
        still.link("nvlink:0>0")


def test_a_link_takes_only_so_many_flows_and_a_transfer_that_does_not_fit_starts_nothing(
    still: SimNode,
) -> None:
    still.start([(H2D, ENDLESS)] * FLOWS)
    with pytest.raises(RuntimeError, match="no more fit"):
        still.start([("pcie:0:d2h", ENDLESS), (H2D, 1.0)])
    assert still.link("pcie:0:d2h").flows == 0
    assert still.link(H2D).flows == FLOWS


def test_a_full_mesh_and_two_pcie_links_a_card(still: SimNode) -> None:
    assert still.links() == (
        "pcie:0:h2d",
        "pcie:0:d2h",
        "pcie:1:h2d",
        "pcie:1:d2h",
        "nvlink:0>1",
        "nvlink:1>0",
        "sm:0",
        "hbm:0",
        "sm:1",
        "hbm:1",
    )


def test_a_writer_cut_off_before_it_stored_a_link_credits_nothing_twice(
    still: SimNode, path, clock, monkeypatch
) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    still.start([(H2D, 1000.0)])
    clock.now += 1.0
    with SimNode.attach(path, clock=clock, sleep=clock.sleep) as other:
        with monkeypatch.context() as patch:
            patch.setattr(other._file, "store_link", cut_off)
            with pytest.raises(KeyboardInterrupt):
                other.start([(H2D, 5.0)])
        for _ in range(2):
            link = still.link(H2D)
            assert link.bytes_total == pytest.approx(1000.0)
            assert sum(link.bytes_by.values()) == pytest.approx(1000.0)
            still.reclaim()


def test_what_others_moved_is_not_counted_again_when_an_owner_leaves(still: SimNode, path, clock) -> None:
    still.start([(H2D, 1000.0)])
    clock.now += 1.0
    for _ in range(3):
        with SimNode.attach(path, clock=clock, sleep=clock.sleep) as other:
            other.alloc(0, 1)
    assert still.link(H2D).bytes_by == pytest.approx({os.getpid(): 1000.0})


def test_endless_copies_that_share_a_link_are_never_done(still: SimNode, clock) -> None:
    copies = [still.start([(H2D, ENDLESS)]) for _ in range(2)]
    clock.now += 1.0
    assert [copy.done() for copy in copies] == [False, False]


def test_mending_moves_nothing(still: SimNode, clock) -> None:
    first = still.start([(H2D, 1000.0)])
    clock.now += 500 / PCIE
    second = still.start([(H2D, 1000.0)])  # joins when 500 bytes were served
    clock.now += 1.0  # both are over, and nobody has collected them
    still.start([(H2D, ENDLESS)])
    before = still.link(H2D).bytes_total
    with pytest.raises(KeyboardInterrupt), still._file.writing:
        raise KeyboardInterrupt
    still.reclaim()  # mends
    assert still.link(H2D).bytes_total == pytest.approx(before)
    assert first.done()
    assert second.done()


class CutOff:
    """Writes only the first cells of a record, as a process that is killed amid it."""

    def __init__(self, whole: struct.Struct, cells: int) -> None:
        self._whole, self._bytes = whole, 8 * cells

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)

    def pack_into(self, buffer: memoryview, at: int, *cells: float) -> None:
        cut = min(self._bytes, self._whole.size)
        buffer[at : at + cut] = self._whole.pack(*cells)[:cut]
        raise KeyboardInterrupt


@pytest.mark.parametrize("cells", [0, 1, 2, 3, 4, 5, 6, 7, 40, 70, 71, 73, 76, 80, 90])
def test_a_writer_killed_amid_a_link_leaves_it_as_it_was(
    still: SimNode, path, clock, monkeypatch, cells: int
) -> None:
    still.start([(H2D, ENDLESS)])
    clock.now += 1.0
    with SimNode.attach(path, clock=clock, sleep=clock.sleep) as other:
        other.start([(H2D, 1000.0)])
        clock.now += 0.001
        with monkeypatch.context() as patch:
            patch.setattr(nodefile, "_LINKS", [CutOff(each, cells) for each in nodefile._LINKS])
            with pytest.raises(KeyboardInterrupt):
                other.start([(H2D, 5.0)])
        still.reclaim()
        link = still.link(H2D)
        assert link.bytes_total == pytest.approx(PCIE * 1.001)
        assert link.flows in (1, 2)
