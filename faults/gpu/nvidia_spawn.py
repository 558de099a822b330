"""A neighbour on real cards, for as long as a block lasts, and what it says of itself.

It takes longer to come up than one on a simulated node (torch, a CUDA context) and to go (limits to be taken back).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from faults.gpu import spawn
from faults.gpu.nvidia_neighbour import EXIT_REFUSED
from faults.gpu.nvidia_report import Report
from faults.gpu.refused import Refused
from faults.gpu.spawn import READY, NeighbourError

READY_WITHIN_S = 120.0
EXIT_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.02


@dataclass
class RunningNeighbour:
    """One that has said it is ready. `report` is what it last said of itself."""

    pid: int
    report_fd: int
    latest: Report = field(default_factory=Report)

    @property
    def report(self) -> Report:
        self.latest = Report.read(self.report_fd) or self.latest
        return self.latest


@contextmanager
def running(
    task: str,
    settings: Mapping[str, object],
    *,
    options: Mapping[str, object],
    uuids: Sequence[str],
    gone: Callable[[], object],
) -> Iterator[RunningNeighbour]:
    """Start one that sees these cards only, and wait until it is ready; on leaving, end it and call `gone`.

    Refused, with its reason, if it can't do the task here; NeighbourError if it fails otherwise.
    """
    with tempfile.TemporaryFile() as report:
        words = [*spawn.options({**options, "report_fd": report.fileno()}), task, *spawn.options(settings)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "faults.gpu.nvidia_neighbour", *words],
            stdin=subprocess.PIPE,  # never written to; its end tells the neighbour that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(uuids),
            pass_fds=[report.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for us, and we for the undo
        )
        try:
            _await_ready(process, task)
            yield RunningNeighbour(process.pid, report.fileno())
        finally:
            try:
                spawn.end(process, EXIT_WITHIN_S)
            finally:
                gone()


def _await_ready(process: subprocess.Popen[bytes], task: str) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    os.set_blocking(process.stdout.fileno(), False)
    said, until = b"", time.monotonic() + READY_WITHIN_S
    while not said.endswith(READY):
        ended = process.poll() is not None
        with suppress(BlockingIOError):
            said += os.read(process.stdout.fileno(), 4096)
        if said.endswith(READY):
            return
        if ended or time.monotonic() > until:
            process.kill()
            words = process.stderr.read().decode(errors="replace").strip() or "it said nothing"
            if process.wait() == EXIT_REFUSED:
                raise Refused(f"{task}: {words}")
            outcome = "ended before it was ready" if ended else f"was not ready within {READY_WITHIN_S:g} s"
            raise NeighbourError(f"neighbour {task!r} {outcome}: {words}")
        time.sleep(_LOOK_EVERY_S)


def _environment(uuids: Sequence[str]) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": spawn.python_path(),
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # every block is the driver's own, of the size that was asked
    }
