"""The service's own record of what it did: JSON lines, each with `t` in CLOCK_MONOTONIC seconds and a `kind`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any


class Journal:
    """Appends to a file, a line at a time; without a file it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", buffering=1) if path else None
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        """Write one event. A disk that is full must not stop the service: the line is lost, the service is not."""
        if self._file is None:
            return
        with self._lock:
            try:
                self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            except OSError:
                return

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
