"""One streamed answer, read line by line as it comes: what the client saw, and how it ended.

A 200 is not a success: servers report failures inside the stream, or just stop. An answer counts as
`completed` or `length` only with a finish_reason that says so, the closing [DONE], and no error in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REFUSED = (429, 503)
OUTCOME_OF_FINISH = {"stop": "completed", "length": "length"}
ERROR_CHARS = 500  # of a server's error text that are kept


@dataclass
class Answer:
    """What came back for one request; times are CLOCK_MONOTONIC seconds."""

    status: int | None = None
    model: str | None = None
    rung: str | None = None
    finish: str | None = None
    text: str = ""
    tokens_t: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False
    error: str | None = None

    def head(self, status: int, headers: Mapping[str, Any]) -> None:
        """Take the status line and the headers (looked up in lower case)."""
        self.status = status
        rung = headers.get("x-brownout-rung")
        self.rung = str(rung) if rung else None

    def line(self, line: bytes, now: float) -> None:
        """Take one line of the event stream, received at `now`."""
        name, _, value = line.strip().partition(b":")
        if name == b"error":  # llama.cpp names the field so
            self._failed(value.strip())
        elif name == b"data":
            self._data(value.strip(), now)

    def refusal(self, body: bytes) -> None:
        """Take the body of an answer whose status is not 200."""
        self._failed(body)

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self.tokens_t[0] if self.tokens_t else None

    @property
    def output_tokens(self) -> int:
        """As the server counts them; as many as were seen if it did not say."""
        return len(self.tokens_t) if self.completion_tokens is None else self.completion_tokens

    def outcome(self) -> str:
        """completed, length, rejected or failed; `error` then says why it failed."""
        if self.status in REFUSED:
            return "rejected"
        if self.status != 200:
            self.error = self.error or f"HTTP status {self.status}"
        elif self.error is None and not self.done:
            self.error = "the stream ended without [DONE]"
        elif self.error is None and self.finish not in OUTCOME_OF_FINISH:
            self.error = f"finish_reason is {self.finish!r}"
        return "failed" if self.error is not None else OUTCOME_OF_FINISH[str(self.finish)]

    def _data(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            self.error = self.error or f"not a JSON object in the stream: {_short(data)}"
        elif chunk.get("error") or chunk.get("object") == "error":
            self._failed(data)
        else:
            try:
                self._chunk(chunk, now)
            except (AttributeError, TypeError):
                self.error = self.error or f"not a completion chunk: {_short(data)}"

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        self.model = chunk.get("model") or self.model
        if isinstance(chunk.get("brownout"), dict):
            self.rung = chunk["brownout"].get("rung") or self.rung
        if isinstance(chunk.get("usage"), dict):
            self.prompt_tokens = chunk["usage"].get("prompt_tokens", self.prompt_tokens)
            self.completion_tokens = chunk["usage"].get("completion_tokens", self.completion_tokens)
        for choice in chunk.get("choices") or ():
            text = choice.get("text") or ""
            # A token may have no text of its own (half of a character); only the closing chunk is none.
            if text or not choice.get("finish_reason"):
                self.tokens_t.append(round(now, 4))
            self.text += text
            self.finish = choice.get("finish_reason") or self.finish

    def _failed(self, body: bytes) -> None:
        """Keep the first error, as `code: message` if the server speaks OpenAI's shape."""
        if self.error is not None:
            return
        try:
            error = json.loads(body)
            error = error.get("error", error)
            code, message = error.get("code") or error.get("type"), error.get("message")
            self.error = _short(f"{code}: {message}".encode())
        except (ValueError, AttributeError):
            self.error = _short(body) or f"HTTP status {self.status}"


def _short(text: bytes) -> str:
    return text[:ERROR_CHARS].decode(errors="replace")
