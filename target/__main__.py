"""The bundled service as a process: `python -m target --node FILE`, on a simulated node that exists already.

Prints one JSON line on standard output when it serves: {"port": …, "url": …, "pid": …}. SIGTERM drains: /ready
goes false and new requests are sent elsewhere; then the port closes, and answers under way may finish; what is
left ends with an error that says so, and everything on the cards is given back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.gpu.sim import SimNode
from target.api.app import create_app
from target.api.server import listen, server
from target.driver import Driver
from target.engine import Engine
from target.exposition import Exposition
from target.journal import Journal
from target.measures import Measures
from target.models.assembly import assemble
from target.models.simulated_cards import SimulatedCards
from target.service import LocalService
from target.settings import Settings

LAST_WORDS_S = 2.0  # for the ends of answers to reach their clients, after the drain


def main() -> int:
    options = parse(sys.argv[1:])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        run(options)
    except (ValueError, OSError, SimulatedCards.out_of_memory) as error:
        sys.stderr.write(f"the service can't run: {error}\n")
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Put everything together, serve until told to stop, and give everything back."""
    settings = Settings.model_validate_json(options.settings)
    listening = listen(options.host, options.port)
    journal = Journal(options.journal)
    with contextlib.closing(SimulatedCards(partial(SimNode.attach, options.node))) as device:
        config = settings.engine_config()
        ladder = assemble(settings, config, device, options.home)
        engine = Engine(config, device, ladder.rungs, ladder.codec.decode, ladder.end_tokens, journal)
        models = [spec.name for spec in ladder.rungs.values()]
        exposition = Exposition(models, list(engine.breakers), config.max_running)
        measures = Measures(exposition, lambda: engine)
        driver = Driver(
            engine, ladder.runner, device, measures.observe, load_weights=partial(ladder.place, device)
        )
        service = LocalService(driver, ladder.codec, measures)
        driver.start()
        try:
            asyncio.run(serve(service, listening, settings, watch_stdin=options.until_stdin_closes))
        finally:
            held = driver.stop()
            journal({"kind": "service", "event": "stopped", "t": time.monotonic(), "kv_blocks": held})
            journal.close()


async def serve(
    service: LocalService, listening: socket.socket, settings: Settings, *, watch_stdin: bool
) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    longest_s = max(settings.drain_s, settings.drain_ready_s)
    web = server(create_app(service), shutdown_s=math.ceil(longest_s + LAST_WORDS_S))
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    web.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # ours are in charge
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if watch_stdin:
        threading.Thread(target=end_with_stdin, args=(loop, told.set), daemon=True).start()
    host, port = listening.getsockname()[:2]
    sys.stdout.write(json.dumps({"port": port, "url": f"http://{host}:{port}", "pid": os.getpid()}) + "\n")
    sys.stdout.flush()

    def close_port() -> None:
        web.should_exit = True

    draining = asyncio.create_task(drain(service, told, settings, close_port))
    try:
        await web.serve(sockets=[listening])
    finally:
        draining.cancel()


async def drain(
    service: LocalService, told: asyncio.Event, settings: Settings, close_port: Callable[[], None]
) -> None:
    """Once told: say so where balancers look, close the port, and end what is still under way in the end."""
    await told.wait()
    service.draining = True
    await asyncio.sleep(settings.drain_ready_s)
    close_port()
    await asyncio.sleep(settings.drain_s - settings.drain_ready_s)
    service.end_all("the service is stopping")


def end_with_stdin(loop: asyncio.AbstractEventLoop, drain: Callable[[], None]) -> None:
    """The owner holds the other end of standard input: its death, however it dies, is our signal."""
    # Not through sys.stdin: its lock, held by a thread that still reads, would abort the interpreter's exit.
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(drain)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m target", description=__doc__)
    parser.add_argument("--node", type=Path, required=True, help="file of the simulated node")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--home", type=Path, default=Path(".brownout"), help="where built-in checkpoints are kept"
    )
    parser.add_argument(
        "--journal", type=Path, help="append what the service does to this file, as JSON lines"
    )
    parser.add_argument("--settings", default="{}", help="JSON, see target.settings")
    parser.add_argument("--until-stdin-closes", action="store_true", help="drain when standard input ends")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
