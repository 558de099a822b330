"""What a client of NVML hears of a node: a child process with nvidia-ml-py, and the library in its way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import pytest

from faults.gpu.nvml.build import library
from faults.gpu.sim import SimNode

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = tempfile.TemporaryDirectory(prefix="brownout-nvml-")


@dataclass(frozen=True)
class Heard:
    """The codes of nvmlInit and of a call after it, how long that call took, and figures of each card."""

    init: int
    call: int = 0
    call_s: float = 0.0
    corrected: list[int] = field(default_factory=list)  # volatile ECC errors
    energy_mj: list[int] = field(default_factory=list)
    processes: list[list[int]] = field(default_factory=list)


@cache
def built() -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here (cc): the NVML library can't be built")
    return library(Path(_FOLDER.name))


def heard(node: SimNode) -> Heard:
    """Ask through NVML, now."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(built().parent), "BROWNOUT_NODE": str(node.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.nvml_client"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Heard(**json.loads(done.stdout))


def ask() -> Heard:
    """In the child: one call for its code and its time, then figures if calls are answered."""
    import pynvml as nvml

    def code(call: Callable[[], object]) -> int:
        try:
            call()
        except nvml.NVMLError as error:
            return int(error.value)
        return 0

    if init := code(nvml.nvmlInit):
        return Heard(init)
    since = time.monotonic()
    called = code(nvml.nvmlDeviceGetCount)
    took_s = time.monotonic() - since
    if called or took_s > 0.2:
        return Heard(init, called, took_s)
    cards = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    return Heard(
        init,
        called,
        took_s,
        corrected=[nvml.nvmlDeviceGetTotalEccErrors(card, 0, 0) for card in cards],
        energy_mj=[nvml.nvmlDeviceGetTotalEnergyConsumption(card) for card in cards],
        processes=[[one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(card)] for card in cards],
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(ask())))
