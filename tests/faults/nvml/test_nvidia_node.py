"""A node of real cards reads what a simulated node is, when its library is the simulated node's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from faults.gpu.levers import LeverKind
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import CardInfo

# Told by a simulated node only, or what moves from one moment to the next.
UNKNOWN = {
    "changed_s",
    "sm_busy_s",
    "hbm_busy_s",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "refused_allocs",
}
UNKNOWN |= {"last_xid"}  # an event, not a figure
MOVING = {"energy_j", "pcie_tx_bytes", "pcie_rx_bytes", "throttled_power_s", "temperature_c", "power_w"}


@pytest.fixture
def disturbed(loaded: SimNode) -> Iterator[SimNode]:
    """The node under load, with a bit of everything wrong with card 1."""
    loaded.keep(LeverKind.SM_CLOCK_MHZ, [1], 1200)
    loaded.keep(LeverKind.POWER_CAP_W, [1], 500)
    loaded.keep(LeverKind.PCIE_GEN, [1], 4)
    loaded.keep(LeverKind.PCIE_WIDTH, [1], 8)
    loaded.keep(LeverKind.NVLINKS_DOWN, [1], 3)
    loaded.keep(LeverKind.REMAP_PENDING, [1], 1)
    loaded.keep(LeverKind.RECOVERY_ACTION, [1], 1)
    counters = (
        "pcie_replays",
        "ecc_corrected",
        "ecc_uncorrected_volatile",
        "remapped_uncorrected",
        "nvlink_replays",
    )
    loaded.count(1, **{name: place + 2 for place, name in enumerate(counters)})
    loaded.tick()
    return loaded


def test_every_figure_is_the_nodes_own(disturbed: SimNode, look) -> None:
    before = [disturbed.card(number) for number in range(disturbed.cards)]
    told = look("nvidia_node_look.py")
    for number in range(disturbed.cards):
        truth, seen = disturbed.card(number), CardInfo(**told["cards"][number])
        for field in fields(CardInfo):
            expected, value = getattr(truth, field.name), getattr(seen, field.name)
            if field.name in UNKNOWN:
                assert value == 0 or field.name == "changed_s"
            elif field.name in MOVING:
                low, high = sorted((getattr(before[number], field.name), expected))
                assert low * 0.999 - 1 <= value <= high * 1.001 + 1, f"card {number}: {field.name}"
            else:
                assert value == pytest.approx(expected, abs=0.51, rel=1e-3), f"card {number}: {field.name}"
    assert told["cards"][1]["sm_clock_mhz"] == 1200


def test_memory_links_and_processes_are_the_nodes_own(disturbed: SimNode, look) -> None:
    before = {name: disturbed.link(name).bytes_total for name in disturbed.links()}
    told = look("nvidia_node_look.py")
    for number in range(disturbed.cards):
        truth, seen = disturbed.memory(number), told["memory"][number]
        assert (seen["total_bytes"], seen["free_bytes"]) == (truth.total_bytes, truth.free_bytes)
        assert {int(pid): nbytes for pid, nbytes in seen["used_by"].items()} == truth.used_by
    assert set(told["tenants"]) == disturbed.tenants() == {os.getpid()}
    assert told["route"] == list(disturbed.route(0, 1))
    assert set(told["links"]) == set(disturbed.links())
    for name, seen in told["links"].items():
        truth = disturbed.link(name)
        assert seen["nominal_bytes_per_s"] == pytest.approx(truth.nominal_bytes_per_s)
        assert seen["capacity_bytes_per_s"] == pytest.approx(truth.capacity_bytes_per_s, rel=1e-3), name
        if not name.startswith(("sm", "hbm")):
            assert before[name] - 1e9 <= seen["bytes_total"] <= truth.bytes_total + 1e6, name
    assert told["links"]["pcie:0:d2h"]["bytes_total"] > 0
    assert told["findings"] == []


def test_the_profile_is_that_of_the_product(loaded: SimNode, look) -> None:
    profile = look("nvidia_node_look.py")["profile"]
    assert (profile["product"], profile["page_bytes"]) == (loaded.profile.product, 2 * 2**20)
    for name in (
        "memory_bytes",
        "nvlinks",
        "pcie_bytes_per_s",
        "sm_clock_mhz",
        "power_w",
        "power_min_w",
        "idle_w",
    ):
        assert profile[name] == getattr(loaded.profile, name)


def test_a_limit_is_refused_by_a_library_that_does_not_permit_it(loaded: SimNode, look) -> None:
    assert (
        "no permission: setting clocks and power limits takes root" in look("nvidia_node_look.py")["refused"]
    )


def test_events_are_told(loaded: SimNode, library: Path, path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nvidia_node_look.py")), "wait"],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), "BROWNOUT_NODE": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    loaded.report(2, 79)
    loaded.report(0, 31)
    said, _ = process.communicate("go\n", timeout=20)
    told: list[dict[str, Any]] = json.loads(said)
    assert [(each["serial"], each["card"], each["type"], each["data"]) for each in told] == [
        (1, 2, 8, 79),
        (2, 0, 8, 31),
    ]
    assert all(abs(each["at_us"] / 1e6 - time.time()) < 20 for each in told)
