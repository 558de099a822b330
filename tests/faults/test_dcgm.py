"""A node's metrics under the names of NVIDIA's exporter, and the process that serves them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from faults.gpu.dcgm import Exporter, MonitoringBroken
from faults.gpu.identity import node_id, uuid
from faults.gpu.keeper import Record
from faults.gpu.levers import LeverKind
from faults.gpu.links import ENDLESS
from faults.gpu.profiles import GIB
from faults.gpu.sim import SimNode
from tests.faults.conftest import ROOT, StillClock

Values = dict[str, list[float]]


@pytest.fixture
def h100(path: Path, clock: StillClock) -> Iterator[SimNode]:
    """Two H100 on the still clock."""
    with SimNode.create(path, "h100-sxm-80", 2, clock=clock, sleep=clock.sleep) as node:
        yield node


def values(text: str) -> Values:
    """Per name without its DCGM_FI_ (and the suffix that the parser gives counters), what each card's line says."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("DCGM_FI_").removesuffix("_total"), []).append(
                sample.value
            )
    return found


def test_every_line_has_the_labels_of_the_exporter(h100: SimNode) -> None:
    text = Exporter(h100, "box-1").text()
    line = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_SM_CLOCK{"))
    assert line == (
        f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="{uuid(node_id(h100.path), 0)}",pci_bus_id="00000000:07:00.0",'
        'device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="box-1",DCGM_FI_DRIVER_VERSION="580.00.00"} 1980'
    )


def test_the_figures_are_the_node_s(h100: SimNode, clock: StillClock) -> None:
    h100.alloc(0, 20 * GIB)
    h100.count(0, ecc_uncorrected=3, ecc_uncorrected_volatile=3, remapped_uncorrected=1)
    h100.keep(LeverKind.POWER_CAP_W, [1], 300)
    h100.report(1, 79)
    h100.start([(link, ENDLESS) for link in ("sm:0", "sm:1", "pcie:0:d2h", *h100.route(0, 1))])
    exporter = Exporter(h100)
    exporter.watch()
    for _ in range(40):
        clock.now += 0.1
        h100.tick()
    exporter.watch()
    seen, card = values(exporter.text()), h100.shown_card(0)

    assert seen["DEV_FB_USED"] == [20 * 1024, 0]
    assert seen["DEV_FB_FREE"] == [81_558 - 20 * 1024, 81_558]
    assert seen["DEV_GPU_UTIL"] == [100, 100]
    assert seen["PROF_GR_ENGINE_ACTIVE"] == pytest.approx([1, 1], abs=0.001)
    assert seen["DEV_POWER_USAGE"][0] == pytest.approx(card.power_w)
    assert seen["DEV_POWER_USAGE"][1] <= 300
    assert seen["DEV_POWER_MGMT_LIMIT"] == [700, 300]
    assert seen["DEV_TOTAL_ENERGY_CONSUMPTION"][0] == pytest.approx(1e3 * card.energy_j, rel=1e-6)
    assert seen["DEV_ECC_DBE_VOL_TOTAL"] == [3, 0]
    assert seen["DEV_UNCORRECTABLE_REMAPPED_ROWS"] == [1, 0]
    assert seen["DEV_XID_ERRORS"] == [0, 79]
    assert seen["DEV_POWER_VIOLATION"][0] == 0
    assert seen["DEV_POWER_VIOLATION"][1] == pytest.approx(4e9, rel=0.06)
    assert seen["PROF_PCIE_TX_BYTES"] == [pytest.approx(55.6e9, rel=0.001), 0]
    assert seen["PROF_NVLINK_TX_BYTES"] == [pytest.approx(378e9), 0]
    assert seen["PROF_NVLINK_RX_BYTES"] == [0, pytest.approx(378e9)]
    assert seen["DEV_NVLINK_BANDWIDTH_TOTAL"] == [pytest.approx(378e9 / 1024e3, abs=1)] * 2


def test_of_a_lost_card_only_its_xid_is_left(h100: SimNode) -> None:
    h100.keep(LeverKind.LOST, [0], 1)
    h100.report(0, 79)
    seen = values(Exporter(h100).text())
    assert seen["DEV_XID_ERRORS"] == [79, 0]
    assert {name: len(cards) for name, cards in seen.items() if len(cards) != 1} == {"DEV_XID_ERRORS": 2}


def test_monitoring_that_fails_or_stands_still(h100: SimNode) -> None:
    exporter = Exporter(h100)
    lever = h100.keep(LeverKind.NVML_ERROR, [0], 999)
    with pytest.raises(MonitoringBroken, match="999"):
        exporter.text()
    h100.let_go(lever)
    before = exporter.text()
    h100.keep(LeverKind.FROZEN, [0], 1)
    h100.alloc(0, 5 * GIB)
    h100.keep(LeverKind.SM_CLOCK_MHZ, [0], 500)
    exporter.watch()
    assert exporter.text() == before


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def keeper(path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps the node at `path` and serves its metrics."""
    SimNode.create(path, "h100-sxm-80", 2).close()
    words = ["-m", "faults.gpu.keeper", "--node", path, "--record", path.with_name("record")]
    process = subprocess.Popen(
        [sys.executable, *map(str, words), "--metrics-port", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {port}\n".encode()
    yield process
    process.kill()
    process.communicate()


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def test_a_keeper_attends_to_its_node_and_serves_its_metrics(keeper, path: Path, port: int, soon) -> None:
    with SimNode.attach(path) as node:
        node.start([("sm:1", ENDLESS)])
        soon(lambda: values(scrape(port))["DEV_GPU_UTIL"] == [0, 100])
        lever = node.keep(LeverKind.NVML_ERROR, [0], 15)
        with pytest.raises(urllib.error.HTTPError, match="500") as raised:
            scrape(port)
        raised.value.close()
        node.let_go(lever)
        node.keep(LeverKind.NVML_DELAY_S, [0], 0.4)
        since = time.monotonic()
        scrape(port)
        assert time.monotonic() - since >= 0.4
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        scrape(port, "/")
    raised.value.close()


def test_a_keeper_takes_back_what_the_dead_held(keeper, elsewhere, path: Path, port: int, soon) -> None:
    other = elsewhere("node.alloc(0, 2**30)")
    soon(lambda: values(scrape(port))["DEV_FB_USED"] == [1024, 0])
    other.kill()
    other.wait()
    soon(lambda: values(scrape(port))["DEV_FB_USED"] == [0, 0])


def test_a_keeper_says_who_it_is_and_ends_when_asked(keeper, path: Path, port: int) -> None:
    record = Record.read(path.with_name("record"))
    assert record is not None
    assert (record.pid, record.port, record.alive) == (keeper.pid, port, True)
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(5) == 0
    assert not record.alive


def test_a_keeper_ends_with_its_node(keeper, path: Path) -> None:
    path.unlink()
    assert keeper.wait(5) == 0


def test_a_record_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"pid": "x"}', json.dumps({"pid": os.getpid()})):
        (tmp_path / "record").write_text(text)
        assert Record.read(tmp_path / "record") is None
    assert Record.read(tmp_path / "nowhere") is None


def test_a_port_that_is_taken_is_said_in_one_line(path: Path, port: int) -> None:
    SimNode.create(path, "h100-sxm-80", 2).close()
    words = ["-m", "faults.gpu.keeper", "--node", path, "--record", path.with_name("record")]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        done = subprocess.run(
            [sys.executable, *map(str, words), "--metrics-port", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"can't serve metrics on 127.0.0.1:{port}: Address already in use\n"
    assert not path.with_name("record").exists()
