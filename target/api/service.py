"""What the HTTP API needs of the service behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from target.request import GenerationRequest, Output


@dataclass(frozen=True)
class ModelCard:
    """A model that can be asked for; `max_context` counts the tokens of prompt and answer together."""

    id: str
    rung: str
    max_context: int
    vocab_size: int | None = None  # ids at or above it are refused; None: not known, not checked


@dataclass(frozen=True)
class Health:
    """Whether the engine steps (an idle one does) and sees its cards, and seconds since it last stepped."""

    stepping: bool
    last_step_age_s: float
    detail: str = ""


class Service(Protocol):
    """Called from the event loop; nothing here may block it, only iterating over `submit` waits."""

    def models(self) -> list[ModelCard]:
        """The models, the default one first."""

    def encode(self, text: str) -> list[int]:
        """Text as token ids."""

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Messages (role, content) as the prompt of a chat model, ending where its answer begins."""

    def submit(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Rejected alone; or Accepted, Tokens and Finished; or Finished alone if it ended before it began."""

    def cancel(self, engine_id: str) -> None:
        """Nobody waits for this answer any more. Unknown and finished ids are ignored."""

    def health(self) -> Health:
        """Never waits for the engine."""

    def ready(self) -> tuple[bool, str]:
        """Whether to send requests here, and why not."""

    def exposition(self) -> bytes:
        """Metrics in the Prometheus text format 0.0.4."""
