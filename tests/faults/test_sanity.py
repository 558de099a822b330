"""The rules that every node keeps: a good reading breaks none, and each broken one is found where it is broken."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from faults.gpu import sanity
from faults.gpu.base import AllocMark, Stream
from faults.gpu.levers import LeverKind
from faults.gpu.links import ENDLESS
from faults.gpu.profiles import MIB
from faults.gpu.sanity import Allowed, Reading
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import Throttle

H2D, US = "pcie:0:h2d", os.getpid()


@pytest.fixture
def good(still: SimNode, clock) -> list[Reading]:
    """Two readings, half a second apart, of a node at work."""
    still.alloc(0, MIB)
    still.start([(H2D, ENDLESS), ("sm:0", ENDLESS)])
    still.report(1, 31)
    clock.now += 0.5
    first = sanity.take(still)
    clock.now += 0.5
    return [first, sanity.take(still)]


def broken(reading: Reading, what: str, number: int | str = 0, **fields: object) -> Reading:
    """A reading with some fields of a card, a card's memory or a link replaced."""
    if what == "links":
        link = replace(reading.links[str(number)], **fields)
        return replace(reading, links={**reading.links, str(number): link})
    rows = list(getattr(reading, what))
    rows[int(number)] = replace(rows[int(number)], **fields)
    return replace(reading, **{what: rows})


def paths(readings: list[Reading], allowed: Allowed = sanity.EXACT) -> list[str]:
    return [finding.path for finding in sanity.findings(readings, allowed)]


def test_a_node_at_work_breaks_no_rule(good: list[Reading]) -> None:
    assert sanity.findings(good) == []
    assert good[1].cards[0].gpu_util_percent == pytest.approx(100, abs=1)
    assert good[1].processes == {US}


@pytest.mark.parametrize(
    ("what", "number", "fields", "place"),
    [
        ("memory", 0, {"free_bytes": 48 * MIB}, "memory[0].free_bytes"),
        ("memory", 1, {"used_by": {5: MIB}}, "memory[1].free_bytes"),
        ("memory", 0, {"largest_free_bytes": 48 * MIB}, "memory[0].largest_free_bytes"),
        ("memory", 0, {"used_by": {US: MIB, 5: 0}}, "memory[0].used_by[5]"),
        ("memory", 0, {"marks": {US: AllocMark(1.0, 49 * MIB)}}, f"memory[0].marks[{US}]"),
        ("cards", 0, {"power_w": 701.0}, "cards[0].power_w"),
        ("cards", 0, {"power_w": float("nan")}, "cards[0].power_w"),
        ("cards", 0, {"energy_j": -5.0}, "cards[0].energy_j"),
        ("cards", 0, {"sm_clock_mhz": 2000.0}, "cards[0].sm_clock_mhz"),
        ("cards", 1, {"mem_clock_mhz": 9000.0}, "cards[1].mem_clock_mhz"),
        ("cards", 0, {"sm_clock_mhz": 600.0}, "cards[0].throttle"),
        ("cards", 0, {"throttle": float(Throttle.SW_POWER_CAP)}, "cards[0].throttle"),
        ("cards", 0, {"temperature_c": 90.0}, "cards[0].throttle"),
        ("cards", 0, {"gpu_util_percent": 101.0}, "cards[0].gpu_util_percent"),
        ("cards", 0, {"mem_util_percent": 101.0}, "cards[0].mem_util_percent"),
        ("cards", 0, {"pcie_gen": 6.0}, "cards[0].pcie_gen"),
        ("cards", 0, {"pcie_width": 32.0}, "cards[0].pcie_width"),
        ("cards", 0, {"nvlinks": 19.0}, "cards[0].nvlinks"),
        ("cards", 0, {"nvlinks_active": 2.0**18}, "cards[0].nvlinks_active"),
        ("cards", 0, {"nvlink_share": 1.1}, "cards[0].nvlink_share"),
        ("links", H2D, {"capacity_bytes_per_s": 17e6}, f"links[{H2D}].capacity_bytes_per_s"),
        ("links", H2D, {"capacity_bytes_per_s": -1.0}, f"links[{H2D}].capacity_bytes_per_s"),
        ("links", H2D, {"flows": 2}, f"links[{H2D}].flows"),
        ("links", H2D, {"bytes_by": {US: 1e9}}, f"links[{H2D}].bytes_by"),
        ("links", H2D, {"streams": {US: Stream(1, 1e9)}}, f"links[{H2D}].streams[{US}].since_s"),
    ],
)
def test_what_can_not_be_is_found(good: list[Reading], what, number, fields, place: str) -> None:
    reading = broken(good[1], what, number, **fields)
    assert paths([reading]) == [place]
    (finding,) = sanity.findings([reading])
    assert finding.rule


@pytest.mark.parametrize("counter", sanity.COUNTERS)
def test_a_counter_that_goes_back_is_found(good: list[Reading], counter: str) -> None:
    first = broken(good[0], "cards", 1, **{counter: getattr(good[1].cards[1], counter) + 0.01})
    assert paths([first, good[1]]) == [f"cards[1].{counter}"]


@pytest.mark.parametrize(
    ("what", "number", "fields", "place"),
    [
        ("links", H2D, {"bytes_total": 1.0, "bytes_by": {}}, f"links[{H2D}].bytes_total"),
        ("links", H2D, {"bytes_total": 17e6}, f"links[{H2D}].bytes_total"),
        ("links", H2D, {"bytes_by": {}}, f"links[{H2D}].bytes_by[{US}]"),
        ("cards", 0, {"energy_j": 1e9}, "cards[0].energy_j"),
        ("cards", 0, {"throttled_power_s": 1e9}, "cards[0].throttled_power_s"),
        ("cards", 0, {"sm_busy_s": 1e9}, "cards[0].sm_busy_s"),
        ("cards", 1, {"gpu_util_percent": 5.0}, "cards[1].gpu_util_percent"),
    ],
)
def test_what_can_not_have_become_is_found(good: list[Reading], what, number, fields, place: str) -> None:
    assert place in paths([good[0], broken(good[1], what, number, **fields)])


def test_time_and_events_do_not_go_back(good: list[Reading]) -> None:
    assert paths([good[1], replace(good[1], at_s=good[1].at_s - 0.01)]) == ["at_s"]
    assert paths([good[0], replace(good[1], events=())]) == ["events"]
    assert paths([replace(good[0], events=good[0].events * 2)]) == ["events"]


def test_utilisation_may_outlast_its_process_for_a_moment_only(still: SimNode, clock) -> None:
    work = still.start([("sm:0", ENDLESS)])
    clock.now += 0.5
    readings = [sanity.take(still)]
    still.cancel(work)
    for _ in range(2):
        clock.now += 0.5
        readings.append(sanity.take(still))
    assert readings[0].cards[0].gpu_util_percent == pytest.approx(100, abs=1)
    assert paths(readings) == []
    readings[2] = broken(readings[2], "cards", 0, gpu_util_percent=100.0)
    assert paths(readings) == ["cards[0].gpu_util_percent"]


def test_power_may_outlast_a_higher_limit_for_a_moment_only(still: SimNode, clock) -> None:
    still.start([("sm:0", ENDLESS)])
    clock.now += 0.5
    still.tick()
    still.keep(LeverKind.POWER_CAP_W, [0], 300.0)
    reading = sanity.take(still)
    assert reading.cards[0].power_w > 300
    assert paths([reading]) == []
    clock.now += 0.5
    assert paths([broken(sanity.take(still), "cards", 0, power_w=700.0)]) == ["cards[0].power_w"]


def test_memory_of_nobody_is_found_unless_it_is_allowed(good: list[Reading]) -> None:
    reading = broken(good[1], "memory", 0, free_bytes=46 * MIB, largest_free_bytes=46 * MIB)
    assert paths([reading], Allowed(unattributed_bytes=MIB)) == []
    assert paths([reading], Allowed(unattributed_bytes=MIB / 2)) == ["memory[0].free_bytes"]


def test_a_reader_that_is_kept_waiting_blames_nobody(still: SimNode, clock) -> None:
    before = sanity.take(still)
    clock.now += 0.6
    after = broken(sanity.take(still), "cards", 0, gpu_util_percent=5.0)
    assert paths([before, after]) == ["cards[0].gpu_util_percent"]
    assert paths([replace(before, until_s=before.at_s + 0.3), after]) == []  # its cards were read later
