"""A process that works on a node and does as it is told, for tests that hold for every kind of node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class NoRoom(Exception):
    """The card was out of memory for it."""


class Tenant:
    """The parent's end. Sizes are bytes, and times are what the device says."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def alloc(self, card: int, nbytes: int) -> int:
        """Memory of a card; what to free it by. NoRoom if there is none."""
        return int(self._ask("alloc", card=card, nbytes=nbytes))

    def free(self, key: int) -> None:
        self._ask("free", key=key)

    def host_copies(self, card: int, way: str, nbytes: int, count: int) -> list[float]:
        """So many copies at the same time, `h2d` or `d2h`; how many seconds each took."""
        return list(self._ask("host_copies", card=card, way=way, nbytes=nbytes, count=count))

    def peer_copies(self, source: int, to: int, nbytes: int, count: int) -> list[float]:
        """So many copies from card to card at the same time; how many seconds each took."""
        return list(self._ask("peer_copies", source=source, to=to, nbytes=nbytes, count=count))

    def kernel(self, card: int, bound: str, work_s: float) -> float:
        """A kernel bound by compute (`sm`) or by memory (`hbm`), of so much work at full clocks; its seconds."""
        return float(self._ask("kernel", card=card, bound=bound, work_s=work_s))

    def keep_copying(self, card: int, way: str) -> None:
        """One copy after the other, from now on."""
        self._ask("keep_copying", card=card, way=way)

    def stop_copying(self) -> None:
        self._ask("stop_copying")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def _ask(self, do: str, **settings: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **settings}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it is gone"}')
        if answer.get("no_room"):
            raise NoRoom(answer["no_room"])
        assert "error" not in answer, answer["error"]
        return answer["ok"]


@contextmanager
def tenant(script: str, words: Sequence[str]) -> Iterator[Tenant]:
    """One that runs a script beside this file, while the block lasts."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Tenant(process)
    finally:
        process.kill()
        process.communicate()


def serve(worker: object, no_room: type[BaseException]) -> None:
    """The child's end: do as the lines of standard input say, until it ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"ok": getattr(worker, asked.pop("do"))(**asked)}
        except no_room as error:
            answer = {"no_room": str(error)}
        except Exception as error:
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
