"""The service's own record of what it did: JSON lines, each with `t` in CLOCK_MONOTONIC seconds and a `kind`.

Lines are numbered in `n`, from 1 in each life of the service: a number that is missing is a line that was lost.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any


class Journal:
    """Appends to a file, a line at a time; without a file it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self._lock = threading.Lock()
        self._n = 0
        self._torn = False  # whether the last line has no end

    def __call__(self, event: dict[str, Any]) -> None:
        """Write one event. A disk that is full must not stop the service: the line is lost, the service is not."""
        if self._file is None:
            return
        with self._lock:
            self._n += 1
            line = json.dumps({"n": self._n, **event}, separators=(",", ":")).encode() + b"\n"
            if self._torn:
                line = b"\n" + line
            with contextlib.suppress(OSError):
                written = self._file.write(line)
                self._torn = written < len(line) if written else self._torn

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
