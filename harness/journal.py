"""Follows the service's journal while it is written, so that a run's history has it even if the run dies."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import IO

from harness.recorder import Recorder

LOOK_EVERY_S = 0.1


class JournalTail:
    """Absorbs each whole line of a growing file once; leaving the block takes the rest and removes the file."""

    def __init__(self, path: Path, recorder: Recorder) -> None:
        self._path = path
        self._recorder = recorder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="journal", daemon=True)
        self._rest = b""

    def __enter__(self) -> JournalTail:
        self._path.touch()
        self._file: IO[bytes] = self._path.open("rb")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._take()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _loop(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._take()

    def _take(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a service killed in mid-line leaves half of one
            if isinstance(event, dict) and {"kind", "t"} <= event.keys():
                self._recorder.absorb(event)
