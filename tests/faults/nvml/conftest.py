"""A node under load, the library that shows it, and clients of that library as child processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.gpu.links import ENDLESS
from faults.gpu.nvml.build import library as build_library
from faults.gpu.profiles import GIB
from faults.gpu.sim import SimNode

HERE = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Werror")
HELD = {0: 20 * GIB, 1: 1 * GIB}  # what the test's own process holds on each card


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled without a single warning."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here (cc): the NVML library can't be built")
    return build_library(tmp_path_factory.mktemp("nvml"), STRICT)


@pytest.fixture
def attended(path: Path) -> Iterator[SimNode]:
    """A node of four H100 with somebody who ticks it."""
    ending = threading.Event()
    with SimNode.create(path, "h100-sxm-80", 4) as node:

        def attend() -> None:
            while not ending.wait(0.1):
                node.tick()

        thread = threading.Thread(target=attend)
        thread.start()
        yield node
        ending.set()
        thread.join()


@pytest.fixture
def loaded(attended: SimNode, soon: Callable[[Callable[[], bool]], None]) -> SimNode:
    """That node with memory held, kernels running on card 0, copies to the host and to card 1."""
    for card, nbytes in HELD.items():
        attended.alloc(card, nbytes)
    links = ("sm:0", "pcie:0:d2h", *attended.route(0, 1))
    attended.start([(link, ENDLESS) for link in links])
    soon(lambda: attended.shown_card(0).gpu_util_percent > 99.9)
    return attended


Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ask(library: Path, path: Path) -> Ask:
    """Runs a client with the library in its way; `python -m` of a module, or a script of this folder."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = words[0].endswith(".py")
        command = [str(HERE / words[0]), *words[1:]] if script else ["-m", *words]
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library.parent),
            "BROWNOUT_NODE": str(path),
            "COLUMNS": "120",
        }
        return subprocess.run(
            [sys.executable, *command],
            env={**env, **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.fixture
def look(ask: Ask) -> Callable[..., Any]:
    """What a script of this folder says in JSON."""

    def run(script: str, *words: str) -> Any:
        done = ask(script, *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
