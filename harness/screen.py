"""What a drill tells while it runs: a line for each phase, kept alive on a terminal, plain in a log."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

REFRESH_S = 0.25


class Screen:
    """Writes to standard error, which people read; standard output is for programs."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._alive = self._out.isatty()
        self._phase = ""
        self._began_s = self._drawn_s = 0.0
        self._status = ""

    def say(self, line: str) -> None:
        """A line of its own."""
        self._write(f"{self._blank()}{line}\n")

    def phase(self, name: str) -> None:
        """Begin a phase; the one before it is finished with its last status."""
        self.finish()
        self._phase, self._status = name, ""
        self._began_s = self._clock()

    def status(self, text: str) -> None:
        """How it is going; drawn a few times a second on a terminal, kept for the phase's last line elsewhere."""
        self._status = text
        if self._alive and self._phase and self._clock() - self._drawn_s >= REFRESH_S:
            self._drawn_s = self._clock()
            width = shutil.get_terminal_size().columns
            self._write(f"{self._blank()}{self._line()[: width - 1]}")  # a line that wraps can't be redrawn

    def finish(self) -> None:
        """End the phase under way."""
        if self._phase:
            self._write(f"{self._blank()}{self._line()}\n")
            self._phase = ""

    def _line(self) -> str:
        return f"  {self._phase:<34} {self._clock() - self._began_s:5.1f} s  {self._status}"

    def _blank(self) -> str:
        """Clears the line that is being redrawn."""
        return "\r\x1b[2K" if self._alive else ""

    def _write(self, text: str) -> None:
        # Nobody may be reading any more (`| head`); the drill goes on, and its history has everything.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()
