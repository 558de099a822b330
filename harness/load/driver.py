"""Driving the load from outside: Locust in a child process, its requests as events.

The child ends when its plan is played, when it is told to, or when this process is gone, however it went.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

import harness
from harness.errors import OwnFailure
from harness.load.arrival import Arrival
from harness.load.progress import Progress, Tally

READY_WITHIN_S = 60.0  # importing Locust on a busy machine
STOP_WITHIN_S = 8.0  # the child cancels what is in flight and says so
WAIT_SLACK_S = 15.0  # beyond the last moment at which a request can still be in flight
STDERR_TAIL = 2000
LOCUSTFILE = Path(__file__).with_name("locustfile.py")


class LoadDriver:
    """Plays a plan against a server; `on_event` gets each finished request, on a thread of the driver's.

    An event has the fields of a history's `request` event, its times being CLOCK_MONOTONIC seconds. Without
    `start_at_monotonic` the load starts as soon as the child is ready: read `start_at` after `start()`.
    """

    def __init__(
        self,
        target_url: str,
        plan: tuple[Arrival, ...],
        start_at_monotonic: float | None,
        run_dir: Path,
        timeout_s: float,
        model: str | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        id_prefix: str = "r",
    ) -> None:
        self.start_at = start_at_monotonic
        self._url = target_url
        self._plan = plan
        self._run_dir = run_dir
        self._timeout_s = timeout_s
        self._model = model
        self._on_event = on_event
        self._id_prefix = id_prefix
        self._tally = Tally(planned=len(plan))
        self._ready = threading.Event()
        self._played = False  # the child said that it told all
        self._problem: BaseException | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the child and give it the start time. OwnFailure if it is not ready in time for it."""
        try:
            self._spawn()
            self._await_ready()
            self._send_start()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Until the last answer is over. OwnFailure if the child did not play the whole plan."""
        child, reader = self._started()
        last_due = self._plan[-1].due_s if self._plan else 0.0
        deadline = (self.start_at or time.monotonic()) + last_due + self._timeout_s + WAIT_SLACK_S
        try:
            try:
                code = child.wait(timeout=max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                raise OwnFailure(
                    f"load generator: still running {WAIT_SLACK_S:g} s after its last timeout"
                ) from None
            reader.join(timeout=STOP_WITHIN_S)
            if self._problem is not None:
                raise OwnFailure(
                    f"load generator: its event could not be taken: {self._problem}"
                ) from self._problem
            if code != 0 or not self._played:
                raise OwnFailure(f"load generator: {self._how_it_ended(code)}")
        finally:
            self.stop()

    def stop(self) -> None:
        """End the child, with what is in flight reported as cancelled; harmless if it is over. Leaves no file."""
        child, reader = self._child, self._reader
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=STOP_WITHIN_S)
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if reader is not None and reader is not threading.current_thread():
            reader.join(timeout=STOP_WITHIN_S)
        self._resources.close()

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child is not None and self._child.poll() is None

    @property
    def progress(self) -> Progress:
        """Counts so far."""
        return self._tally.progress()

    @property
    def lateness_p99_ms(self) -> float:
        """The 99th percentile of actual minus intended send time, over all sent so far; NaN if none was."""
        return self._tally.lateness_p99_ms()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._resources.callback(ours.close)
        plan_file = self._write_plan(theirs.fileno())
        self._stderr: IO[bytes] = self._resources.enter_context(tempfile.TemporaryFile())
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *_locust_options(self._url)],
                cwd=self._run_dir,
                env=_environment(self._run_dir, plan_file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        self._socket = ours
        self._reader = threading.Thread(target=self._read, args=(ours,), name="load-reader", daemon=True)
        self._reader.start()

    def _write_plan(self, fd: int) -> Path:
        config = {
            "url": self._url,
            "model": self._model,
            "timeout_s": self._timeout_s,
            "id_prefix": self._id_prefix,
            "fd": fd,
            "parent": os.getpid(),
            "arrivals": [asdict(arrival) for arrival in self._plan],
        }
        self._run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self._run_dir, prefix="load-", suffix=".json", delete=False
        ) as out:
            json.dump(config, out)
        path = Path(out.name).absolute()
        self._resources.callback(path.unlink, missing_ok=True)
        return path

    def _await_ready(self) -> None:
        child, _ = self._started()
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._ready.wait(timeout=0.05):
            if child.poll() is not None:
                raise OwnFailure(f"load generator: {self._how_it_ended(child.returncode)}")
            if time.monotonic() > deadline:
                raise OwnFailure(
                    f"load generator: not ready within {READY_WITHIN_S:g} s; {self._stderr_tail()}"
                )

    def _send_start(self) -> None:
        now = time.monotonic()
        if self.start_at is None:
            self.start_at = now + 0.1
        elif self.start_at < now:
            raise OwnFailure(f"load generator: ready {now - self.start_at:.1f} s after the load was to start")
        self._socket.sendall(json.dumps({"start_at": self.start_at}).encode() + b"\n")

    def _read(self, ours: socket.socket) -> None:
        try:
            with ours.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            return  # cut off: `wait` sees that the child did not say that it told all
        except Exception as problem:
            self._problem = problem

    def _take(self, line: dict[str, Any]) -> None:
        if "request" in line:
            self._tally.finished(line["request"])
            self._on_event(line["request"])
        elif "sent" in line:
            due = (self.start_at or 0.0) + self._plan[line["sent"]].due_s
            self._tally.sent(line["t"] - due)
        elif "ready" in line:
            self._ready.set()
        elif "end" in line:
            self._played = True

    def _started(self) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        if self._child is None or self._reader is None:
            raise RuntimeError("the load was not started")
        return self._child, self._reader

    def _how_it_ended(self, code: int) -> str:
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}, {self._tally.progress().finished} of {len(self._plan)} requests over; {self._stderr_tail()}"

    def _stderr_tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - STDERR_TAIL, 0))
        return f"its last words: {self._stderr.read().decode(errors='replace').strip() or 'none'}"


def _locust_options(url: str) -> list[str]:
    """One user, no web page, no files, no table on the way; the locustfile decides when it is over."""
    return [
        "--headless",
        "--users",
        "1",
        "--spawn-rate",
        "1",
        "--only-summary",
        "--loglevel",
        "WARNING",
        "--host",
        url,
    ]


def _environment(run_dir: Path, plan_file: Path) -> dict[str, str]:
    """Ours, but for what would let someone's own Locust settings change the load."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    root = str(Path(harness.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (root, kept.get("PYTHONPATH")) if part)
    return {**kept, "PYTHONPATH": path, "HOME": str(run_dir), "BROWNOUT_LOAD_PLAN": str(plan_file)}
