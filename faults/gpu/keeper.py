"""A keeper: the process that attends to a node which nobody else does, and serves its metrics.

Run as `python -m faults.gpu.keeper --node PATH --record PATH`; says `ready PORT` once it is up (port 0: no metrics).
It ends on SIGTERM, and when the node's file is gone. The record says which process it is, so that it can be ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from faults.gpu.dcgm import CONTENT_TYPE, Exporter, MonitoringBroken
from faults.gpu.owners import is_alive, start_ticks
from faults.gpu.sim import SimNode

HOST = "127.0.0.1"
TICK_EVERY_S = 0.1
WATCH_EVERY_S = 1.0


@dataclass(frozen=True)
class Record:
    """Who keeps a node. A later process with the same id has another start time (in clock ticks since boot)."""

    pid: int
    started: int
    port: int

    @property
    def alive(self) -> bool:
        """Whether that process is still there."""
        return is_alive(self.pid, self.started)

    def write(self, path: Path) -> None:
        """In one step: whoever reads finds a whole record or none."""
        draft = path.with_name(f"{path.name}.{self.pid}")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """None if there is none, or it makes no sense."""
        try:
            told = json.loads(path.read_text())
            return cls(int(told["pid"]), int(told["started"]), int(told["port"]))
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None


def keep(node: SimNode, ours: int, exporter: Exporter, ending: threading.Event) -> None:
    """Attend to a node until it is to end, or its file is gone or another than the one with inode `ours`."""
    watch_at_s = 0.0
    while not ending.wait(TICK_EVERY_S):
        try:
            if node.path.stat().st_ino != ours:
                return
        except FileNotFoundError:
            return
        node.reclaim()
        node.tick()
        if time.monotonic() >= watch_at_s:
            exporter.watch()
            watch_at_s = time.monotonic() + WATCH_EVERY_S


def serve(node: SimNode, exporter: Exporter, port: int) -> ThreadingHTTPServer:
    """Metrics on the loopback interface, from now on; ValueError if the port can't be had."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "metrics are at /metrics\n")
                return
            time.sleep(node.monitoring().delay_s)
            try:
                self._answer(200, exporter.text())
            except MonitoringBroken as broken:
                self._answer(500, f"{broken}\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ValueError(f"can't serve metrics on {HOST}:{port}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def main(words: Sequence[str] | None = None) -> None:
    """Keep a node until told to end."""
    wish = _parser().parse_args(words)
    if wish.detach and os.fork():
        os._exit(0)  # so that whoever started this need not wait for it, nor its parent be there
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    try:
        with SimNode.attach(wish.node) as node:
            ours, exporter = wish.node.stat().st_ino, Exporter(node)
            port = serve(node, exporter, wish.metrics_port).server_port if wish.metrics_port else 0
            Record(os.getpid(), start_ticks(os.getpid()) or 0, port).write(wish.record)
            sys.stdout.write(f"ready {port}\n")
            sys.stdout.flush()
            keep(node, ours, exporter, ending)
    except (OSError, ValueError) as error:
        sys.exit(str(error))  # whoever started us reads it; a traceback would only bury it


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.gpu.keeper", description=__doc__)
    parser.add_argument("--node", required=True, type=Path, help="the node's file")
    parser.add_argument("--record", required=True, type=Path, help="where to say which process this is")
    parser.add_argument("--detach", action="store_true", help="go on in a process of nobody's")
    parser.add_argument("--metrics-port", type=int, default=0, help="serve metrics here; 0: don't")
    return parser


if __name__ == "__main__":
    main()
