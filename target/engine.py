"""The engine: admits requests, plans steps, and takes in what they did. Sans-IO: it is told the time.

submit ──► waiting ──► schedule() ──► Plan ──(a runner computes it)──► Outcome ──► commit() ──► outputs
               ▲                                                                       │
               └──────────────────────── preempted, keeps its place ◄──────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from target import records
from target.admission import Admission
from target.answers import Answers
from target.breaker import Breaker
from target.config import EngineConfig
from target.counts import Counts
from target.device import Device, Headroom
from target.host_tier import HostTier
from target.kv import KvPool, KvShape
from target.ladder import Ladder
from target.plan import Outcome, Plan
from target.records import Record
from target.request import GenerationRequest, Output, Rejected
from target.scheduler import Scheduler
from target.sequence import RUNGS, Rung, Sequence, State
from target.text import Decode
from target.transfers import Transfers

STEPS_BETWEEN_SHRINKS = 16


@dataclass(frozen=True)
class RungSpec:
    """One model of the ladder, as the engine needs to know it."""

    name: str
    kv: KvShape
    context_most: int


class Engine:
    """One service on one device. Not thread-safe: its driver calls it from one place at a time."""

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        rungs: Mapping[Rung, RungSpec],
        decode: Decode,
        end_tokens: frozenset[int],
        journal: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.counts = Counts()
        self.rungs = rungs
        self._journal = journal
        self._now = 0.0
        self._live: dict[str, Sequence] = {}
        self._arrivals = 0
        self._answers = Answers(decode, end_tokens)
        self._admission = Admission(config, {spec.name: spec.context_most for spec in rungs.values()})
        self.breakers = {
            name: Breaker(name, spec, lambda move: journal(records.moved(move)))
            for name, spec in config.breakers.items()
        }
        self.transfers = Transfers(config, self.breakers, device.cards)
        self.ladder = Ladder(self.breakers["memory"], list(rungs), config)
        self.pools = {
            rung: KvPool(spec.kv, partial(device.alloc, label=f"kv {rung}"), device.free)
            for rung, spec in rungs.items()
        }
        self.host_tier = HostTier(config, self.pools, self.transfers, self.counts)
        self.scheduler = Scheduler(
            config,
            self.pools,
            self.ladder,
            self.counts,
            may_swap_in=self.transfers.direct_dma,
            out_of_memory=device.out_of_memory,
            on_out_of_memory=self._on_out_of_memory,
            on_preempted=lambda sequence, lost: journal(records.preempted(sequence, lost, self._now)),
        )

    # --- requests -------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, now: float) -> Rejected | None:
        """Queue a request, or say at once why not."""
        self._now = now
        refusal = self._admission.refusal(request, len(self.scheduler.waiting))
        if refusal is not None:
            return refusal
        sequence = Sequence(request, now, self._arrivals)
        self._arrivals += 1
        for rung, spec in self.rungs.items():
            if request.model == spec.name and rung != RUNGS[0]:
                sequence.rung, sequence.pinned_rung = rung, True
        self._live[request.id] = sequence
        self._answers.open(request)
        self.scheduler.add(sequence)
        self._journal(records.admitted(sequence, now))
        return None

    def cancel(self, request_id: str, now: float) -> None:
        """The client is gone: stop the work and give back what it held. Unknown ids are ignored."""
        self._now = now
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._end(sequence, "cancelled")

    # --- steps ----------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Plan:
        """The next step. An empty plan means that there is nothing to compute."""
        self._now = now
        for sequence in list(self._live.values()):
            deadline = sequence.request.deadline_s
            if deadline is not None and now >= deadline:
                self._end(sequence, "deadline")
        plan = self.scheduler.plan(now)
        self.host_tier.plan_copies(plan, self.scheduler.running, self._live.values(), now)
        self.counts.throttled_steps += plan.throttled and not plan.is_empty
        return plan

    def commit(self, plan: Plan, outcome: Outcome, now: float, took_s: float = 0.0) -> None:
        """Take in what a step did, and how long it took."""
        self._now = now
        self.counts.steps += 1
        cut_short = self.host_tier.took_back(plan, outcome)
        self.host_tier.take_in(outcome, self._live)
        works = [work for work in plan.works() if work.sequence.id not in cut_short]
        if works:
            self.counts.computed_together(len(works), took_s)
        for work in works:
            sequence = work.sequence
            assert sequence.rung is not None
            self.counts.computed_tokens += work.count
            self.counts.computed_kv_bytes += work.count * self.rungs[sequence.rung].kv.token_bytes
            if sequence.state is not State.RUNNING:
                continue  # cancelled while the step ran
            sequence.computed = work.start + work.count
            if sequence.id in outcome.failures:
                self._end(sequence, "failed", outcome.failures[sequence.id])
            elif work.sample:
                model = self.rungs[sequence.rung].name
                reason = self._answers.take_token(sequence, outcome.tokens[sequence.id], model, now)
                if reason is not None:
                    self._end(sequence, reason)
        if self.is_idle or self.counts.steps % STEPS_BETWEEN_SHRINKS == 0:
            self.give_back_memory()

    def abandon(self, plan: Plan, message: str, now: float) -> None:
        """A step died: its sequences fail, everything else lives on."""
        self._now = now
        self.host_tier.abandon(plan)
        for work in list(plan.works()):
            if work.sequence.id in self._live:
                self._end(work.sequence, "failed", message)

    def give_back_memory(self) -> None:
        """Return slabs that nothing needs, so that neighbours can have them."""
        keep_free = 0 if self.is_idle or self.ladder.throttles(self._now) else self.config.spare_blocks
        for pool in self.pools.values():
            pool.shrink(keep_free=keep_free)

    def take_outputs(self) -> list[tuple[str, Output]]:
        """(engine id, output) pairs since the last call, in order."""
        return self._answers.take()

    @property
    def is_idle(self) -> bool:
        return not self._live

    @property
    def is_copying(self) -> bool:
        """Whether a step has something to take in, even with nothing to compute."""
        return self.host_tier.is_copying

    def observe_memory(self, headroom: Headroom, now: float) -> None:
        """A reading of the fullest card's memory."""
        self._now = now
        self.ladder.saw_headroom(headroom, now)

    def end_all(self, message: str, now: float) -> None:
        """Nothing goes on: whoever is left hears so."""
        self._now = now
        for sequence in list(self._live.values()):
            self._end(sequence, "cancelled", message)

    def lose_cards(self, message: str, now: float) -> None:
        """What was on the cards is gone, and who needed it fails. `regain_cards` before the next step."""
        self._now = now
        for sequence in list(self._live.values()):
            self._end(sequence, "failed", message)
        self._give_back()

    def regain_cards(self) -> None:
        """The cards were reopened. Raises the device's errors if they are gone again, or full."""
        for pool in self.pools.values():
            pool.open()

    def close(self) -> int:
        """End what is left and give every slab back; returns how many blocks were held by nobody alive."""
        self.end_all("the service has stopped", self._now)
        return self._give_back()

    def _give_back(self) -> int:
        self.host_tier.close()
        leaked = sum(pool.held for pool in self.pools.values())
        for pool in self.pools.values():
            pool.close()
        return leaked

    # --- inside ---------------------------------------------------------------------------------------------

    def _on_out_of_memory(self, error: Exception) -> None:
        self.counts.out_of_memory += 1
        self.ladder.saw_out_of_memory(error, self._now)

    def _end(self, sequence: Sequence, reason: str, message: str = "") -> None:
        del self._live[sequence.id]
        self.scheduler.remove(sequence)
        self.ladder.ended(sequence, reason, self._now)
        self._admission.ended(self._now)
        rung = sequence.rung or RUNGS[0]
        self._answers.end(sequence, reason, self.rungs[rung].name, rung, message)
        self._journal(records.terminal(sequence, reason, rung, self._now))
        if self.is_idle:
            self.give_back_memory()
