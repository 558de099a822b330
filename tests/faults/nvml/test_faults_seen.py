"""What released clients show while the node is disturbed, next to what is true of it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from faults.contention import GpuContention
from faults.gpu.levers import LeverKind
from faults.gpu.profiles import GIB, MIB
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import Throttle
from faults.pcie import PcieSaturation
from tests.faults.nvml.conftest import HELD

ME = str(os.getpid())
Look = Callable[..., Any]


@pytest.fixture
def gpustat(ask) -> Callable[[], list[dict[str, Any]]]:
    """What gpustat says of every card."""

    def run() -> list[dict[str, Any]]:
        done = ask("gpustat", "--json")
        assert done.returncode == 0, done.stderr
        gpus: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
        return gpus

    return run


@pytest.fixture
def nvitop(ask) -> Callable[[], str]:
    """What nvitop prints."""

    def run() -> str:
        done = ask("nvitop", "--once", "--ascii")
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


def test_memory_that_a_neighbour_holds(loaded: SimNode, look: Look, gpustat, nvitop) -> None:
    free = loaded.memory(2).free_bytes
    with loaded.neighbour("hold", card=2, leave_bytes=free - 2 * GIB) as neighbour:
        card = look("pynvml_look.py")["cards"][2]
        assert (card["used"], card["processes"]) == (2 * GIB, {str(neighbour.pid): 2 * GIB})
        assert look("nvitop_look.py")[2]["processes"] == card["processes"]
        assert gpustat()[2]["memory.used"] == 2 * GIB // MIB
        assert any(line.split()[1:3] == ["2", str(neighbour.pid)] for line in nvitop().splitlines())
    assert look("pynvml_look.py")["cards"][2]["used"] == 0 == loaded.memory(2).used_by.get(neighbour.pid, 0)


def test_a_neighbour_that_computes(loaded: SimNode, look: Look, gpustat, soon) -> None:
    def use(pid: int) -> Any:
        busy = look("pynvml_look.py")["cards"][3]["busy"]
        return busy.get(str(pid), 0)

    with GpuContention(card=3).inject(loaded):
        (pid,) = loaded.neighbours()
        soon(lambda: use(pid) > 90)
        card = look("pynvml_look.py")["cards"][3]
        assert list(card["processes"]) == list(card["busy"]) == [str(pid)]
        assert card["used"] == loaded.profile.page_bytes
        assert look("nvitop_look.py")[3]["processes"] == card["processes"]
        assert gpustat()[3]["utilization.gpu"] == 100
    assert look("pynvml_look.py")["cards"][3]["processes"] == {}


def test_a_neighbour_that_copies(loaded: SimNode, look: Look) -> None:
    with PcieSaturation(card=3).inject(loaded):
        (pid,) = loaded.neighbours()
        time.sleep(0.5)
        card = look("pynvml_look.py")["cards"][3]
        assert list(card["processes"]) == [str(pid)]
        assert card["tx_kib_s"] > 0.9 * loaded.link("pcie:3:d2h").nominal_bytes_per_s / 1024
        assert card["util"] == 0  # copies are no kernels


def test_a_lost_card(loaded: SimNode, look: Look, gpustat, nvitop) -> None:
    lever = loaded.keep(LeverKind.LOST, [1], 1)
    seen = look("pynvml_look.py")
    assert seen["count"] == 4  # it is still counted; its handle is what can't be had
    assert seen["cards"][1] == {"error": 15}
    assert seen["cards"][0]["processes"] == {ME: HELD[0]}
    assert "ERROR: GPU is Lost" in look("nvitop_look.py")[1]["name"]
    assert "GPU is Lost" in nvitop()
    assert gpustat()[1]["name"] == "((GPU is lost))"
    loaded.let_go(lever)
    assert look("pynvml_look.py")["cards"][1]["used"] == HELD[1]


def test_memory_errors(loaded: SimNode, look: Look, nvitop) -> None:
    loaded.count(
        0, ecc_corrected_volatile=7, ecc_uncorrected_volatile=3, ecc_uncorrected=3, remapped_uncorrected=2
    )
    loaded.keep(LeverKind.REMAP_PENDING, [0], 1)
    card = look("pynvml_look.py")["cards"][0]
    assert card["ecc"] == [7, 3]
    assert card["remapped"] == [0, 2, 1, 0]
    assert look("nvitop_look.py")[0]["ecc"] == 3 == loaded.card(0).ecc_uncorrected_volatile
    assert re.findall(r"Disabled +(\d+)", nvitop()) == ["3", "0", "0", "0"]


def test_clocks_that_somebody_locked(loaded: SimNode, look: Look) -> None:
    loaded.keep(LeverKind.SM_CLOCK_MHZ, [0], 600)
    card = look("pynvml_look.py")["cards"][0]
    assert (card["sm_mhz"], card["max_sm_mhz"]) == (600, 1980)
    assert card["reasons"] & Throttle.APPLICATIONS_CLOCKS
    assert look("nvitop_look.py")[0]["sm_mhz"] == 600 == loaded.card(0).sm_clock_mhz


def test_a_power_cap(loaded: SimNode, look: Look, gpustat, nvitop) -> None:
    loaded.keep(LeverKind.POWER_CAP_W, [0], 300)
    time.sleep(0.2)  # so that a tick has counted it
    card = look("pynvml_look.py")["cards"][0]
    assert card["limit_mw"] == 300_000
    assert card["power_mw"] <= 300_000
    assert card["reasons"] & Throttle.SW_POWER_CAP
    assert card["power_violation_ns"] > 0
    assert card["sm_mhz"] == pytest.approx(loaded.card(0).sm_clock_mhz, abs=1) != 1980
    assert gpustat()[0]["enforced.power.limit"] == 300
    assert "/ 300W" in nvitop()


def test_heat(loaded: SimNode, look: Look, gpustat, soon) -> None:
    loaded.keep(LeverKind.HEAT_C, [0], 3000)
    soon(lambda: bool(int(loaded.shown_card(0).throttle) & (Throttle.SW_THERMAL | Throttle.HW_THERMAL)))
    before = loaded.card(0).temperature_c
    card, shown, stat = look("pynvml_look.py")["cards"][0], look("nvitop_look.py")[0], gpustat()[0]
    after = loaded.card(0).temperature_c
    assert before - 1 <= card["celsius"] <= shown["celsius"] <= stat["temperature.gpu"] <= after + 1
    assert card["reasons"] & (Throttle.SW_THERMAL | Throttle.HW_THERMAL)
    assert card["sm_mhz"] < 1980


def test_nvlinks_that_are_down(loaded: SimNode, look: Look) -> None:
    loaded.keep(LeverKind.NVLINKS_DOWN, [0], 6)
    loaded.keep(LeverKind.NVLINK_CRC_PER_S, [0], 200)
    time.sleep(0.3)
    card = look("pynvml_look.py")["cards"][0]
    assert card["links_up"] == 12 == int(loaded.card(0).nvlinks_active).bit_count()
    assert card["fields"][3:5] == [0, 1]  # the first is down, the last is up
    assert 0 < card["crc"] <= loaded.card(0).nvlink_crc_errors
    share = loaded.link("nvlink:0>switch").capacity_bytes_per_s / 18
    assert look("nvitop_look.py")[0]["nvlink_tx_kib_s"] == pytest.approx(share / 1024, rel=0.05)


def test_pcie_that_has_trained_down(loaded: SimNode, look: Look, soon) -> None:
    loaded.keep(LeverKind.PCIE_GEN, [0], 3)
    loaded.keep(LeverKind.PCIE_WIDTH, [0], 8)
    loaded.keep(LeverKind.PCIE_REPLAYS_PER_S, [0], 100)
    slow = loaded.link("pcie:0:d2h").capacity_bytes_per_s
    soon(lambda: loaded.shown_card(0).pcie_tx_bytes_per_s < 1.02 * slow)
    card = look("pynvml_look.py")["cards"][0]
    assert card["pcie"] == [3, 8]
    assert 0 < card["replays"] <= loaded.card(0).pcie_replays
    assert card["tx_kib_s"] == pytest.approx(slow / 1024, rel=0.05)


def test_monitoring_that_is_slow(loaded: SimNode, look: Look, ask) -> None:
    since = time.monotonic()
    ask("gpustat", "--json")
    usual_s = time.monotonic() - since
    lever = loaded.keep(LeverKind.NVML_DELAY_S, [0], 0.02)
    since = time.monotonic()
    done = ask("gpustat", "--json")
    took_s = time.monotonic() - since
    assert done.returncode == 0
    assert took_s > usual_s + 30 * 0.02  # of some 70 calls
    loaded.let_go(lever)
    assert look("pynvml_look.py")["took_s"] < 0.02


@pytest.mark.parametrize("code", [9, 10, 12, 18])
def test_a_driver_that_does_not_answer_at_all(loaded: SimNode, look: Look, ask, code: int) -> None:
    lever = loaded.keep(LeverKind.NVML_ERROR, [0], code)
    assert look("pynvml_look.py") == {"init": {"error": code}}
    told = {
        9: "Driver Not Loaded",
        10: "Timeout",
        12: "NVML Shared Library Not Found",
        18: "RM has detected an NVML/RM version mismatch",
    }[code]
    assert told in (stat := ask("gpustat")).stdout + stat.stderr
    assert ask("nvitop", "--once").returncode != 0
    loaded.let_go(lever)
    assert look("pynvml_look.py")["count"] == 4


def test_calls_that_fail(loaded: SimNode, look: Look) -> None:
    loaded.keep(LeverKind.NVML_ERROR, [0], 999)
    seen = look("pynvml_look.py")
    assert seen["init"] is None
    assert seen["count"] == {"error": 999}


def test_figures_that_stand_still(loaded: SimNode, look: Look, gpustat) -> None:
    time.sleep(0.2)
    loaded.keep(LeverKind.FROZEN, [0], 1)
    loaded.alloc(0, 5 * GIB)
    loaded.keep(LeverKind.SM_CLOCK_MHZ, [0], 500)
    time.sleep(0.2)
    card = look("pynvml_look.py")["cards"][0]
    again = look("pynvml_look.py")["cards"][0]
    assert loaded.memory(0).used_by[int(ME)] == HELD[0] + 5 * GIB
    assert loaded.card(0).sm_clock_mhz == 500
    assert card["used"] == again["used"] == HELD[0]
    assert card["sm_mhz"] == 1980
    assert card["energy_mj"] == again["energy_mj"]
    assert gpustat()[0]["memory.used"] == HELD[0] // MIB
