"""A world whose service is a script in a thread, on a real simulated node; and a drill that is over in two seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from faults.gpu.sim import SimNode
from harness.drill import Drill
from harness.load.plan import Arrival
from harness.recorder import Recorder
from harness.store import Run
from harness.worlds.stage import Stage
from tests.builders import an_slo
from tests.load.fake_server import FakeServer

NVLINK = {"kind": "nvlink_degrade", "links": ["0-1"], "percent": 30}


def short_drill(**settings: Any) -> Drill:
    """Two seconds of load; a fault from 0.5 s on, for half a second."""
    plain = {
        "name": "short",
        "why": "is over soon, whatever happens in it",
        "load": {"trace": "none.csv", "offset_s": 0, "span_s": 2, "timeout_s": 3},
        "timeline": [{"id": "one", "at_s": 0.5, "hold_s": 0.5, "effect_within_s": 3, "fault": NVLINK}],
        "steady_state": [an_slo("error_ratio", phase="baseline", max=0.5)],
        "slos": [an_slo("error_ratio", max=0.5)],
        "fidelity_sample": 4,
        "blast_radius": {"cards_max": 2},
    }
    return Drill.model_validate(plain | settings)


def short_plan(until_s: float = 1.9, every_s: float = 0.1) -> tuple[Arrival, ...]:
    return tuple(Arrival(i, i * every_s, 4, 2, f"0/prompt/0/{i}") for i in range(round(until_s / every_s)))


@dataclass
class AlsoPlain(FakeServer):
    """Answers requests that want no stream too; `again` gives the text of those."""

    again: Callable[[], str] = lambda: "t0 t1 "

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"x-request-id" in head.lower():
            again = asyncio.StreamReader()
            again.feed_data(head + await reader.readexactly(_length(head)))
            again.feed_eof()
            await super()._connection(again, writer)
            return
        body = json.loads(await reader.readexactly(_length(head)))
        choice = {"text": self.again(), "finish_reason": "length"}
        told = json.dumps({"model": body["model"], "choices": [choice]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
        await writer.drain()


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].split()[0])


@dataclass
class FakeWorld:
    """Stages a fake server; `on_stage` is called with the stage when all is set up, and told when it is not."""

    name: str = "local"
    server: FakeServer = field(default_factory=AlsoPlain)
    setting_up: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None

    def refuse(self, drill: Drill) -> None:
        pass

    @contextmanager
    def stage(self, drill: Drill, run: Run, recorder: Recorder, check: Callable[[], None]) -> Iterator[Stage]:
        node = SimNode.create(run.folder / "node.bin", drill.node.profile, drill.node.cards)
        try:
            self.setting_up()
            with self.server:
                yield Stage(self.server.url, node, model=None, check=self.check)
        finally:
            node.reclaim()
            recorder.note("leftover", processes=sorted(node.neighbours()), files=self._files(run))
            node.destroy()

    def _files(self, run: Run) -> list[str]:
        known = {"drill.yaml", "history.jsonl", "node.bin"}
        return sorted(path.name for path in run.folder.iterdir() if path.name not in known)
