"""A server of streamed completions that misbehaves on demand, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

TOKEN_GAP_S = 0.05


@dataclass(frozen=True)
class Received:
    """One request, and when its head was read (CLOCK_MONOTONIC)."""

    at: float
    request_id: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeServer:
    """Answers request `r-<index>` the way `behave(index)` says; `freeze` stops all of it for a while."""

    behave: Callable[[int], str] = lambda index: "answer"
    first_token_after_s: float = 0.1
    received: list[Received] = field(default_factory=list)
    url: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,))
        self._thread.start()
        assert listening.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def freeze(self, seconds: float) -> None:
        """Block its event loop: connections are still accepted by the kernel, nothing is answered."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def _run(self, listening: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listening))

    async def _serve(self, listening: threading.Event) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        await self._over.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._connection(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        at = time.monotonic()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.received.append(Received(at, headers["x-request-id"], head[0].split()[1], headers, body))
        await self._answer(writer, self.behave(int(headers["x-request-id"].rpartition("-")[2])), body)

    async def _answer(self, writer: asyncio.StreamWriter, behaviour: str, body: dict[str, Any]) -> None:
        if behaviour == "hang":
            await self._over.wait()
        elif behaviour == "close at once":
            return
        elif behaviour in ("429", "500", "503"):
            error = json.dumps({"error": {"message": "not now", "code": "queue_full"}})
            writer.write(f"HTTP/1.1 {behaviour} No\r\nContent-Length: {len(error)}\r\n\r\n{error}".encode())
            await writer.drain()
        else:
            await self._stream(writer, behaviour, body)
            if behaviour == "stays open":  # and hears nothing more of what comes over this connection
                await self._over.wait()

    async def _stream(self, writer: asyncio.StreamWriter, behaviour: str, body: dict[str, Any]) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Brownout-Rung: full\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await asyncio.sleep(self.first_token_after_s)
        for number in range(body["max_tokens"]):
            if number == 1 and behaviour == "error inside":
                await self._event(writer, {"error": {"message": "the engine died", "code": "engine_failed"}})
                writer.write(b"0\r\n\r\n")
                return
            if number == 1 and behaviour == "cut off":
                return
            if number:
                await asyncio.sleep(TOKEN_GAP_S)
            await self._event(writer, _chunk(text=f"t{number} ", finish=None))
        if behaviour != "no finish":
            await self._event(writer, _chunk(text="", finish="stop" if behaviour == "stop" else "length"))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await self._event(writer, {"model": "fake", "choices": [], "usage": usage})
        if behaviour != "no done":
            await self._event(writer, None)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _event(self, writer: asyncio.StreamWriter, data: dict[str, Any] | None) -> None:
        event = b"data: " + (b"[DONE]" if data is None else json.dumps(data).encode()) + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()


def _chunk(text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"model": "fake", "choices": [choice], "brownout": {"rung": "light"}}
