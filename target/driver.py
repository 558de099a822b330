"""Runs the engine in real time: one thread steps it, one watches the cards' memory, asyncio brings requests.

The engine never sees a thread or a clock: everything reaches it between steps, under one lock. The lock is not
held while a step computes, so a memory reading is taken in at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from target.device import Device
from target.engine import Engine
from target.plan import Plan, Runner
from target.request import Finished, GenerationRequest, Output, Rejected
from target.watch import Watch

IDLE_WAIT_S = 0.02
MEMORY_INTERVAL_S = 0.02
STALLED_S = 5.0
RESTART_EVERY_S = 0.5

log = logging.getLogger("brownout.target")
Clock = Callable[[], float]
Found = TypeVar("Found")


@dataclass
class Stream:
    """Where one request's outputs go: a queue in the event loop that asked."""

    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[Output]

    def put(self, output: Output) -> None:
        """From any thread. A loop that has closed has nobody left to read."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, output)


class Driver:
    """Owns the threads. `observe` hears of every output with its engine id and time, for metrics."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        device: Device,
        observe: Callable[[str, Output, float], None] = lambda *_: None,
        clock: Clock = time.monotonic,
        load_weights: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self._runner = runner
        self._device = device
        self._observe = observe
        self._clock = clock
        self._load_weights = load_weights
        self.down = ""  # why there are no cards to step on, while there are none
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._streams: dict[str, Stream] = {}
        self._inbox: list[tuple[str, Any]] = []
        self._inbox_lock = threading.Lock()
        self._beat_s = self._memory_seen_s = clock()
        self._threads = [
            threading.Thread(target=self._step_loop, name="engine", daemon=True),
            threading.Thread(target=self._memory_loop, name="memory-watch", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """End the threads after the step under way, and give every block back; returns how many had leaked."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=30)
        with self._lock:
            self._take_inbox()
            leaked = self.engine.close()
            self._deliver()
        return leaked

    def step_age_s(self) -> float:
        """Seconds since the step loop last went round: it does so even with nothing to compute."""
        return self._clock() - self._beat_s

    def memory_age_s(self) -> float:
        """Seconds since the engine last heard of the cards' memory."""
        return self._clock() - self._memory_seen_s

    def look(self, read: Callable[[], Found]) -> Found:
        """Read the engine between two of its moves; waits for none of its steps."""
        with self._lock:
            return read()

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Outputs of one request, the last being Rejected or Finished. Closing the iterator cancels it."""
        if self._stop.is_set():
            yield Rejected(503, "stopping", "the service is stopping", None)
            return
        if self.down:
            yield Rejected(503, "engine_down", self.down, RESTART_EVERY_S)
            return
        stream = Stream(asyncio.get_running_loop(), asyncio.Queue())
        self._post("submit", (request, stream))
        ended = False
        try:
            while not ended:
                output = await stream.outputs.get()
                ended = isinstance(output, Rejected | Finished)
                yield output
        finally:
            if not ended:
                self.cancel(request.id)

    def cancel(self, request_id: str) -> None:
        """Stop a request before the next step."""
        self._post("cancel", request_id)

    def end_all(self, message: str) -> None:
        """End whatever is left before the next step; each hears so, as cancelled."""
        self._post("end all", message)

    def _post(self, verb: str, what: Any) -> None:
        with self._inbox_lock:
            self._inbox.append((verb, what))
        self._wake.set()

    def _step_loop(self) -> None:
        watch = Watch(self.engine.transfers, self._lock, self._clock)
        while not self._stop.is_set():
            try:
                self._go_round(watch)
                self._beat_s = self._clock()
            except self._device.broken as error:
                self._restart(str(error))
            except Exception:
                log.exception("the step loop stumbled")
                self._stop.wait(IDLE_WAIT_S)  # no beat: if it goes on stumbling, /health says so

    def _go_round(self, watch: Watch) -> None:
        with self._lock:
            self._take_inbox()
            plan = self.engine.schedule(self._clock())
            self._deliver()
        if plan.is_empty:
            if self._wake.wait(IDLE_WAIT_S):
                self._wake.clear()
            if not self.engine.is_copying:
                return  # else an empty step takes in what has arrived meanwhile
        self._run(plan, watch)

    def _run(self, plan: Plan, watch: Watch) -> None:
        """One step. Whatever it raises fails its own sequences and no others, and is raised."""
        started_s = self._clock()
        try:
            outcome = self._runner.execute(plan, watch)
        except Exception as error:
            with self._lock:
                self.engine.abandon(plan, f"{type(error).__name__}: {error}", self._clock())
                self._deliver()
            raise
        with self._lock:
            now = self._clock()
            self.engine.commit(plan, outcome, now, now - started_s)
            self._deliver()

    def _restart(self, why: str) -> None:
        """Without its cards the engine has nothing left: begin anew, as soon as that works."""
        log.error("the engine lost its cards: %s", why)
        self.down = f"the engine lost its cards and starts anew: {why}"
        while not self._stop.is_set():
            with self._lock:
                self._take_inbox()
                self.engine.lose_cards(self.down, self._clock())
                self._deliver()
            try:
                self._runner.reset()
                self._device.reopen()
                self._load_weights()
                with self._lock:
                    self.engine.regain_cards()
            except (self._device.broken, self._device.out_of_memory):
                self._stop.wait(RESTART_EVERY_S)
                continue
            except Exception:  # whatever it is, this thread is the only one that can mend it
                log.exception("the engine could not begin anew")
                self._stop.wait(RESTART_EVERY_S)
                continue
            self.down = ""
            log.warning("the engine has its cards back")
            return

    def _memory_loop(self) -> None:
        failing = False
        while not self._stop.wait(MEMORY_INTERVAL_S):
            try:
                headroom = self._device.headroom()
                with self._lock:
                    self.engine.observe_memory(headroom, self._clock())
                self._memory_seen_s, failing = self._clock(), False
            except Exception:  # the watch goes on; if it goes on failing, /health says so
                if not failing:
                    log.exception("the cards' memory could not be watched")
                failing = True

    def _take_inbox(self) -> None:
        with self._inbox_lock:
            inbox, self._inbox = self._inbox, []
        for verb, what in inbox:
            if verb == "cancel":
                self.engine.cancel(what, self._clock())
                continue
            if verb == "end all":
                self.engine.end_all(what, self._clock())
                continue
            request, stream = what
            refusal = self.engine.submit(request, self._clock())
            if refusal is None:
                self._streams[request.id] = stream
            else:
                stream.put(refusal)
                self._tell(request.id, refusal)

    def _deliver(self) -> None:
        for request_id, output in self.engine.take_outputs():
            stream = self._streams.get(request_id)
            if isinstance(output, Finished):
                self._runner.forget(request_id)
                self._streams.pop(request_id, None)
            if stream is not None:
                stream.put(output)
            self._tell(request_id, output)

    def _tell(self, request_id: str, output: Output) -> None:
        """Metrics are for watching: their failure must not stop what they watch."""
        try:
            self._observe(request_id, output, self._clock())
        except Exception:
            log.exception("an output could not be measured")
