"""A node in a temporary file, a clock that stands still until told, and other processes on the node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.gpu.sim import SimNode

ROOT = Path(__file__).resolve().parents[2]


class StillClock:
    """Time passes only when somebody sleeps, or a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def still(path: Path, clock: StillClock) -> Iterator[SimNode]:
    """A node of two cards on the still clock."""
    with SimNode.create(path, cards=2, clock=clock, sleep=clock.sleep) as node:
        yield node


@pytest.fixture
def node(path: Path) -> Iterator[SimNode]:
    """A node of four cards on the wall clock."""
    with SimNode.create(path) as node:
        yield node


Run = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def elsewhere(path: Path) -> Iterator[Run]:
    """Runs a piece of code with `node` attached in another process, which then stays until it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> subprocess.Popen[bytes]:
        script = (
            "import sys; from faults.gpu.sim import SimNode\n"
            f"node = SimNode.attach({str(path)!r})\n{code}\n"
            "print('ready', flush=True); sys.stdin.read()\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def soon() -> Callable[[Callable[[], bool]], None]:
    """Waits, up to five seconds, for something to become true."""

    def wait(true: Callable[[], bool]) -> None:
        until = time.monotonic() + 5
        while not true():
            assert time.monotonic() < until, "it did not come true within 5 s"
            time.sleep(0.005)

    return wait
