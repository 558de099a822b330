"""Playing a plan with Locust. Runs in a child process only, because importing Locust patches all of it.

One dispatcher starts a greenlet for each arrival when it is due and waits for none of them, so a server that
stalls is offered its load all the same; latencies count from the due time. Each request has a connection of
its own: it can't fail because the server just closed an idle one.

The driver (driver.py) starts this, hands over the plan in the open file BROWNOUT_LOAD_PLAN_FD, and holds
the other end of a socket. Lines on it are JSON. To the driver: {"ready"}, {"sent", "t"}, {"request"}, {"end"};
from the driver: {"start_at"}. Times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import gc
import json
import os
import time
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gevent
import gevent.socket
from gevent.event import AsyncResult
from gevent.pool import Group
from gevent.queue import Queue
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError
from locust import User, events, task

from harness.load.answer import Answer
from harness.load.arrival import Arrival, prompt_ids
from harness.load.record import request_record

PARENT_GONE = 70
PARENT_CHECK_S = 0.5


class Channel:
    """The socket to the driver. Its end, or another parent, means the driver is gone, and so are we."""

    def __init__(self, fd: int, parent: int) -> None:
        self.start_at: AsyncResult[float] = AsyncResult()
        self._socket = gevent.socket.socket(fileno=fd)
        self._lines: Queue[dict[str, Any] | None] = Queue()
        self._writer = gevent.spawn(self._write)
        gevent.spawn(self._read)
        gevent.spawn(self._watch, parent)

    def say(self, **line: Any) -> None:
        """Queue a line: a request never waits for the driver to read."""
        self._lines.put(line)

    def close(self) -> None:
        """Wait until all lines are written."""
        self._lines.put(None)
        self._writer.join(timeout=5)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._socket.sendall(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            except OSError:
                os._exit(PARENT_GONE)

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                self.start_at.set(json.loads(line)["start_at"])
        os._exit(PARENT_GONE)

    def _watch(self, parent: int) -> None:
        # The socket's other end may have been inherited by some process that outlives the driver.
        while os.getppid() == parent:
            gevent.sleep(PARENT_CHECK_S)
        os._exit(PARENT_GONE)


class Player:
    """Sends each arrival when it is due and reports each request once, when it is over."""

    def __init__(self, config: dict[str, Any], request_event: Any) -> None:
        self.channel = Channel(config["fd"], config["parent"])
        self._arrivals = [Arrival(**arrival) for arrival in config["arrivals"]]
        self._timeout_s: float = config["timeout_s"]
        self._model: str | None = config["model"]
        self._id_prefix: str = config["id_prefix"]
        self._request_event = request_event
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if key := os.environ.get("BROWNOUT_API_KEY"):
            self._headers["Authorization"] = f"Bearer {key}"
        self._path = urlsplit(config["url"]).path.rstrip("/").removesuffix("/v1") + "/v1/completions"
        # The client's own limits would hide the server's: no pool to wait for, no timeout besides ours.
        self._client = HTTPClient.from_url(
            config["url"], concurrency=len(self._arrivals) + 1, connection_timeout=None, network_timeout=None
        )
        # A server that does not answer "Connection: close" in kind would have its connection used again.
        pool = self._client._connection_pool
        pool.return_socket = pool.release_socket  # type: ignore[method-assign]
        self._in_flight = Group()
        self._stopping = False
        self._played = False

    def play(self) -> None:
        """Play the whole plan; returns when the last answer is over."""
        gc.collect()
        gc.freeze()
        self.channel.say(ready=True)
        start = self.channel.start_at.get()
        for arrival in self._arrivals:
            request_id, body = f"{self._id_prefix}-{arrival.index}", self._body(arrival)
            _sleep_until(start + arrival.due_s)
            if self._stopping:
                break
            self._in_flight.spawn(self._ask, arrival, start + arrival.due_s, request_id, body)
        self._in_flight.join()
        self._played = not self._stopping

    def stop(self) -> None:
        """Cancel what is in flight (each is still reported) and close the channel."""
        self._stopping = True
        self._in_flight.kill(timeout=2)
        self.channel.say(end="played" if self._played else "stopped")
        self.channel.close()

    def _body(self, arrival: Arrival) -> bytes:
        body: dict[str, Any] = {
            "prompt": prompt_ids(arrival),
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body if self._model is None else {"model": self._model, **body}).encode()

    def _ask(self, arrival: Arrival, due: float, request_id: str, body: bytes) -> None:
        answer = Answer()
        sent = time.monotonic()
        self.channel.say(sent=arrival.index, t=sent)
        timeout = gevent.Timeout(max(due + self._timeout_s - sent, 0.0))
        try:
            with timeout:
                self._converse(request_id, body, answer)
            outcome = answer.outcome()
        except gevent.Timeout:
            outcome, answer.error = "timeout", f"not over {self._timeout_s:g} s after it was due"
        except gevent.GreenletExit:
            outcome, answer.error = "cancelled", "the load was stopped"
        except (OSError, HTTPParseError) as error:
            outcome, answer.error = "failed", f"{type(error).__name__}: {error}"
        end = time.monotonic()
        self._tell_locust(outcome, answer, end - due)
        record = request_record(arrival, request_id, answer, outcome, due=due, sent=sent, end=end)
        self.channel.say(request=record)

    def _converse(self, request_id: str, body: bytes, answer: Answer) -> None:
        headers = {**self._headers, "X-Request-Id": request_id}
        with self._client.request("POST", self._path, body=body, headers=headers) as response:
            answer.head(response.status_code, {name.lower(): value for name, value in response.items()})
            if response.status_code != 200:
                answer.refusal(response.read())
                return
            # readline gives each event as it comes; iterating over blocks would hold tokens back.
            while line := response.readline(b"\n"):
                answer.line(line, time.monotonic())

    def _tell_locust(self, outcome: str, answer: Answer, seconds: float) -> None:
        failed = outcome not in ("completed", "length")
        self._request_event.fire(
            request_type="POST",
            name=self._path,
            response_time=seconds * 1000,
            response_length=len(answer.text),
            exception=RuntimeError(f"{outcome}: {answer.error}") if failed else None,
            context={},
        )


class Dispatcher(User):
    """The only user: it plays the whole plan, once."""

    player: ClassVar[Player]

    @task
    def play_the_plan(self) -> None:
        self.player.play()
        gevent.spawn(self.environment.runner.quit)  # from a greenlet of its own: quitting ends this one
        gevent.sleep(60)


def load_the_plan(environment: Any, **_: Any) -> None:
    with os.fdopen(int(os.environ["BROWNOUT_LOAD_PLAN_FD"]), "rb") as plan:
        config = json.load(plan)
    Dispatcher.player = Player(config, environment.events.request)


def report_what_is_in_flight(environment: Any, **_: Any) -> None:
    Dispatcher.player.stop()
    environment.process_exit_code = 0  # failed requests are findings, not a failure of the load


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        gevent.sleep(left)


hooks: Any = events  # Locust leaves them untyped
hooks.init.add_listener(load_the_plan)
hooks.quitting.add_listener(report_what_is_in_flight)
