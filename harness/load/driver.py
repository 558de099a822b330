"""Driving the load from outside: Locust in a child process, its requests as events.

The child ends when its plan is played, when it is told to, or when this process is gone, however it went.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from harness.errors import OwnFailure
from harness.load.arrival import Arrival
from harness.load.child import Child
from harness.load.progress import Progress, Tally

READY_WITHIN_S = 60.0  # importing Locust on a busy machine
STOP_WITHIN_S = 8.0  # the child cancels what is in flight and says so
WAIT_SLACK_S = 15.0  # beyond the last moment at which a request can still be in flight
START_AFTER_S = 0.1  # from being ready to the start, if no start time is given


class LoadDriver:
    """Plays a plan against a server; `on_event` gets each finished request, on a thread of the driver's.

    An event has the fields of a history's `request` event (without `kind`), its times being CLOCK_MONOTONIC
    seconds. Without `start_at_monotonic` the load starts as soon as the child is ready: read `start_at` after
    `start()`. A server that wants a key is sent the one in the variable BROWNOUT_API_KEY. Used once.
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
        check: Callable[[], None] = lambda: None,
        id_prefix: str = "r",
    ) -> None:
        if not plan:
            raise ValueError("a load needs at least one arrival")
        self.start_at = start_at_monotonic
        self._url = target_url
        self._plan = plan
        self._run_dir = run_dir
        self._timeout_s = timeout_s
        self._model = model
        self._on_event = on_event
        self._check = check
        self._id_prefix = id_prefix
        self._tally = Tally(planned=len(plan))
        self._ready = threading.Event()
        self._played = False  # the child says so, having told all
        self._stopped = False  # by us
        self._problem: Exception | None = None
        self._child: Child | None = None
        self._reader = threading.Thread(target=self._read, name="load-reader", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the child and give it the start time. OwnFailure if it is not ready in time for it."""
        try:
            self._child = Child(self._config(), self._run_dir)
            self._reader.start()
            self._await_ready(self._child)
            self._send_start(self._child)
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Until the last answer is over, or `stop`. OwnFailure if the child ended by itself before that."""
        if self._child is None or self.start_at is None:
            raise RuntimeError("the load was not started")
        over_by = (
            self.start_at + max(arrival.due_s for arrival in self._plan) + self._timeout_s + WAIT_SLACK_S
        )
        try:
            code = self._child.process.wait(timeout=max(over_by - time.monotonic(), 0.0))
            self._reader.join(timeout=STOP_WITHIN_S)
            if self._problem is not None:
                raise OwnFailure(
                    f"load generator: an event was not taken: {self._problem}"
                ) from self._problem
            finished = self.progress.finished
            if not self._stopped and (code != 0 or not self._played or finished < len(self._plan)):
                over = f"{finished} of {len(self._plan)} requests over"
                raise OwnFailure(f"load generator: {over}, then {self._child.how_it_ended()}")
        except subprocess.TimeoutExpired:
            raise OwnFailure(
                f"load generator: runs {WAIT_SLACK_S:g} s after its last request's timeout"
            ) from None
        finally:
            self.stop()

    def stop(self) -> None:
        """End the child; what is in flight is reported as cancelled. Harmless if over. Leaves no file."""
        if self._child is None:
            return
        process = self._child.process
        if process.poll() is None:
            self._stopped = True
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_WITHIN_S)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._reader is not threading.current_thread() and self._reader.ident is not None:
            self._reader.join(timeout=STOP_WITHIN_S)
        self._child.close()

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child is not None and self._child.process.poll() is None

    @property
    def progress(self) -> Progress:
        """Counts so far."""
        return self._tally.progress()

    @property
    def lateness_p99_ms(self) -> float:
        """The 99th percentile of actual minus intended send time, over all sent so far; NaN if none was."""
        return self._tally.lateness_p99_ms()

    def _config(self) -> dict[str, Any]:
        return {
            "url": self._url,
            "model": self._model,
            "timeout_s": self._timeout_s,
            "id_prefix": self._id_prefix,
            "arrivals": [asdict(arrival) for arrival in self._plan],
        }

    def _await_ready(self, child: Child) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._ready.wait(timeout=0.05):
            self._check()
            if child.process.poll() is not None:
                raise OwnFailure(f"load generator: did not get ready, but {child.how_it_ended()}")
            if time.monotonic() > deadline:
                raise OwnFailure(
                    f"load generator: not ready within {READY_WITHIN_S:g} s; {child.last_words()}"
                )

    def _send_start(self, child: Child) -> None:
        now = time.monotonic()
        if self.start_at is None:
            self.start_at = now + START_AFTER_S
        elif self.start_at < now:
            raise OwnFailure(f"load generator: ready {now - self.start_at:.1f} s after the load was to start")
        child.socket.sendall(json.dumps({"start_at": self.start_at}).encode() + b"\n")

    def _read(self) -> None:
        assert self._child is not None
        try:
            with self._child.socket.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, json.JSONDecodeError):
            return  # cut off: `wait` sees that the child did not say that all was played

    def _take(self, line: dict[str, Any]) -> None:
        match line:
            case {"sent": index, "t": t}:
                self._tally.sent(t - (self.start_at or 0.0) - self._plan[index].due_s)
            case {"request": request}:
                self._tally.finished(request)
                try:
                    self._on_event(request)
                except Exception as problem:
                    self._problem = self._problem or problem
            case {"ready": _}:
                self._ready.set()
            case {"end": how}:
                self._played = how == "played"
