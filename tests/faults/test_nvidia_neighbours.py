"""Neighbours on real cards: their life and death, caps and limits, with fake cards under a real child process."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from faults.base import Fault
from faults.clocks import ClockLock, PowerCap
from faults.contention import GpuContention
from faults.gpu import nvidia_limits, nvidia_spawn
from faults.gpu.nvidia import WHY_NOT, NvidiaNode
from faults.gpu.nvidia_library import Library
from faults.gpu.owners import start_ticks
from faults.gpu.profiles import MIB
from faults.gpu.refused import Refused
from faults.gpu.spawn import NeighbourError
from faults.gpu.telemetry import Throttle
from faults.leak import VramLeak
from faults.pcie import PcieSaturation
from faults.vram import VramOom

FAKES = Path(__file__).with_name("fake_cards")
ROOT = Path(__file__).resolve().parents[2]
POWER, SM = "POWER_CAP_W=400", "SM_CLOCK_MHZ=900"


class Cards:
    """The fake cards, as the test sees and changes them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def told(self) -> dict[str, Any]:
        with sys.modules["state"].state() as told:
            return told

    def change(self, card: int | None = None, **fields: object) -> None:
        with sys.modules["state"].state() as told:
            (told if card is None else told["cards"][card]).update(fields)


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    path = tmp_path / "cards.json"
    monkeypatch.setenv("FAKE_CARDS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(FAKES))  # for the neighbours
    monkeypatch.syspath_prepend(str(FAKES))
    importlib.import_module("state").new(path)
    yield Cards(path)
    del sys.modules["state"]


@pytest.fixture
def nvml(cards: Cards) -> ModuleType:
    """The fake pynvml, without shadowing what it stands for in this process."""
    spec = importlib.util.spec_from_file_location("fake_pynvml", FAKES / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def node(nvml: ModuleType, tmp_path: Path) -> NvidiaNode:
    return NvidiaNode(Library(nvml), notes=tmp_path / "limits")


def limits(cards: Cards, card: int = 0) -> tuple[int, int | None, int | None]:
    told = cards.told()["cards"][card]
    return told["limit_mw"], told["sm_lock"], told["mem_lock"]


def test_one_that_holds_leaves_what_was_asked_and_its_death_gives_it_back(node: NvidiaNode) -> None:
    before = node.memory(0)
    with node.neighbour("hold", card=0, leave_bytes=1000 * MIB + 1) as other:
        memory = node.memory(0)
        assert memory.free_bytes == 1000 * MIB
        assert memory.used_by == {other.pid: 7192 * MIB}
        assert memory.marks[other.pid].free_bytes == 1000 * MIB
        assert time.monotonic() - memory.marks[other.pid].at_s < 10
        assert (node.neighbours(), node.tenants()) == ({other.pid}, frozenset())
        assert node.memory(1).used_by == {}
    assert node.memory(0).free_bytes == before.free_bytes
    assert node.neighbours() == frozenset()


def test_one_that_was_killed_has_given_back_all_the_same(node: NvidiaNode, soon) -> None:
    with node.neighbour("hold", card=1, leave_bytes=1000 * MIB) as other:
        os.kill(other.pid, signal.SIGKILL)
        soon(lambda: node.memory(1).free_bytes == 8192 * MIB)


def test_less_than_the_floor_is_never_left(node: NvidiaNode, cards: Cards, soon) -> None:
    with pytest.raises(Refused, match="would leave 100 MiB of the card free; at least 512 MiB must stay"):
        node.neighbour("hold", card=0, leave_bytes=100 * MIB)
    cards.change(0, total=700 * MIB)
    with node.neighbour("leak", card=0, bytes_per_s=1e12):
        soon(lambda: node.memory(0).free_bytes <= 514 * MIB)
        time.sleep(0.1)
        assert 512 * MIB <= node.memory(0).free_bytes <= 514 * MIB
    cards.change(0, total=600 * MIB)
    with (
        pytest.raises(Refused, match=r"buffers of 128 MiB would leave 472 MiB of card 0 free"),
        node.neighbour("copy", card=0, streams=8, directions=["h2d"]),
    ):
        pass


def test_one_that_copies_says_how_many_and_what_it_moved(node: NvidiaNode, soon) -> None:
    with node.neighbour("copy", card=1, streams=3) as other:
        for link in ("pcie:1:h2d", "pcie:1:d2h"):
            assert node.link(link).streams[other.pid].flows == 3
            soon(lambda link=link: node.link(link).bytes_by.get(other.pid, 0) > 48 * MIB)
        assert node.link("pcie:0:h2d").flows == 0
    assert node.link("pcie:1:h2d").flows == 0


def test_one_copies_from_card_to_card_if_they_reach_each_other(node: NvidiaNode, cards: Cards) -> None:
    with node.neighbour("peer_copy", cards=[0, 1], streams=2) as other:
        assert node._running[other.pid].report.streams.keys() == {"nvlink:0>1", "nvlink:1>0"}
        assert {pid for card in (0, 1) for pid in node.memory(card).used_by} == {other.pid}
    cards.change(peers=False)
    with pytest.raises(Refused, match="can't reach each other"), node.neighbour("peer_copy", cards=[0, 1]):
        pass


@pytest.mark.parametrize("share", ["sm:1", "hbm:1"])
def test_one_keeps_a_card_busy(node: NvidiaNode, share: str) -> None:
    with node.neighbour("busy", shares=[share], streams=2) as other:
        assert node.link(share).streams[other.pid].flows == 2
        assert node.memory(0).used_by == {}


def test_limits_are_set_and_the_earlier_ones_put_back(node: NvidiaNode, cards: Cards, tmp_path: Path) -> None:
    with node.neighbour("keep", card=1, levers=[POWER, SM, "MEM_CLOCK_MHZ=1593"]):
        assert limits(cards, 1) == (400_000, 900, 1593)
        info = node.card(1)
        assert (info.power_limit_w, info.sm_clock_mhz, info.mem_clock_mhz) == (400, 900, 1593)
        assert int(info.throttle) & Throttle.APPLICATIONS_CLOCKS
        assert len(list((tmp_path / "limits").iterdir())) == 3
        assert limits(cards, 0) == (650_000, None, None)
    assert limits(cards, 1) == (650_000, None, None)  # not the default of 700 W
    assert list((tmp_path / "limits").iterdir()) == []


def test_limits_of_one_that_was_killed_are_put_back_by_who_started_it(node: NvidiaNode, cards: Cards) -> None:
    with node.neighbour("keep", card=0, levers=[POWER, SM]) as other:
        os.kill(other.pid, signal.SIGKILL)
    assert limits(cards) == (650_000, None, None)


def test_limits_of_two_that_were_killed_are_put_back_by_whoever_comes_next(
    cards: Cards, nvml: ModuleType, tmp_path: Path, soon
) -> None:
    harness = started(tmp_path, f"block = node.neighbour('keep', card=0, levers=[{POWER!r}, {SM!r}])")
    (pid,) = {note.pid for note in notes(tmp_path)}
    os.kill(pid, signal.SIGKILL)
    harness.kill()
    harness.communicate()
    soon(lambda: start_ticks(pid) is None)
    assert limits(cards) == (400_000, 900, None)
    assert {note.kind for note in nvidia_limits.repeat(Library(nvml), tmp_path / "limits")} == {
        "POWER_CAP_W",
        "SM_CLOCK_MHZ",
    }
    assert limits(cards) == (650_000, None, None)
    assert nvidia_limits.repeat(Library(nvml), tmp_path / "limits") == []


def test_a_limit_without_the_right_to_set_it_is_refused_and_leaves_no_note(
    node: NvidiaNode, cards: Cards, tmp_path: Path
) -> None:
    cards.change(forbidden=True)
    with (
        pytest.raises(Refused, match=r"no permission: .* takes root"),
        node.neighbour("keep", levers=[POWER]),
    ):
        pass
    assert list((tmp_path / "limits").iterdir()) == []


def test_a_limit_that_could_not_be_put_back_is_refused(node: NvidiaNode, cards: Cards) -> None:
    cards.change(0, reasons=int(Throttle.APPLICATIONS_CLOCKS))
    with (
        pytest.raises(Refused, match="somebody has set this card's clocks"),
        node.neighbour("keep", levers=[SM]),
    ):
        pass
    with (
        node.neighbour("keep", levers=[POWER]),
        pytest.raises(Refused, match="is limited already"),
        node.neighbour("keep", levers=["POWER_CAP_W=300"]),
    ):
        pass
    assert limits(cards) == (650_000, None, None)


def test_a_limit_that_makes_no_sense_is_an_error(node: NvidiaNode) -> None:
    for lever, words in (
        ("POWER_CAP_W=100", "takes 200 to 700 W"),
        ("SM_CLOCK_MHZ=5000", "best is 1980 MHz"),
    ):
        with pytest.raises(NeighbourError, match=words), node.neighbour("keep", levers=[lever]):
            pass


def test_it_ends_by_itself_when_its_time_is_up(nvml: ModuleType, cards: Cards, tmp_path: Path, soon) -> None:
    node = NvidiaNode(Library(nvml), within_s=0.5, notes=tmp_path / "limits")
    with node.neighbour("keep", levers=[POWER]) as other:
        assert limits(cards)[0] == 400_000
        soon(lambda: start_ticks(other.pid) is None)
        assert limits(cards)[0] == 650_000


def test_it_goes_when_its_parent_is_killed(cards: Cards, nvml: ModuleType, tmp_path: Path, soon) -> None:
    harness = started(tmp_path, f"block = node.neighbour('keep', levers=[{POWER!r}])")
    assert limits(cards)[0] == 400_000
    harness.kill()
    harness.communicate()
    soon(lambda: limits(cards)[0] == 650_000)


def test_one_that_is_stuck_is_killed(node: NvidiaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_spawn, "EXIT_WITHIN_S", 0.2)
    with node.neighbour("hold", card=0, leave_bytes=1000 * MIB) as other:
        os.kill(other.pid, signal.SIGSTOP)
    assert start_ticks(other.pid) is None


def test_ended_politely_it_takes_its_limits_back(node: NvidiaNode, cards: Cards, soon) -> None:
    with node.neighbour("keep", levers=[POWER]) as other:
        os.kill(other.pid, signal.SIGTERM)
        soon(lambda: limits(cards)[0] == 650_000)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("missing", "takes torch with CUDA: pip install torch"),
        ("without CUDA", "built without CUDA: install one"),
        ("sees none", "sees no CUDA device"),
    ],
)
def test_without_a_torch_that_works_it_is_refused(
    node: NvidiaNode, monkeypatch: pytest.MonkeyPatch, wrong: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_TORCH", wrong)
    with pytest.raises(Refused, match=words), node.neighbour("hold", card=0, leave_bytes=1000 * MIB):
        pass


def test_a_neighbour_that_does_not_get_ready_is_given_up(
    node: NvidiaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_spawn, "READY_WITHIN_S", 0.0)
    with pytest.raises(NeighbourError, match="not ready within 0 s"), node.neighbour("keep", levers=[POWER]):
        pass


@pytest.mark.parametrize("task", WHY_NOT)
def test_what_can_not_be_done_to_a_real_card_is_refused_with_the_reason(node: NvidiaNode, task: str) -> None:
    with pytest.raises(Refused, match=task):
        node.neighbour(task, card=0)


@pytest.mark.parametrize(
    "settings", [{"xids": [79]}, {"error": 700}, {"counts": ["pcie_replays=5"]}, {"levers": ["LOST=1"]}]
)
def test_conditions_that_no_call_sets_are_refused(node: NvidiaNode, settings: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="no supported call sets"):
        node.neighbour("keep", card=0, **settings)


def test_an_unknown_task_or_card_is_an_error(node: NvidiaNode) -> None:
    with pytest.raises(ValueError, match="no task 'dance'; known: hold"):
        node.neighbour("dance")
    with pytest.raises(ValueError, match="cards 0 to 1"), node.neighbour("copy", card=2):
        pass


@pytest.mark.parametrize(
    "fault",
    [
        VramOom(card=1, free_mb=1024),
        VramLeak(card=0, mb_per_s=1024),
        PcieSaturation(card=0, fraction=0.9),
        GpuContention(card=1, fraction=0.75),
        ClockLock(card=0, sm_mhz=600, memory_mhz=1593),
        PowerCap(card=1, watts=300),
    ],
    ids=lambda fault: fault.kind,
)
def test_faults_are_seen_on_such_cards_and_gone_after_them(node: NvidiaNode, fault: Fault, soon) -> None:
    left = fault.took_effect(node).residual
    with fault.inject(node):
        soon(lambda: fault.took_effect(node).visible)
    assert not fault.took_effect(node).visible
    assert fault.took_effect(node).residual == left


def started(tmp_path: Path, block: str) -> subprocess.Popen[bytes]:
    """A harness of its own that has entered a neighbour's block and stays there."""
    script = (
        "import sys, pynvml\nfrom pathlib import Path\n"
        "from faults.gpu.nvidia import NvidiaNode\nfrom faults.gpu.nvidia_library import Library\n"
        f"node = NvidiaNode(Library(pynvml), notes=Path({str(tmp_path / 'limits')!r}))\n"
        f"{block}; block.__enter__()\nprint('ready', flush=True); sys.stdin.read()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FAKES), str(ROOT)))}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def notes(tmp_path: Path) -> list[nvidia_limits.Note]:
    paths = (tmp_path / "limits").glob("*.json")
    return [nvidia_limits.Note(**json.loads(path.read_text())) for path in paths]
