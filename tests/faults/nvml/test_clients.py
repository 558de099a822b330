"""Released clients of NVML, as they are, against a node under load."""

from __future__ import annotations

import json
import os

import pytest

from faults.gpu.identity import DRIVER_VERSION, node_id, pci_bus_id, uuid
from faults.gpu.profiles import GIB, MIB
from faults.gpu.sim import SimNode
from tests.faults.nvml.conftest import HELD

ME = str(os.getpid())


def test_pynvml_sees_what_the_node_is(loaded: SimNode, look) -> None:
    seen = look("pynvml_look.py")

    assert (seen["driver"], seen["cuda"], seen["count"]) == (DRIVER_VERSION, 13000, 4)
    for number, card in enumerate(seen["cards"]):
        assert card["name"] == "NVIDIA H100 80GB HBM3"
        assert card["uuid"] == uuid(node_id(loaded.path), number)
        assert card["bus"] == pci_bus_id(number)
        assert card["capability"] == [9, 0]
        assert card["total"] == loaded.memory(number).total_bytes
        assert card["limits_mw"] == [200_000, 700_000]
        assert card["pcie"] == [5, 16]
    assert len({card["uuid"] for card in seen["cards"]}) == 4


def test_pynvml_sees_who_does_what(loaded: SimNode, look) -> None:
    card = look("pynvml_look.py")["cards"][0]
    truth = loaded.shown_card(0)

    assert card["used"] == card["used_v2"] == HELD[0] == sum(loaded.memory(0).used_by.values())
    assert card["processes"] == {ME: HELD[0]}
    assert card["util"] == 100
    assert card["busy"][ME] == pytest.approx(100, abs=2)
    assert (
        (card["sm_mhz"], card["max_sm_mhz"]) == (truth.sm_clock_mhz, truth.sm_clock_max_mhz) == (1980, 1980)
    )
    assert card["power_mw"] == pytest.approx(1e3 * truth.power_w, rel=0.01)
    assert card["celsius"] == pytest.approx(truth.temperature_c, abs=2)
    assert 0 < card["energy_mj"] <= 1e3 * loaded.shown_card(0).energy_j
    assert card["tx_kib_s"] == pytest.approx(loaded.link("pcie:0:d2h").nominal_bytes_per_s / 1024, rel=0.03)
    assert card["rx_kib_s"] == 0
    assert card["links_up"] == 18
    assert card["fields"][:4] == [18, 0, 0, 1]


def test_what_is_not_there_says_so(loaded: SimNode, look) -> None:
    card = look("pynvml_look.py")["cards"][3]

    assert card["fan"] == {"error": 3}
    assert card["set_limit"] == {"error": 4}
    assert card["fields"][5:] == [{"error": 2}, {"error": 3}]  # the others of the same call were given
    assert card["processes"] == {}
    assert card["busy"] == {"error": 6}  # no samples


def test_the_interface_of_nvitop_agrees(loaded: SimNode, look) -> None:
    card, idle = look("nvitop_look.py")[0::3]
    truth = loaded.shown_card(0)

    assert card["used"] == HELD[0]
    assert card["processes"] == {ME: HELD[0]}
    assert card["util"] == 100
    assert card["busy"][ME] == pytest.approx(100, abs=2)
    assert card["power_mw"] == pytest.approx(1e3 * truth.power_w, rel=0.01)
    assert card["links"] == 18
    moved = loaded.link("nvlink:0>switch").nominal_bytes_per_s / 18
    assert card["nvlink_tx_kib_s"] == pytest.approx(moved / 1024, rel=0.03)
    assert (idle["used"], idle["util"], idle["nvlink_tx_kib_s"], idle["processes"]) == (0, 0, 0, {})


def test_nvitop_on_the_terminal_shows_it(loaded: SimNode, ask) -> None:
    done = ask("nvitop", "--once", "--ascii")

    assert done.returncode == 0, done.stderr
    assert f"Driver Version: {DRIVER_VERSION}" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "MiB / 79.65GiB" in line or "GiB / 79.65GiB" in line]
    assert "20.00GiB / 79.65GiB" in rows[0]
    assert "100%" in rows[0]
    assert "1024MiB / 79.65GiB" in rows[1]
    assert any(line.split()[1:3] == ["0", ME] for line in done.stdout.splitlines())


def test_gpustat_shows_it(loaded: SimNode, ask) -> None:
    done = ask("gpustat", "--json")

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    first, second = seen["gpus"][:2]
    assert seen["driver_version"] == DRIVER_VERSION
    assert first["memory.used"] == HELD[0] // MIB
    assert first["memory.total"] == loaded.memory(0).total_bytes // MIB
    assert first["utilization.gpu"] == 100
    assert first["power.draw"] == pytest.approx(loaded.shown_card(0).power_w, rel=0.02)
    assert [(each["pid"], each["gpu_memory_usage"]) for each in second["processes"]] == [
        (int(ME), GIB // MIB)
    ]
    assert first["fan.speed"] is None
