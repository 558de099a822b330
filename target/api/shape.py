"""How an answer looks: OpenAI's two shapes, in one piece or as chunks. Each also says which rung made it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from target.request import Accepted, Finished


class Shape(ABC):
    """The answer to one request, as JSON-ready values."""

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, answer_id: str) -> None:
        self._id = answer_id
        self._created = int(time.time())

    def opening(self, by: Accepted) -> list[dict[str, Any]]:
        """Chunks that go ahead of the first token."""
        return []

    def token(self, by: Accepted, text: str) -> dict[str, Any]:
        """The chunk of one token."""
        return self._frame(self.chunk_name, by.model, by.rung, [self._piece(text, None)])

    def closing(self, end: Finished) -> dict[str, Any]:
        """The chunk that says why it ended."""
        return self._frame(self.chunk_name, end.model, end.rung, [self._piece("", end.reason)])

    def usage(self, end: Finished) -> dict[str, Any]:
        """The chunk that counts tokens, for those who asked for it."""
        return {**self._frame(self.chunk_name, end.model, end.rung, []), "usage": _usage(end)}

    def whole(self, text: str, end: Finished) -> dict[str, Any]:
        """The answer in one piece."""
        return {
            **self._frame(self.object_name, end.model, end.rung, [self._choice(text, end.reason)]),
            "usage": _usage(end),
        }

    def _frame(self, name: str, model: str, rung: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": model,
            "choices": choices,
            "brownout": {"rung": rung},
        }

    @abstractmethod
    def _piece(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """The only choice, in a chunk."""

    @abstractmethod
    def _choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        """The only choice, whole."""


class CompletionShape(Shape):
    id_prefix = "cmpl"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def _piece(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}

    def _choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        return self._piece(text, finish_reason)


class ChatShape(Shape):
    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def opening(self, by: Accepted) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        return [self._frame(self.chunk_name, by.model, by.rung, [choice])]

    def _piece(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        delta = {"content": text} if finish_reason is None else {}
        return {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}

    def _choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}


def _usage(end: Finished) -> dict[str, int]:
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.output_tokens,
        "total_tokens": end.prompt_tokens + end.output_tokens,
    }
