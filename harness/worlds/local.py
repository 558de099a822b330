"""The local world: the bundled service as a process, on a simulated node that its neighbours share."""

from __future__ import annotations

import errno
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import faults
from faults.gpu.sim import SimNode
from harness.children import Child, python_path
from harness.drill import Drill, Target
from harness.errors import OwnFailure, UsageError
from harness.journal import JournalTail
from harness.recorder import Recorder
from harness.sampling import Sampler, node_telemetry, service_metrics, time_on_cores
from harness.store import Run
from harness.worlds.stage import Stage

HOME = Path(".brownout")  # built-in checkpoints are kept here between runs
BUILT_IN_CARDS = 4
READY_WITHIN_S = 120.0
STOP_WITHIN_S = 15.0
HAS_SCHEDSTAT = Path("/proc/self/schedstat").exists()  # a kernel option
IDLE_WITHIN_S = 2.0
LOOK_EVERY_S = 0.05
NODE_INTERVAL_S = 0.1
METRICS_INTERVAL_S = 0.25


class LocalWorld:
    """One node, one service; both are gone when the block is left."""

    name = "local"

    def refuse(self, drill: Drill) -> None:
        if drill.target.url is not None:
            raise UsageError("world local starts the bundled service itself; a target.url needs --world live")
        for field in ("model", "light_model"):
            folder = getattr(drill.target, field)
            if folder is not None and not (Path(folder) / "config.json").is_file():
                raise UsageError(f"target.{field}: {folder!r} has no config.json; give a Hugging Face folder")
        if drill.target.model is None:
            refuse_cards(drill.node.cards, "node.cards")
        if drill.target.port is not None:
            refuse_port_in_use(drill.target.port, "target.port")
        refuse_impossible_faults(drill)

    @contextmanager
    def stage(self, drill: Drill, run: Run, recorder: Recorder, check: Callable[[], None]) -> Iterator[Stage]:
        node_file, journal_file = run.folder / "node.bin", run.folder / "journal.jsonl"
        node = new_node(node_file, drill)
        service: Child | None = None
        port, unreturned = 0, None
        try:
            with ExitStack() as stack:
                # The tail outlives the service, which says goodbye in its journal.
                stack.enter_context(JournalTail(journal_file, recorder))
                stderr = stack.enter_context(tempfile.TemporaryFile(dir=run.folder))
                words = service_words(drill.target, drill.seed, node_file, journal_file)
                service = Child(
                    "the service",
                    words,
                    stderr=stderr,
                    environment={"PYTHONPATH": python_path(faults.__file__)},
                )
                stack.callback(end_of, service, recorder)
                greeting = service.greeting(READY_WITHIN_S, check)
                port = int(greeting["port"])
                metrics = stack.enter_context(service_metrics(greeting["url"]))
                stack.enter_context(Sampler("node", node_telemetry(node), NODE_INTERVAL_S, recorder))
                stack.enter_context(Sampler("target", metrics, METRICS_INTERVAL_S, recorder))
                if HAS_SCHEDSTAT:
                    cores = Sampler("host", time_on_cores(service.pid), METRICS_INTERVAL_S, recorder)
                    stack.enter_context(cores)
                free_bytes = free_memory(node)
                yield Stage(greeting["url"], node, model=None, check=partial(check_alive, service))
                unreturned = unreturned_bytes(node, free_bytes)
        finally:
            try:
                left = leftovers(node, run.folder, recorder, port)
                recorder.note("leftover", idle_bytes=told(unreturned), **left)
            finally:
                node.destroy()


def refuse_cards(cards: int, asked_by: str) -> None:
    """UsageError unless the built-in weights can be shared by so many cards, and fit on them."""
    if cards != BUILT_IN_CARDS:
        raise UsageError(
            f"{asked_by}: {cards}: the built-in weights are made for {BUILT_IN_CARDS} cards; "
            "another number takes a model of one's own"
        )


def refuse_impossible_faults(drill: Drill) -> None:
    """UsageError for a fault that the drill's node can't have, found out on one that nobody uses."""
    with tempfile.TemporaryDirectory() as folder, new_node(Path(folder) / "node.bin", drill) as node:
        for place, step in enumerate(drill.timeline):
            try:
                step.fault.check_node(node)
            except ValueError as error:
                raise UsageError(f"timeline[{place}].fault of {step.id}: {error}") from error


def end_of(service: Child, recorder: Recorder) -> None:
    """End the service; that it had ended by itself is part of what happened."""
    if service.has_ended:
        code = service.process.returncode
        recorder.note("service", event="died", exit_code=code, last_words=service.last_words())
    service.end(STOP_WITHIN_S)


def service_words(target: Target, seed: int, node: Path, journal: Path) -> list[str]:
    """The command line of the bundled service for a drill's target."""
    settings = {
        "seed": seed,
        "model": target.model,
        "light_model": target.light_model,
        "preemption": target.preemption,
        "max_running": target.max_running,
        "max_queue": target.max_queue,
        "breaker_time_scale": target.breaker_time_scale,
        "countermeasures": target.countermeasures.model_dump(),
    }
    return [
        sys.executable, "-P", "-m", "target", "--node", str(node), "--journal", str(journal),
        "--home", str(HOME), "--port", str(target.port or 0), "--settings", json.dumps(settings),
        "--until-stdin-closes",
    ]  # fmt: skip


def new_node(file: Path, drill: Drill) -> SimNode:
    """The drill's node."""
    return SimNode.create(file, drill.node.profile, drill.node.cards, topology=drill.node.topology)


def check_alive(service: Child) -> None:
    """OwnFailure if the service is gone: what follows would say nothing about it that this does not."""
    if service.has_ended:
        raise OwnFailure(f"the service ended by itself: {service.last_words() or 'without a word'}")


def free_memory(node: SimNode) -> list[int]:
    """Bytes free on each card."""
    return [node.memory(card).free_bytes for card in range(node.cards)]


def unreturned_bytes(node: SimNode, before: list[int]) -> int:
    """What an idle service holds more of, over all cards, than when it had just begun; it has a while to give back."""
    until = time.monotonic() + IDLE_WITHIN_S
    while True:
        more = sum(max(0, then - now) for then, now in zip(before, free_memory(node), strict=True))
        if not more or time.monotonic() >= until:
            return more
        time.sleep(LOOK_EVERY_S)


def told(count: int | None) -> int | str:
    return "unknown: the run was cut short" if count is None else count


def leftovers(node: SimNode, folder: Path, recorder: Recorder, port: int) -> dict[str, Any]:
    """What is still there once everything should be gone."""
    stopped = [e for e in recorder.history().of_kind("service") if e["event"] == "stopped"]
    used = sum(node.memory(card).total_bytes - node.memory(card).free_bytes for card in range(node.cards))
    flows = sum(node.link(name).flows for name in node.links())
    ours = psutil.Process().children(recursive=True)
    known = {"drill.yaml", "history.jsonl", "node.bin"}
    return {
        "kv_blocks": stopped[-1]["kv_blocks"] if stopped else "unknown: the service did not say goodbye",
        "memory_bytes": used,
        "flows": flows,
        "processes": [f"{process.pid} {name_of(process)}" for process in ours],
        "ports": [port] if port and _is_open(port) else [],
        "files": sorted(path.name for path in folder.iterdir() if path.name not in known),
    }


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:5])
    except psutil.Error:
        return "(already gone)"


def refuse_port_in_use(port: int, asked_by: str, host: str = "127.0.0.1") -> None:
    """UsageError unless a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"{asked_by}: {port} is in use on {host}; take another, or end what uses it"
                ) from error
            raise UsageError(f"{asked_by}: can't listen on {host}:{port}: {error.strerror}") from error


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
