"""What goes back to those who asked: tokens become text, and every answer gets one end."""

from __future__ import annotations

from target.request import Accepted, Finished, GenerationRequest, Output, Token
from target.sequence import Rung, Sequence
from target.text import Decode, TextStream


class Answers:
    """Outputs of every live request, in order, until they are taken."""

    def __init__(self, decode: Decode, end_tokens: frozenset[int]) -> None:
        self._decode = decode
        self._end_tokens = end_tokens
        self._texts: dict[str, TextStream] = {}
        self._outputs: list[tuple[str, Output]] = []

    def open(self, request: GenerationRequest) -> None:
        """A request was taken on."""
        self._texts[request.id] = TextStream(self._decode, request.stop)

    def take_token(self, sequence: Sequence, token: int, model: str, now: float) -> str | None:
        """The next token of an answer; returns why the answer ends with it, if it does."""
        assert sequence.rung is not None
        if sequence.first_token_s is None:
            sequence.first_token_s = now
            queued_s = (now if sequence.started_s is None else sequence.started_s) - sequence.arrival_s
            self._outputs.append((sequence.id, Accepted(model, sequence.rung, queued_s)))
        if token in self._end_tokens:
            return "stop"
        sequence.tokens.append(token)
        stream = self._texts[sequence.id]
        text = stream.push(token)
        self._outputs.append((sequence.id, Token(text, token, sequence.output_tokens - 1)))
        if stream.stopped:
            return "stop"
        return "length" if sequence.output_tokens >= sequence.request.max_tokens else None

    def end(self, sequence: Sequence, reason: str, model: str, rung: Rung, message: str) -> None:
        """The end of an answer; text that was held back comes before it, if the answer is whole."""
        stream = self._texts.pop(sequence.id)
        tail = stream.finish() if reason in ("stop", "length") else ""
        if tail:
            self._outputs.append((sequence.id, Token(tail, -1, sequence.output_tokens)))
        prompt_tokens = len(sequence.request.prompt_ids)
        finished = Finished(reason, prompt_tokens, sequence.output_tokens, model, rung, message)
        self._outputs.append((sequence.id, finished))

    def take(self) -> list[tuple[str, Output]]:
        """(engine id, output) pairs since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs
