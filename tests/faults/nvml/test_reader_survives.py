"""A node whose file is half-written, cut short, replaced or gone: whoever reads it neither crashes nor hangs."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.gpu.layout import CARD_CELLS, CELL, HEAD_CELLS, SEQUENCE, Layout
from faults.gpu.profiles import GIB
from faults.gpu.sim import SimNode

CLIENT = """
import json, sys, time
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
for line in sys.stdin:
    since = time.monotonic()
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle).used
        nvml.nvmlDeviceGetUtilizationRates(handle)
        nvml.nvmlDeviceGetFieldValues(handle, [91, (138, 0)])
    except nvml.NVMLError as error:
        told = {"error": error.value}
    print(json.dumps([told, time.monotonic() - since]), flush=True)
"""


class Watcher:
    """A client that has been initialised and holds a handle."""

    def __init__(self, library: Path, node: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env={"LD_LIBRARY_PATH": str(library.parent), "BROWNOUT_NODE": str(node)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def look(self) -> tuple[object, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told, took_s = json.loads(self.process.stdout.readline())
        return told, took_s


@pytest.fixture
def still_node(path: Path) -> SimNode:
    """A node that nobody ticks, with a gibibyte held."""
    node = SimNode.create(path, "h100-sxm-80", 2)
    node.alloc(0, GIB)
    return node


@pytest.fixture
def watcher(library: Path, still_node: SimNode):
    watcher = Watcher(library, still_node.path)
    assert watcher.look()[0] == GIB
    yield watcher
    watcher.process.kill()
    watcher.process.communicate()
    still_node.close()


@pytest.fixture
def copy(still_node: SimNode) -> Path:
    """A copy of the node's file, to be spoilt: processes that map the file itself would not survive that."""
    copy = still_node.path.with_name("copy")
    copy.write_bytes(still_node.path.read_bytes())
    return copy


@pytest.fixture
def copy_watcher(library: Path, copy: Path):
    watcher = Watcher(library, copy)
    assert watcher.look()[0] == GIB
    yield watcher
    watcher.process.kill()
    watcher.process.communicate()


HALFWAY = """
import os, signal
from faults.gpu.sim import SimNode
other = SimNode.attach({path!r})
other._file.writing.__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_was_killed_halfway_keeps_nobody_waiting(still_node: SimNode, watcher: Watcher) -> None:
    code = HALFWAY.format(path=str(still_node.path))
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL
    cells = still_node.path.read_bytes()
    assert int.from_bytes(cells[SEQUENCE * CELL : (SEQUENCE + 1) * CELL], sys.byteorder) % 2 == 1

    told, first_s = watcher.look()
    again, then_s = watcher.look()

    assert told == again == GIB
    assert first_s < 0.5  # a few milliseconds a read at first, and a quarter of a second for the next tick
    assert then_s < 0.4
    still_node.tick()  # the next writer mends
    assert watcher.look()[0] == GIB


def test_what_a_killed_owner_held_is_free(still_node: SimNode, watcher: Watcher, elsewhere) -> None:
    other = elsewhere("node.alloc(0, 2**30)")
    assert watcher.look()[0] == 2 * GIB
    other.kill()
    other.wait()
    assert watcher.look()[0] == GIB  # although nobody has taken it back yet


def test_a_node_that_is_gone_is_a_driver_that_is_gone(still_node: SimNode, watcher: Watcher) -> None:
    still_node.path.unlink()
    assert watcher.look()[0] == {"error": 9}


@pytest.mark.parametrize("nbytes", [0, 100, 5000, 100_000])
def test_a_file_that_is_cut_short(copy: Path, copy_watcher: Watcher, nbytes: int) -> None:
    whole = copy.read_bytes()
    os.truncate(copy, nbytes)
    assert copy_watcher.look()[0] == {"error": 9}
    replace(copy, whole)
    assert copy_watcher.look()[0] == GIB


def test_garbage_in_its_place(copy: Path, copy_watcher: Watcher) -> None:
    size = copy.stat().st_size
    for garbage in (b"", b"no node at all", os.urandom(size), bytes(size), b"\xff" * size):
        copy.write_bytes(garbage)
        assert copy_watcher.look()[0] == {"error": 9}
    copy.unlink()
    copy.mkdir()
    assert copy_watcher.look()[0] == {"error": 9}


@pytest.mark.parametrize("seed", range(5))
def test_random_cells_under_a_whole_head(copy: Path, copy_watcher: Watcher, ask, seed: int) -> None:
    head, chance = copy.read_bytes()[: HEAD_CELLS * CELL], random.Random(seed)
    spoilt = bytearray(head + chance.randbytes(copy.stat().st_size - len(head)))
    for card in range(2):
        at = Layout(2, 0, 0).card(card) * CELL
        odd = (math.inf, -math.inf, math.nan, 1e300, -1e300, -1.0, 3.7, 18.0, 2.0**40)
        figures = [0.0, *chance.choices(odd, k=CARD_CELLS - 1)]  # the first would say that it is lost
        spoilt[at : at + CARD_CELLS * CELL] = struct.pack(f"{CARD_CELLS}d", *figures)
    replace(copy, bytes(spoilt))
    told, took_s = copy_watcher.look()
    assert isinstance(told, int)  # whatever it says, it says something
    assert took_s < 1.0
    done = ask("pynvml_look.py", BROWNOUT_NODE=str(copy))
    assert done.returncode == 0, done.stderr


def replace(file: Path, content: bytes) -> None:
    """In one step, as another file."""
    file.with_name("draft").write_bytes(content)
    file.with_name("draft").replace(file)


def test_another_node_in_its_place_is_what_is_seen(still_node: SimNode, watcher: Watcher) -> None:
    with SimNode.create(still_node.path.with_name("other"), "h100-sxm-80", 2) as other:
        other.alloc(0, 3 * GIB)
        other.path.replace(still_node.path)
        assert watcher.look()[0] == 3 * GIB


def test_old_rates_are_not_shown_as_if_they_were_of_now(library: Path, attended: SimNode, look, soon) -> None:
    attended.alloc(0, GIB)
    attended.start([("sm:0", float("inf"))])
    soon(lambda: attended.shown_card(0).gpu_util_percent > 99.9)
    replace(attended.path, attended.path.read_bytes())  # a copy, which nobody will tick again
    assert look("pynvml_look.py")["cards"][0]["util"] == 100
    time.sleep(1.6)
    card = look("pynvml_look.py")["cards"][0]
    assert (card["util"], card["used"]) == (0, GIB)


@pytest.mark.parametrize("node", ["", "/nowhere/node.bin", "/dev/null", "/proc/self/mem"])
def test_no_node_is_no_driver(ask, node: str) -> None:
    done = ask("pynvml_look.py", BROWNOUT_NODE=node)
    assert json.loads(done.stdout) == {"init": {"error": 9}}


HAMMER = """
import json, sys, threading, time
import pynvml as nvml
nvml.nvmlInit()
seen, errors, calls = set(), set(), [0] * 4
def hammer(me):
    until = time.monotonic() + 1.0
    while calls[me] <= 20 or time.monotonic() < until:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            seen.add(nvml.nvmlDeviceGetMemoryInfo(handle).used)
            nvml.nvmlDeviceGetPowerUsage(handle)
            calls[me] += 1
        except nvml.NVMLError as error:
            errors.add(error.value)
        nvml.nvmlInit(); nvml.nvmlShutdown()
threads = [threading.Thread(target=hammer, args=(me,)) for me in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([sorted(seen), sorted(errors), calls]))
"""


def test_threads_see_whole_states_while_a_writer_writes(library: Path, still_node: SimNode) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HAMMER],
        env={"LD_LIBRARY_PATH": str(library.parent), "BROWNOUT_NODE": str(still_node.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    turns = 0
    try:
        while process.poll() is None:
            held = still_node.alloc(0, GIB)
            still_node.free(held)
            if (turns := turns + 1) % 50 == 0:  # now and then the file is another one
                still_node.close()  # first, or its owner would live on in the copy
                replace(still_node.path, still_node.path.read_bytes())
                still_node = SimNode.attach(still_node.path)
                time.sleep(0.01)
    finally:
        process.kill()
        said = process.communicate()[0]
        still_node.close()
    seen, errors, calls = json.loads(said)
    assert set(seen) <= {0, GIB, 2 * GIB}
    assert errors == []
    assert min(calls) > 20
