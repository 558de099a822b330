"""A generation request and what may come back for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue. `deadline_s` is a monotonic time; lower `priority` values go first."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    priority: int = 0
    deadline_s: float | None = None
    model: str | None = None
    client_id: str = ""  # the client's own id, for correlation only; never an engine key


@dataclass(frozen=True)
class Accepted:
    """The first token is there; from here on model and rung are certain."""

    model: str
    rung: str
    queued_s: float = 0.0  # from arrival to the first step it was part of


@dataclass(frozen=True)
class Token:
    """Text that became certain with one token (may be empty).

    A `token_id` of -1 marks text that was held back until the end.
    """

    text: str
    token_id: int
    index: int


@dataclass(frozen=True)
class Finished:
    """The end of an accepted or queued request; `reason` is stop, length, cancelled, deadline or failed."""

    reason: str
    prompt_tokens: int
    output_tokens: int
    model: str
    rung: str
    message: str = ""


@dataclass(frozen=True)
class Rejected:
    """Refused before it ran: HTTP status, a code for programs, a message for people, seconds to wait."""

    status: int
    code: str
    message: str
    retry_after_s: float | None


Output = Accepted | Token | Finished | Rejected
