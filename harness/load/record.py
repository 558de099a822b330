"""What is told about a request that is over: the fields of a history's `request` event, but for its kind."""

from __future__ import annotations

from typing import Any

from harness.load.answer import Answer
from harness.load.arrival import Arrival


def request_record(
    arrival: Arrival, request_id: str, answer: Answer, outcome: str, *, due: float, sent: float, end: float
) -> dict[str, Any]:
    """JSON-ready; `due`, `sent` and `end` are CLOCK_MONOTONIC seconds, as are the answer's times."""
    return {
        "id": request_id,
        "index": arrival.index,
        "due": due,
        "sent": sent,
        "first": answer.first,
        "t": end,
        "outcome": outcome,
        "status": answer.status,
        "finish": answer.finish,
        "model": answer.model,
        "rung": answer.rung,
        "prompt_tokens": answer.prompt_tokens or arrival.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "tokens_t": answer.tokens_t,
        "text": answer.text,
        "error": answer.error,
    }
