"""A neighbour process, for as long as a block lasts."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY = b"ready\n"
_READY_WITHIN_S = 10.0
_EXIT_WITHIN_S = 2.0


class NeighbourError(RuntimeError):
    """A neighbour did not come up; the message holds what it said."""


@dataclass(frozen=True)
class SpawnedNeighbour:
    """A neighbour that has said it is ready."""

    pid: int


@contextmanager
def spawned(
    node: Path, task: str, settings: Mapping[str, object], gone: Callable[[], object]
) -> Iterator[SpawnedNeighbour]:
    """Start a neighbour on a node and wait until it is ready; on leaving, end it and call `gone`.

    NeighbourError if it ends, or says nothing, before it is ready.
    """
    process = subprocess.Popen(
        # -P: a `faults` folder where the user happens to be must not shadow this one.
        [sys.executable, "-P", "-m", "faults.gpu.neighbour", "--node", str(node), task, *options(settings)],
        stdin=subprocess.PIPE,  # never written to; its end tells the neighbour that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,  # Ctrl-C in the terminal is for us, and we for the undo
    )
    try:
        _await_ready(process, task)
        yield SpawnedNeighbour(process.pid)
    finally:
        try:
            end(process, _EXIT_WITHIN_S)
        finally:
            gone()


def _await_ready(process: subprocess.Popen[bytes], task: str) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    said, until = b"", time.monotonic() + _READY_WITHIN_S
    while not said.endswith(READY):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not more:
            outcome = "ended before it was ready" if ready else f"was not ready within {_READY_WITHIN_S:g} s"
            process.kill()
            words = process.stderr.read().decode(errors="replace").strip()
            raise NeighbourError(f"neighbour {task!r} {outcome}: {words or 'it said nothing'}")
        said += more


def end(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Ask it to go by closing its standard input; kill it if it doesn't in time."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def options(settings: Mapping[str, object]) -> list[str]:
    """Settings as command-line options: `leave_bytes=5` is `--leave-bytes 5`, a list repeats its values."""
    words: list[str] = []
    for name, setting in settings.items():
        values = setting if isinstance(setting, (list, tuple)) else [setting]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def python_path() -> str:
    """A search path that finds this package first."""
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
