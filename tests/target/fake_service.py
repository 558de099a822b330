"""A service that follows a script, and the real HTTP server in front of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from target.api.app import create_app
from target.api.server import listen, server
from target.api.service import Health, ModelCard
from target.request import Accepted, Finished, GenerationRequest, Output, Token

BEGUN = Accepted("small", "light")
HELLO = (BEGUN, Token("hel", 40, 0), Token("lo", 41, 1), Finished("stop", 3, 2, "small", "light"))
HANG = "hang"

Step = Output | float | str | Exception


@dataclass
class FakeService:
    """Plays `script` for each request: outputs, pauses (s), HANG for ever, or an exception to raise."""

    script: tuple[Step, ...] = HELLO
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    is_stepping: bool = True
    unready: str = ""
    hanging: threading.Event = field(default_factory=threading.Event)

    def models(self) -> list[ModelCard]:
        return [ModelCard("big", "full", 64, 256), ModelCard("small", "light", 64, 256)]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"{message['role'][0]}{message['content']}" for message in messages))

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        self.requests.append(request)
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, str):
                self.hanging.set()
                await asyncio.Event().wait()
            else:
                yield step

    def cancel(self, engine_id: str) -> None:
        self.cancelled.append(engine_id)

    def health(self) -> Health:
        return Health(self.is_stepping, 0.25, "fine" if self.is_stepping else "no step for 9 s")

    def ready(self) -> tuple[bool, str]:
        return not self.unready, self.unready

    def exposition(self) -> bytes:
        return b"vllm:num_requests_running 1.0\n"


@contextmanager
def serving(service: FakeService) -> Iterator[str]:
    """The service behind real HTTP, by its URL."""
    listening = listen("127.0.0.1", 0)
    http = server(create_app(service, body_bytes=10_000), shutdown_s=1)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join(10)
        listening.close()
