"""One generation over HTTP: its answer streamed or whole, and its work cancelled when the client is gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from target.api.errors import ApiError
from target.api.service import Service
from target.api.shape import Shape
from target.request import Accepted, Finished, GenerationRequest, Output, Rejected, Token

Outputs = AsyncGenerator[Output, None]

log = logging.getLogger(__name__)


@dataclass
class Exchange:
    """An ASGI response. ApiError until its first byte is sent, so that the status line can still say so."""

    service: Service
    request: GenerationRequest
    shape: Shape
    stream: bool
    include_usage: bool
    _ended: bool = field(default=False, init=False)  # the service has nothing left to do for it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._send_stream(send) if self.stream else self._send_whole(scope, receive, send)
        answering = asyncio.create_task(answer)
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            if not self._ended:
                self.service.cancel(self.request.id)
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _send_stream(self, send: Send) -> None:
        async with aclosing(self.service.submit(self.request)) as outputs:
            first = await self._first(outputs)
            by = first if isinstance(first, Accepted) else Accepted(first.model, first.rung)
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (name.encode(), value.encode("latin-1"))
                        for name, value in (headers | self._headers(by)).items()
                    ],
                }
            )
            async for data in self._events(first, by, outputs):
                await send(
                    {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
                )
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(
        self, first: Accepted | Finished, by: Accepted, outputs: Outputs
    ) -> AsyncIterator[bytes]:
        """The data of each event. A failure on the way is one error event, and no [DONE] after it."""
        for chunk in self.shape.opening(by):
            yield _json(chunk)
        end = first if isinstance(first, Finished) else None
        while end is None:
            match await self._next(outputs):
                case Token(text=text):
                    yield _json(self.shape.token(by, text))
                case Finished() as end:
                    pass
                case Accepted() as by:  # it moved to another rung
                    pass
                case other:
                    yield _json(_broken_off(other).body())
                    return
        if end.reason not in ("stop", "length"):
            yield _json(ApiError.of_early_end(end).body())
            return
        yield _json(self.shape.closing(end))
        if self.include_usage:
            yield _json(self.shape.usage(end))
        yield b"[DONE]"

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        text: list[str] = []
        async with aclosing(self.service.submit(self.request)) as outputs:
            output: Output | None = await self._first(outputs)
            while not isinstance(output, Finished):
                output = await self._next(outputs)
                if isinstance(output, Token):
                    text.append(output.text)
                elif output is None or isinstance(output, Rejected):
                    raise _broken_off(output)
        if output.reason not in ("stop", "length"):
            raise ApiError.of_early_end(output)
        headers = self._headers(Accepted(output.model, output.rung))
        response = JSONResponse(self.shape.whole("".join(text), output), headers=headers)
        await response(scope, receive, send)

    async def _first(self, outputs: Outputs) -> Accepted | Finished:
        """What an answer begins with; ApiError if it is not to be one."""
        match await self._next(outputs):
            case Accepted() | Finished(reason="stop" | "length") as begun:
                return begun
            case Finished() as finished:
                raise ApiError.of_early_end(finished)
            case other:
                raise _broken_off(other)

    async def _next(self, outputs: Outputs) -> Output | None:
        """The next output; None if there is none where there should be one."""
        try:
            output = await anext(outputs, None)
        except Exception:
            log.exception("request %s broke off", self.request.client_id)
            output = None
        self._ended = self._ended or isinstance(output, Finished | Rejected)
        return output

    def _headers(self, by: Accepted) -> dict[str, str]:
        return {"x-brownout-rung": by.rung, "x-request-id": self.request.client_id}


def _broken_off(output: Output | None) -> ApiError:
    if isinstance(output, Rejected):
        return ApiError.of_rejection(output)
    return ApiError(500, "engine_failed", "the answer broke off")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
