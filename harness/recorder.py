"""Writes a history while it happens: each event is a line on disk before anything else is done with it.

A disk that takes no more must not stand in the way of an undo: from then on events are kept in memory only, and
`check` says so to whoever decides whether the drill goes on.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import OwnFailure
from harness.history import Event, History

# Times in a request event; the others have only `t`.
REQUEST_TIMES = ("t", "due", "sent", "first")


class Recorder:
    """One run's events, from any thread. `start` is the drill's zero on the monotonic clock."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)  # a line is one write, and nothing lingers in a buffer
        self._problem: OSError | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.start = clock()

    def now(self) -> float:
        """Seconds since the drill's start."""
        return self._clock() - self.start

    def note(self, kind: str, *, at: float | None = None, **fields: Any) -> Event:
        """An event of ours, now or at `at` (monotonic seconds)."""
        t = self.now() if at is None else at - self.start
        event = {"t": round(t, 6), "kind": kind, **fields}
        self._append(event)
        return event

    def absorb(self, event: Event, **fields: Any) -> None:
        """An event of another process on the same clock: its absolute times become ours."""
        own = {name: event[name] - self.start for name in REQUEST_TIMES if event.get(name) is not None}
        if event.get("tokens_t"):
            own["tokens_t"] = [round(t - self.start, 6) for t in event["tokens_t"]]
        self._append(
            {**event, **{k: v if k == "tokens_t" else round(v, 6) for k, v in own.items()}, **fields}
        )

    def history(self) -> History:
        """What was recorded so far."""
        with self._lock:
            return History.of(self._events)

    def check(self) -> None:
        """OwnFailure if some event is not on disk."""
        if self._problem is not None:
            why = self._problem.strerror or self._problem
            raise OwnFailure(f"the history can't be written to {self._path}: {why}") from self._problem

    def close(self) -> None:
        """No more events; what comes later from a thread that is late is dropped."""
        with self._lock:
            self._file.close()

    def _append(self, event: Event) -> None:
        line = json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n"
        with self._lock:
            if self._file.closed:
                return
            self._events.append(event)
            if self._problem is None:  # after half a line, more lines would make it unreadable
                self._write(line.encode())

    def _write(self, line: bytes) -> None:
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "only half a line was taken")
        except OSError as problem:
            self._problem = problem
