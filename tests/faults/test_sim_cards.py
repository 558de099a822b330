"""What a node's cards show, over time and through the levers that processes keep."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from faults.gpu.layout import EVENTS
from faults.gpu.levers import LEVERS, LeverKind
from faults.gpu.links import ENDLESS
from faults.gpu.profiles import MIB, PROFILES
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import Throttle


@pytest.mark.parametrize("name", PROFILES)
def test_a_new_node_of_each_profile_is_cool_idle_and_whole(path, name: str) -> None:
    with SimNode.create(path, name, 2) as node:
        card, profile = node.card(1), node.profile
        assert (card.sm_clock_mhz, card.mem_clock_mhz) == (profile.sm_clock_mhz, profile.mem_clock_mhz)
        assert (card.temperature_c, card.power_w) == (profile.idle_c, pytest.approx(profile.idle_w))
        assert (card.gpu_util_percent, card.throttle, card.lost) == (0, Throttle.NONE, 0)
        assert (card.pcie_gen, card.pcie_width) == (profile.pcie_gen, profile.pcie_width)
        assert int(card.nvlinks_active).bit_count() == profile.nvlinks == card.nvlinks
        assert node.memory(1).total_bytes == profile.memory_bytes == profile.pages * profile.page_bytes


def test_a_lever_goes_with_its_owner_and_the_smallest_of_two_wins(node: SimNode, elsewhere, soon) -> None:
    ours = node.keep(LeverKind.SM_CLOCK_MHZ, [0], 1500)
    other = elsewhere(
        "from faults.gpu.levers import LeverKind; node.keep(LeverKind.SM_CLOCK_MHZ, [0, 2], 600)"
    )
    assert [node.card(card).sm_clock_mhz for card in range(3)] == [600, 1980, 600]
    before = node.card(0).changed_s
    other.kill()
    soon(lambda: node.card(0).sm_clock_mhz == 1500)
    assert node.card(0).changed_s > before
    assert node.card(2).sm_clock_mhz == 1980
    node.let_go(ours)
    node.let_go(ours)
    assert node.card(0).sm_clock_mhz == 1980


@pytest.mark.parametrize(
    ("kind", "targets", "value", "told"),
    [
        (LeverKind.SM_CLOCK_MHZ, [7], 600, "no card 7 on this node"),
        (LeverKind.SM_CLOCK_MHZ, [0], float("nan"), "SM_CLOCK_MHZ can't be nan"),
        (LeverKind.POWER_CAP_W, [0], 100, "POWER_CAP_W can't be 100: it goes from 200 to inf"),
        (LeverKind.PCIE_LOSS, [0], 2, "PCIE_LOSS can't be 2: it goes from 0 to 0.999"),
        (LeverKind.NVLINK_LOSS, [0], 1, "NVLINK_LOSS can't be 1"),
        (LeverKind.SLOW_FACTOR, [0], 0, "SLOW_FACTOR can't be 0"),
        (LeverKind.HEAT_C, [0], -1, "HEAT_C can't be -1"),
        (LeverKind.PCIE_GEN, [0], 9, "no PCIe generation 9; known: 1, 2, 3, 4, 5"),
        (LeverKind.LINK_FACTOR, [0], 0, "above 0 and up to 1"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_and_changes_nothing(
    still: SimNode, kind: LeverKind, targets: list[int], value: float, told: str
) -> None:
    before = still.card(0)
    with pytest.raises(ValueError, match=told):
        still.keep(kind, targets, value)
    assert still.card(0) == before


def test_more_levers_than_fit_are_refused_and_none_is_half_there(still: SimNode) -> None:
    kept = [still.keep(LeverKind.SM_CLOCK_MHZ, [0, 1], 1000) for _ in range(LEVERS // 2 - 1)]
    still.keep(LeverKind.SM_CLOCK_MHZ, [0], 1000)
    with pytest.raises(RuntimeError, match="1024 conditions are kept"):
        still.keep(LeverKind.SM_CLOCK_MHZ, [0, 1], 500)
    assert still.card(1).sm_clock_mhz == 1000
    still.let_go(kept[0])
    still.keep(LeverKind.SM_CLOCK_MHZ, [0, 1], 500)
    assert still.card(1).sm_clock_mhz == 500


def test_work_shows_as_use_power_heat_and_energy_and_stops_showing(still: SimNode, clock) -> None:
    still.tick()
    work = still.start([("sm:0", ENDLESS)])
    for _ in range(50):
        clock.now += 0.1
        still.tick()
    hot = still.card(0)
    assert (hot.gpu_util_percent, hot.mem_util_percent, hot.power_w) == (
        pytest.approx(100),
        0,
        pytest.approx(700),
    )
    assert hot.temperature_c == pytest.approx(65, abs=0.1)
    assert hot.energy_j == pytest.approx(700 * 5)
    assert hot.sm_busy_s == pytest.approx(5)
    still.cancel(work)
    for _ in range(50):
        clock.now += 0.1
        still.tick()
    cool = still.card(0)
    assert (cool.gpu_util_percent, cool.power_w) == (pytest.approx(0), pytest.approx(70))
    assert cool.temperature_c == pytest.approx(35, abs=0.1)
    assert cool.sm_busy_s == pytest.approx(5)


def test_heat_throttles_until_it_has_gone_and_the_time_is_counted(still: SimNode, clock) -> None:
    heat = still.keep(LeverKind.HEAT_C, [0], 60)

    def later(seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            clock.now += 0.1
            still.tick()

    later(5)
    hot = still.card(0)
    assert hot.temperature_c == pytest.approx(95, abs=0.1)
    assert (hot.sm_clock_mhz, int(hot.throttle) & Throttle.HW_THERMAL) == (990, Throttle.HW_THERMAL)
    assert 3 < hot.throttled_thermal_s < 5
    still.let_go(heat)
    later(5)
    cool = still.card(0)
    assert (cool.sm_clock_mhz, cool.throttle) == (1980, Throttle.NONE)
    later(5)
    assert still.card(0).throttled_thermal_s == cool.throttled_thermal_s


@pytest.mark.parametrize(
    ("kind", "counters"),
    [
        (LeverKind.PCIE_REPLAYS_PER_S, ["pcie_replays"]),
        (LeverKind.NVLINK_CRC_PER_S, ["nvlink_crc_errors"]),
        (LeverKind.NVLINK_REPLAYS_PER_S, ["nvlink_replays", "nvlink_recoveries"]),
        (LeverKind.ECC_CORRECTED_PER_S, ["ecc_corrected", "ecc_corrected_volatile"]),
    ],
)
def test_errors_count_up_at_their_rate_and_never_back(
    still: SimNode, clock, kind: LeverKind, counters: list[str]
) -> None:
    still.tick()
    storm = [still.keep(kind, [1], 20), still.keep(kind, [1], 5)]
    clock.now += 2
    assert [getattr(still.card(1), counter) for counter in counters] == pytest.approx([50] * len(counters))
    assert getattr(still.card(0), counters[0]) == 0
    for lever in storm:
        still.let_go(lever)
    clock.now += 2
    assert getattr(still.card(1), counters[0]) == pytest.approx(50)


def test_what_crosses_pcie_and_nvlink_is_counted_where_nvml_looks(still: SimNode, clock) -> None:
    still.tick()
    still.transfer([("pcie:0:h2d", 3e6), ("pcie:0:d2h", 1e6), ("nvlink:0>1", 9e6)])
    clock.now += 0.1
    a, b = still.card(0), still.card(1)
    assert (a.pcie_rx_bytes, a.pcie_tx_bytes) == (pytest.approx(3e6), pytest.approx(1e6))
    assert (b.pcie_rx_bytes, b.pcie_tx_bytes) == (0, 0)
    sent = [still._file.card_field(0, f"nvlink_tx_bytes_{n}") for n in range(18)]
    received = [still._file.card_field(1, f"nvlink_rx_bytes_{n}") for n in range(18)]
    assert sent == received == pytest.approx([9e6 / 18] * 18)


def test_events_are_kept_in_order_and_the_oldest_give_way(still: SimNode) -> None:
    for number in range(EVENTS + 10):
        still.report(number % 2, 31)
    still.report(1, 79)
    events = still.events()
    assert [event.serial for event in events] == list(range(12, EVENTS + 12))
    assert (events[-1].card, events[-1].data, still.card(1).last_xid, still.card(0).last_xid) == (
        1,
        79,
        79,
        31,
    )
    assert [event.data for event in still.events(after=EVENTS + 10)] == [79]
    assert abs(events[-1].at_us / 1e6 - time.time()) < 60


def test_what_monitoring_shows_can_stand_still_while_the_card_does_not(still: SimNode, clock) -> None:
    frozen = still.keep(LeverKind.FROZEN, [0], 1)
    shown = still.shown_card(0)
    still.keep(LeverKind.SM_CLOCK_MHZ, [0], 500)
    still.report(0, 79)
    clock.now += 1
    assert still.shown_card(0) == shown
    assert (still.card(0).sm_clock_mhz, still.card(0).last_xid) == (500, 79)
    assert still.monitoring().frozen
    still.let_go(frozen)
    assert still.shown_card(0).sm_clock_mhz == 500
    assert not still.monitoring().frozen


def test_a_stopped_process_goes_on_when_the_last_who_stopped_it_lets_go_or_dies(
    node: SimNode, elsewhere, soon
) -> None:
    victim = elsewhere("node.alloc(0, 2**20)")
    ours = node.stop_process(victim.pid)
    killer = elsewhere(f"node.stop_process({victim.pid})")
    soon(lambda: state_of(victim.pid) == "T")
    node.let_go(ours)
    assert state_of(victim.pid) == "T"
    os.kill(killer.pid, signal.SIGKILL)
    soon(lambda: node.reclaim() >= 0 and state_of(victim.pid) != "T")
    assert node.memory(0).used_by == {victim.pid: MIB}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_card_with_links_that_stand_still_looks_busy_and_goes_on_afterwards(still: SimNode, clock) -> None:
    still.tick()
    absent = still.keep(LeverKind.ABSENT, [1], 1)
    copy = still.start([("nvlink:0>1", 960.0)])
    for _ in range(10):
        clock.now += 0.1
        assert not copy.done()
        still.tick()
    assert still.card(0).gpu_util_percent == pytest.approx(100)
    assert still.link("nvlink:0>1").capacity_bytes_per_s == 0
    still.let_go(absent)
    assert still.wait(copy)[0].elapsed_s == pytest.approx(1.0, rel=1e-3)


def test_over_a_switch_a_copy_takes_both_ways_and_shares_each(path, clock) -> None:
    with SimNode.create(path, "h100-sxm-80", 4, clock=clock, sleep=clock.sleep) as node:
        assert node.topology == "nvswitch"
        both = [(link, 378e6) for source in (0, 1) for link in node.route(source, 2)]
        timings = {timing.link: timing.elapsed_s for timing in node.transfer(both)}
        assert timings["nvlink:0>switch"] == pytest.approx(1e-3, rel=0.01)
        assert timings["nvlink:switch>2"] == pytest.approx(2e-3, rel=0.01)


def test_what_was_before_a_lever_is_not_charged_to_it_nor_spared_it(still: SimNode, clock) -> None:
    clock.now += 60  # nobody looked
    storm = still.keep(LeverKind.ECC_CORRECTED_PER_S, [0], 100)
    heat = still.keep(LeverKind.HEAT_C, [0], 60)
    card = still.card(0)
    assert (card.ecc_corrected, card.temperature_c, card.throttle) == (0, 35, Throttle.NONE)
    clock.now += 60
    still.let_go(storm)
    still.let_go(heat)
    card = still.card(0)
    assert card.ecc_corrected == pytest.approx(6000)
    assert card.temperature_c == pytest.approx(95, abs=0.1)
    assert card.throttled_thermal_s == pytest.approx(59, abs=0.5)


@pytest.mark.parametrize("stride_s", [0.02, 0.1, 1.0, 10.0])
def test_heat_and_energy_do_not_depend_on_how_often_somebody_ticks(still: SimNode, clock, stride_s) -> None:
    still.tick()
    still.keep(LeverKind.HEAT_C, [0], 60)
    for _ in range(round(10 / stride_s)):
        clock.now += stride_s
        still.tick()
    card = still.card(0)
    assert card.temperature_c == pytest.approx(95, abs=0.1)
    assert card.throttled_thermal_s == pytest.approx(9, abs=0.2)
    assert card.energy_j == pytest.approx(700, rel=0.01)


def test_links_that_are_down_carry_nothing_and_keep_what_they_had(still: SimNode, clock) -> None:
    still.transfer([("nvlink:0>1", 18e6)])
    clock.now += 0.1
    still.keep(LeverKind.NVLINKS_DOWN, [0], 9)
    still.transfer([("nvlink:0>1", 9e6)])
    clock.now += 0.1
    still.tick()
    sent = [still._file.card_field(0, f"nvlink_tx_bytes_{n}") for n in range(18)]
    assert sent == pytest.approx([1e6] * 9 + [2e6] * 9)


def test_a_newcomers_tick_does_not_hide_who_is_busy(still: SimNode, path, clock) -> None:
    still.tick()
    still.start([("sm:0", ENDLESS)])
    clock.now += 0.2
    still.tick()
    with SimNode.attach(path, clock=clock, sleep=clock.sleep) as newcomer:
        clock.now += 0.1
        newcomer.tick()
        busy = newcomer._file.d[newcomer._file.layout.owner_busy(0, 1)]
    assert busy == pytest.approx(100)


def test_a_card_without_nvlinks_has_none_that_are_weak(path, clock) -> None:
    with SimNode.create(path, "pocket", 1, clock=clock, sleep=clock.sleep) as node:
        card = node.card(0)
        assert (card.nvlinks_wired, card.nvlinks_active, card.nvlink_share) == (0, 0, 1)


def test_a_busy_process_is_never_stopped_while_it_holds_the_node(node: SimNode, elsewhere) -> None:
    victim = elsewhere(
        "import threading\n"
        "def work():\n"
        "    while True: node.free(node.alloc(0, 2**20))\n"
        "[threading.Thread(target=work, daemon=True).start() for _ in range(3)]"
    )
    for _ in range(30):
        stopped = node.stop_process(victim.pid)
        assert state_of(victim.pid) == "T"
        node.tick()  # would wait for the process that stands still
        node.let_go(stopped)
