"""The service that the HTTP API talks to: the driver, the tokenizer and the metrics as one."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from target.api.service import Health, ModelCard
from target.driver import STALLED_S, Driver
from target.measures import Measures
from target.models.tokenizer import TextCodec
from target.request import GenerationRequest, Output, Rejected

RETRY_S = 1.0  # a balancer has sent its next request elsewhere by then


class LocalService:
    """One engine on one node."""

    def __init__(self, driver: Driver, codec: TextCodec, measures: Measures) -> None:
        self._driver = driver
        self._codec = codec
        self._measures = measures
        self.draining = False

    def models(self) -> list[ModelCard]:
        return [
            ModelCard(spec.name, rung, spec.context_most, self._codec.size)
            for rung, spec in self._driver.engine.rungs.items()
        ]

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self._codec.chat_prompt(messages)

    def submit(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        if self.draining:
            return self._refuse(request)
        self._measures.arrived(request.id, time.monotonic(), request.model)
        return self._driver.submit(request)

    def cancel(self, engine_id: str) -> None:
        self._driver.cancel(engine_id)

    def end_all(self, message: str) -> None:
        """End every answer that is under way, with an error that says why."""
        self._driver.end_all(message)

    def health(self) -> Health:
        """Not well if the engine does not step, nor if it no longer hears how full the cards are."""
        age_s = self._driver.step_age_s()
        if self._driver.down:
            return Health(False, age_s, self._driver.down)
        if age_s >= STALLED_S:
            return Health(False, age_s, "the step loop does not go round")
        if self._driver.memory_age_s() >= STALLED_S:
            return Health(False, age_s, "the cards' memory is not being watched")
        return Health(True, age_s)

    def ready(self) -> tuple[bool, str]:
        if self.draining:
            return False, "draining"
        health = self.health()
        return health.stepping, health.detail

    def exposition(self) -> bytes:
        return self._driver.look(lambda: self._measures.render(time.monotonic()))

    async def _refuse(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        refusal = Rejected(503, "draining", "the service is draining and takes no new requests", RETRY_S)
        self._measures.observe(request.id, refusal, time.monotonic())
        yield refusal
