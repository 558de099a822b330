"""Child processes of a drill: their first line of JSON, their orderly end, and proof that they are gone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from harness.errors import OwnFailure

TAIL_BYTES = 2000
CHECK_EVERY_S = 0.1


class Child:
    """A process in a session of its own, so that Ctrl-C reaches it only through us.

    Its standard input is a pipe that closes when we are gone, however we went: it must end itself then.
    """

    def __init__(
        self, name: str, words: Sequence[str], *, stderr: IO[bytes], environment: dict[str, str]
    ) -> None:
        self.name = name
        self._stderr = stderr
        self.process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def greeting(self, within_s: float, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Its first line of standard output, as JSON. OwnFailure with its last words if there is none in time.

        `check` is called while waiting, and may raise to give up.
        """
        assert self.process.stdout is not None
        line, until = b"", time.monotonic() + within_s
        while b"\n" not in line:
            check()
            left_s = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], min(left_s, CHECK_EVERY_S))
            if not ready and left_s > CHECK_EVERY_S:
                continue
            more = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not more:
                how = "ended" if ready else f"said nothing for {within_s:g} s"
                raise OwnFailure(
                    f"{self.name} {how} before it was ready: {self.last_words() or 'no message'}"
                )
            line += more
        first = line.partition(b"\n")[0]
        try:
            greeting: dict[str, Any] = json.loads(first)
        except ValueError as error:
            raise OwnFailure(f"{self.name} greeted with {first[:200]!r}, which is not JSON") from error
        return greeting

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return last_words_in(self._stderr)

    def end(self, within_s: float) -> None:
        """SIGTERM, then SIGKILL for it and whatever is left of its group; returns when it is gone."""
        if not self.has_ended:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(within_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def last_words_in(stderr: IO[bytes]) -> str:
    """The end of a file that a process writes; read without moving the place where it writes."""
    size = os.fstat(stderr.fileno()).st_size
    return os.pread(stderr.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").strip()


def python_path(package_file: str) -> str:
    """A search path that finds our packages first, whatever folder the user is in."""
    ours = str(Path(package_file).resolve().parents[1])
    return os.pathsep.join(part for part in (ours, os.environ.get("PYTHONPATH")) if part)
