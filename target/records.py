"""Lines of the journal: how the engine's events and a breaker's moves are written down."""

from __future__ import annotations

from typing import Any

from target.breaker import Transition
from target.sequence import Rung, Sequence

Record = dict[str, Any]

OUTCOMES = {"stop": "completed"}  # how an end is named, where it differs from the API's finish reason


def admitted(sequence: Sequence, now: float) -> Record:
    """A request was taken on."""
    return _of("admitted", sequence, now)


def preempted(sequence: Sequence, lost_tokens: int, now: float) -> Record:
    """A sequence gave way; of its KV, so many tokens are in no tier any more."""
    return {**_of("preempted", sequence, now), "lost_tokens": lost_tokens}


def terminal(sequence: Sequence, reason: str, rung: Rung, now: float) -> Record:
    """A request ended."""
    return {
        **_of("terminal", sequence, now),
        "reason": OUTCOMES.get(reason, reason),
        "rung": rung,
        "output_tokens": sequence.output_tokens,
        "preemptions": sequence.preemptions,
    }


def moved(move: Transition) -> Record:
    """A breaker moved."""
    return {
        "kind": "breaker",
        "name": move.name,
        "was": move.was.value,
        "now": move.now.value,
        "reason": move.reason,
        "t": move.at_s,
    }


def _of(event: str, sequence: Sequence, now: float) -> Record:
    return {"kind": "service", "event": event, "id": sequence.request.client_id, "t": now}
