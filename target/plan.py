"""What one engine step is to do, and what came of it: the seam between the engine and what computes."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

from target.device import LinkReading
from target.sequence import Rung, Sequence, State


@dataclass(frozen=True)
class Work:
    """Compute `count` tokens of a sequence from its `start`-th on; `sample` asks for the token after them."""

    sequence: Sequence
    start: int
    count: int
    sample: bool


@dataclass(frozen=True)
class Staging:
    """Copy the KV of tokens [start, start + count) to the host tier in the background; its blocks are pinned.

    `rung` is the one that they were computed on: the sequence may have moved since, or ended.
    """

    sequence: Sequence
    rung: Rung
    start: int
    count: int
    blocks: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_wanted(self) -> bool:
        """Whether what arrives is still KV of the sequence: not if it ended, moved or lost these tokens."""
        sequence = self.sequence
        alive = sequence.state is not State.DONE and sequence.rung == self.rung
        return alive and self.end <= sequence.computed


@dataclass(frozen=True)
class Route:
    """How partial sums travel: direct (None), or around a ring of ranks."""

    ring: tuple[int, ...] | None = None


@dataclass
class Plan:
    """One step. The runner first swaps in, then computes each rung's batch, then writes KV through,
    both by direct DMA in chunks, each of which it asks for."""

    batches: dict[Rung, list[Work]] = field(default_factory=dict)
    swap_ins: list[Sequence] = field(default_factory=list)
    write_through: list[Work] = field(default_factory=list)  # by direct DMA, waited for
    staging: Staging | None = None  # started, not waited for
    throttled: bool = False  # a request waits that only the lowered limit on running ones kept out

    def works(self) -> Iterator[Work]:
        for batch in self.batches.values():
            yield from batch

    @property
    def is_empty(self) -> bool:
        return not self.swap_ins and not any(self.batches.values())


@dataclass
class Outcome:
    """What a step did, by sequence id.

    A sequence of the plan's `swap_ins` that got back fewer tokens than planned did nothing else in the step.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    restored: dict[str, int] = field(default_factory=dict)  # tokens that came back from the host tier
    on_host: dict[str, int] = field(default_factory=dict)  # tokens that are in the host tier now
    staged: list[Staging] = field(default_factory=list)


class LinkWatch(Protocol):
    """The engine, seen by the runner: it hears of every transfer at once and may change course within a step."""

    def begin_copy(self) -> int | None:
        """Before each chunk of direct DMA, either way: how many tokens' KV it may carry; None: stop for now."""

    def saw_copy(self, readings: Many[LinkReading]) -> None:
        """After each chunk of direct DMA."""

    def route(self) -> Route:
        """How the next partial sums are to travel."""

    def saw_exchange(self, readings: Many[LinkReading]) -> None:
        """After each all-reduce."""


class Runner(Protocol):
    """What computes: torch on simulated cards, or a cost model in virtual time."""

    def execute(self, plan: Plan, watch: LinkWatch) -> Outcome:
        """Run one step, which may be empty: then it only looks for copies that have arrived.

        If it raises, `plan.staging` was not started, and none that had arrived is lost.
        """

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended: drop what the host tier holds of it."""

    def reset(self) -> None:
        """The cards were reopened: copies under way are gone."""
