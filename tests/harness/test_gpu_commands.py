"""`brownout gpu`: a node that is kept in the background, watched and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from faults.gpu.keeper import Record
from faults.gpu.levers import LeverKind
from faults.gpu.profiles import GIB
from faults.gpu.sim import SimNode
from harness import cli
from harness.gpu.keeping import record_of
from harness.gpu.table import screen
from harness.gpu.top import read

USAGE = 64
NODE = Path(".brownout/gpu/node.bin")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; whatever is kept there is ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", "no-such-compiler")  # compiling it is not what is tested here
    yield tmp_path
    for record in tmp_path.rglob("*.keeper"):
        kept = Record.read(record)
        if kept is not None and kept.alive:
            os.kill(kept.pid, signal.SIGKILL)


def brownout(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["gpu", *(str(word) for word in words)])


def done(*words: object) -> str:
    result = brownout(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object) -> str:
    result = brownout(*words)
    assert (result.exit_code, result.stdout) == (USAGE, ""), result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def kept() -> Record:
    record = Record.read(record_of(NODE))
    assert record is not None
    return record


@pytest.mark.parametrize("command", [[], ["start"], ["top"], ["stop"]])
def test_help_has_examples(command: list[str]) -> None:
    assert (
        f"brownout gpu {command[0] if command else 'start'}"
        in done(*command, "--help").partition("Example")[2]
    )


def test_a_node_is_made_kept_watched_and_ended(here: Path) -> None:
    told = done("start", "--profile", "a100-sxm-80", "--cards", 2)
    assert f"{here / NODE}: 2 x NVIDIA A100-SXM4-80GB (a100-sxm-80), nvswitch" in told
    assert f"keeper   process {kept().pid}; it ends with: brownout gpu stop\n" in told
    assert "NVML     not available: the NVML library needs a C compiler" in told
    assert kept().alive

    seen = json.loads(done("top", "--json"))
    assert [card["total_bytes"] for card in seen["cards"]] == [80 * GIB] * 2
    assert "A100-SXM4-80GB" in done("top", "--once")

    keeper = kept()
    assert done("stop") == f"ended the keeper (process {keeper.pid}) and removed {here / NODE}\n"
    assert list(NODE.parent.iterdir()) == []
    assert not keeper.alive


def test_the_keeper_brings_telemetry_up_to_date(here: Path) -> None:
    done("start", "--cards", 1)
    with SimNode.attach(NODE) as node:
        node.start([("sm:0", float("inf"))])
        until = time.monotonic() + 5
        while node._cards.shown(0).gpu_util_percent < 90:  # read without a tick of ours
            assert time.monotonic() < until
            time.sleep(0.05)


def test_metrics_are_served(here: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert f"metrics  http://127.0.0.1:{port}/metrics\n" in done(
        "start", "--cards", 1, "--metrics-port", port
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"DCGM_FI_DEV_FB_USED{" in answer.read()


def test_a_second_one_is_refused_and_named(here: Path) -> None:
    done("start", "--cards", 1)
    told = refused("start", "--cards", 1)
    assert f"a node is kept at {here / NODE} already, by process {kept().pid}" in told
    assert "`brownout gpu stop` ends it" in told
    assert kept().alive
    done("start", "--cards", 1, "--file", "other.bin")
    assert "brownout gpu stop --file" in refused("start", "--file", "other.bin")
    done("stop", "--file", "other.bin")
    assert kept().alive


def test_what_a_killed_keeper_left_is_cleared_away(here: Path) -> None:
    done("start", "--cards", 1)
    first = kept()
    os.kill(first.pid, signal.SIGKILL)
    while first.alive:
        time.sleep(0.01)
    done("start", "--cards", 2)
    assert kept().pid != first.pid
    os.kill(kept().pid, signal.SIGKILL)
    while kept().alive:
        time.sleep(0.01)
    assert "was gone already; removed" in done("stop")
    assert list(NODE.parent.iterdir()) == []


def test_another_process_with_the_same_id_is_left_alone(here: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        NODE.parent.mkdir(parents=True)
        Record(sleeper.pid, 1, 0).write(record_of(NODE))
        assert "was gone already" in done("stop")
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_keeper_that_does_not_listen_is_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gpu.keeping.ENDS_WITHIN_S", 0.3)
    done("start", "--cards", 1)
    pid = kept().pid
    os.kill(pid, signal.SIGSTOP)
    assert f"ended the keeper (process {pid})" in done("stop")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("start", "--profile", "h900"), "--profile: unknown card profile 'h900'; known: a100-sxm-80"),
        (("start", "--topology", "ring"), "unknown topology 'ring'; known: mesh"),
        (("start", "--profile", "l40s", "--topology", "mesh"), "l40s cards have no NVLink"),
        (("start", "--cards", 17), "17 is not in the range"),
        (("start", "--file", "/proc/nowhere/node.bin"), "can't make a node at /proc/nowhere/node.bin"),
        (("stop",), "no node is kept at"),
        (("top", "--once"), "there is no node at .brownout/gpu/node.bin: `brownout gpu start` makes one"),
        (("top", "--json", "--file", "garbage"), "garbage is not a simulated node"),
        (("start", "--file", "garbage"), "garbage exists, and `brownout gpu start` did not make it"),
        (("nothing",), "No such command 'nothing'"),
    ],
)
def test_what_can_not_be_done_is_refused_and_leaves_nothing(
    here: Path, words: tuple[str, ...], told: str
) -> None:
    Path("garbage").write_text("nothing")
    assert told in refused(*words)
    assert [path for path in here.rglob("*") if path.is_file()] == [here / "garbage"]


def test_a_port_that_is_taken_is_refused_and_leaves_nothing(here: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"can't serve metrics on 127.0.0.1:{port}" in refused("start", "--metrics-port", port)
    assert [path for path in here.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here (cc)")
def test_the_printed_lines_make_a_client_see_the_node(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC")
    told = done("start", "--cards", 3)
    export = next(line for line in told.splitlines() if line.startswith("  export "))
    client = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    command = f'{export.strip()}; {sys.executable} -c "{client}"'
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert answer.stdout == "3\n"


def test_top_goes_on_until_interrupted_or_the_node_is_gone(here: Path) -> None:
    done("start", "--cards", 1)
    command = [Path(sys.executable).parent / "brownout", "gpu", "top", "--every", "0.1"]
    watching = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    time.sleep(1.5)
    watching[0].send_signal(signal.SIGINT)
    watching[0].communicate(timeout=10)
    assert watching[0].returncode == 0
    done("stop")
    _, said = watching[1].communicate(timeout=10)
    assert (watching[1].returncode, b"the node has ended" in said) == (USAGE, True)


def test_the_table_names_what_is_wrong(here: Path) -> None:
    from rich.console import Console

    with SimNode.create("node.bin", "h100-sxm-80", 4) as node:
        node.alloc(0, 2 * GIB)
        node.keep(LeverKind.LOST, [1], 1)
        node.report(1, 79)
        node.keep(LeverKind.SM_CLOCK_MHZ, [2], 800)
        node.keep(LeverKind.NVLINKS_DOWN, [2], 4)
        node.count(3, ecc_uncorrected=2)
        node.keep(LeverKind.REMAP_PENDING, [3], 1)
        node.keep(LeverKind.NVML_DELAY_S, [0], 0.5)
        console = Console(width=78)
        with console.capture() as shown:
            console.print(screen(read(node)))
    text = shown.get()
    assert "2048/81558" in text
    assert "lost" in text
    assert "14/18 up" in text
    assert "card 2: applications clocks" in text
    assert "card 3: 2 memory errors, 2 of them uncorrected, a row is to be remapped" in text
    assert f"card 0: process {os.getpid()} holds 2048 MiB" in text
    assert "event 1: card 1, Xid 79" in text
    assert "monitoring: 0.5 s a call" in text
    assert max(map(len, text.splitlines())) <= 78
