"""Starting and ending the process that keeps a simulated node."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
from faults.gpu.keeper import HOST, Record
from faults.gpu.nvml.build import NoCompiler, library
from faults.gpu.profiles import profile
from faults.gpu.sim import SimNode
from harness.children import python_path
from harness.errors import OwnFailure, UsageError

READY_WITHIN_S = 10.0
ENDS_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.02


def start(file: Path, profile: str, cards: int, topology: str | None, metrics_port: int) -> list[str]:
    """Make a node and have it kept; lines that say how to use it. UsageError if it can't be."""
    file, record = file.absolute(), record_of(file)
    refuse_kept(file, record)
    with _create(file, profile, cards, topology) as node:
        made = f"node     {file}: {cards} x {node.profile.product} ({profile}), {node.topology}"
    try:
        kept = _keep(file, record, metrics_port)
    except BaseException:
        _remove(file, record)
        raise
    lines = [made, f"keeper   process {kept.pid}; it ends with: brownout gpu stop{_which(file)}"]
    if kept.port:
        lines.append(f"metrics  http://{HOST}:{kept.port}/metrics")
    return lines + how_to_see(file)


def how_to_see(file: Path) -> list[str]:
    """What to do so that NVML clients see a node; why they can't, if there is no compiler."""
    try:
        place = library()
    except NoCompiler as error:
        return [f"NVML     not available: {error}"]
    return [
        f"NVML     {place}",
        "In the shell of whatever is to see these cards:",
        f"  export BROWNOUT_NODE={shlex.quote(str(file))} "
        f"LD_LIBRARY_PATH={shlex.quote(str(place.parent))}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
        "  nvitop          # or gpustat, or anything else that asks NVML",
    ]


def stop(file: Path) -> str:
    """End a node's keeper and remove the node; what was done. UsageError if there is none."""
    file, record = file.absolute(), record_of(file)
    kept = Record.read(record)
    if kept is None:
        raise UsageError(f"no node is kept at {file}: `brownout gpu start` makes one")
    told = f"the keeper (process {kept.pid}) was gone already; removed {file}"
    if kept.alive:
        _end(kept)
        told = f"ended the keeper (process {kept.pid}) and removed {file}"
    _remove(file, record)
    return told


def record_of(file: Path) -> Path:
    """Where it is written down who keeps a node."""
    return file.absolute().with_name(f"{file.name}.keeper")


def refuse_kept(file: Path, record: Path) -> None:
    """UsageError if the node is there already, unless all that is left is what a killed keeper left."""
    kept = Record.read(record)
    if kept is not None and kept.alive:
        raise UsageError(
            f"a node is kept at {file} already, by process {kept.pid}: "
            f"`brownout gpu stop{_which(file)}` ends it, or name another --file"
        )
    if kept is not None:
        _remove(file, record)
    elif file.exists():
        raise UsageError(f"{file} exists, and `brownout gpu start` did not make it: name another --file")


def _create(file: Path, profile_name: str, cards: int, topology: str | None) -> SimNode:
    try:
        profile(profile_name)
    except ValueError as error:
        raise UsageError(f"--profile: {error}") from error
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return SimNode.create(file, profile_name, cards, topology=topology)
    except FileExistsError as error:
        raise UsageError(f"{file} was made by somebody else just now") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"can't make a node at {file}: {error}") from error


def _keep(file: Path, record: Path, metrics_port: int) -> Record:
    """Start the keeper and wait until it is up."""
    starting = subprocess.Popen(
        # -P: a `faults` folder where the user happens to be must not shadow this one.
        [sys.executable, "-P", "-m", "faults.gpu.keeper", "--node", str(file), "--record", str(record),
         "--metrics-port", str(metrics_port), "--detach"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": python_path(faults.__file__)},
        start_new_session=True,  # it outlives the terminal
    )  # fmt: skip
    # What it says comes from the process that it leaves behind; it is itself gone at once.
    with starting:
        assert starting.stdout is not None
        assert starting.stderr is not None
        readable, _, _ = select.select([starting.stdout], [], [], READY_WITHIN_S)
        if readable and starting.stdout.readline().startswith(b"ready"):
            kept = Record.read(record)
            assert kept is not None
            return kept
        if not readable:
            raise OwnFailure(f"the node's keeper was not ready within {READY_WITHIN_S:g} s")
        words = starting.stderr.read().decode(errors="replace").strip()
    if words and "Traceback" not in words:
        raise UsageError(words)
    raise OwnFailure(f"the node's keeper did not come up: {words or 'it said nothing'}")


def _end(kept: Record) -> None:
    """Ask it to go, and kill it if it doesn't."""
    for number, patience_s in ((signal.SIGTERM, ENDS_WITHIN_S), (signal.SIGKILL, ENDS_WITHIN_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(kept.pid, number)
        until = time.monotonic() + patience_s
        while kept.alive and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        if not kept.alive:
            return
    raise OwnFailure(f"the keeper (process {kept.pid}) does not end")


def _remove(file: Path, record: Path) -> None:
    file.unlink(missing_ok=True)
    record.unlink(missing_ok=True)


def _which(file: Path) -> str:
    from harness.gpu.commands import NODE

    return "" if file == NODE.absolute() else f" --file {shlex.quote(str(file))}"
