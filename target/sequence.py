"""One request on its way through the engine: its tokens, its blocks and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from target.kv import BLOCK_TOKENS
from target.request import GenerationRequest

Rung = Literal["full", "light"]
RUNGS: tuple[Rung, ...] = ("full", "light")


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"  # waiting, with KV of its first `on_host` tokens in the host tier
    DONE = "done"


@dataclass(eq=False)
class Sequence:
    """`computed` counts the leading tokens whose KV is in `blocks`; `on_host` those whose KV is in the host tier.

    While it runs, `on_host` is at most `computed`.
    """

    request: GenerationRequest
    arrival_s: float
    number: int  # order of arrival, to break ties
    rung: Rung | None = None  # chosen when it first runs
    pinned_rung: bool = False  # the client asked for this rung by name
    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    on_host: int = 0
    blocks: list[int] = field(default_factory=list)
    started_s: float | None = None
    first_token_s: float | None = None
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def pending(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def tokens_most(self) -> int:
        return len(self.request.prompt_ids) + self.request.max_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts by who goes first: lower priority values, then earlier arrivals. A preempted one keeps its place."""
        return (self.request.priority, self.number)

    def blocks_lacking(self, upto: int) -> int:
        """Blocks to add so that the KV of the first `upto` tokens fits."""
        return -(-upto // BLOCK_TOKENS) - len(self.blocks)
