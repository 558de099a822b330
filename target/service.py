"""The service that the HTTP API talks to: the driver, the tokenizer and the metrics as one."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from target.api.service import Health, ModelCard
from target.driver import STALLED_S, Driver
from target.measures import Measures
from target.models.tokenizer import TextCodec
from target.request import GenerationRequest, Output


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
        self._measures.arrived(request.id, time.monotonic(), request.model)
        return self._driver.submit(request)

    def cancel(self, engine_id: str) -> None:
        self._driver.cancel(engine_id)

    def health(self) -> Health:
        age_s = self._driver.step_age_s()
        return Health(
            age_s < STALLED_S, age_s, "" if age_s < STALLED_S else "the step loop does not go round"
        )

    def ready(self) -> tuple[bool, str]:
        if self.draining:
            return False, "draining"
        return (True, "") if self.health().stepping else (False, "the step loop does not go round")

    def exposition(self) -> bytes:
        return self._driver.look(lambda: self._measures.render(time.monotonic()))
