"""Continuous batching: who computes how many tokens in the next step, and who gives way.

Decodes come first, then prefills in chunks, both in order of rank. A sequence that lacks a block takes it from
the pool, then from the card, then from whoever has the lowest rank: that one is preempted and keeps its place.
A pass does not end at the first new request that does not fit. One that gave way and does not fit again lets no
new one past it to the same model, or smaller ones would keep it waiting for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

from target.config import EngineConfig
from target.counts import Counts
from target.kv import KvPool
from target.ladder import Ladder
from target.plan import Plan, Work
from target.sequence import Rung, Sequence, State


class Scheduler:
    """Holds the queue and the running set; both are sorted by rank."""

    def __init__(
        self,
        config: EngineConfig,
        pools: Mapping[Rung, KvPool],
        ladder: Ladder,
        counts: Counts,
        *,
        may_swap_in: Callable[[float], bool],
        out_of_memory: type[Exception],
        on_out_of_memory: Callable[[Exception], None],
        on_preempted: Callable[[Sequence, int], None],
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._config = config
        self._pools = pools
        self._ladder = ladder
        self._counts = counts
        self._may_swap_in = may_swap_in
        self._out_of_memory = out_of_memory
        self._on_out_of_memory = on_out_of_memory
        self._on_preempted = on_preempted
        self._card_is_full = False  # within one pass: asking a full card again is futile

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind who goes before it."""
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda s: s.rank)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, wherever it was: give back its blocks."""
        self._free_blocks(sequence)
        sequence.state = State.DONE
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)

    def plan(self, now: float) -> Plan:
        """The next step's work."""
        self._card_is_full = False
        plan = Plan()
        ran = set(self.running)
        budget = self._config.step_tokens
        for decoding in (True, False):
            for sequence in list(self.running):
                if sequence.state is State.RUNNING and (sequence.pending == 1) == decoding and budget:
                    budget -= self._give_work(plan, sequence, budget)
        self._admit(plan, ran, budget, now)
        # A later sequence's need may have preempted one that had its work already.
        for rung, batch in plan.batches.items():
            plan.batches[rung] = [work for work in batch if work.sequence.state is State.RUNNING]
        return plan

    def running_limit(self, now: float) -> int:
        """How many may run at once: fewer while memory is short. Who runs already goes on."""
        return self._config.max_running_throttled if self._ladder.throttles(now) else self._config.max_running

    def _admit(self, plan: Plan, ran: set[Sequence], budget: int, now: float) -> None:
        """Start who waits, as far as budget, limit and blocks go."""
        limit = self.running_limit(now)
        crowded: set[Rung] = set()  # where one that gave way did not fit
        for sequence in list(self.waiting):
            if sequence in ran:  # it gave way in this very pass: back at once, it would have work twice
                assert sequence.rung is not None
                crowded.add(sequence.rung)
                continue
            if not budget:
                break
            if len(self.running) >= limit:
                plan.throttled = len(self.running) < self._config.max_running
                break
            budget -= self._start(plan, sequence, budget, crowded, now)

    def _start(self, plan: Plan, sequence: Sequence, budget: int, crowded: set[Rung], now: float) -> int:
        """Move a waiting sequence to the running set if its next tokens fit; returns the tokens planned."""
        swaps_in = sequence.state is State.SWAPPED and self._may_swap_in(now)
        restored = sequence.on_host if swaps_in else 0
        chooses = not (sequence.output_tokens or restored)
        rungs = self._ladder.choices(sequence, now) if chooses else (sequence.rung,)
        count = min(len(sequence.tokens) - restored, budget, self._config.chunk_tokens)
        # One that gave way returns when all its tokens fit, or it would give way again and again.
        upto = len(sequence.tokens) if sequence.preemptions else restored + count
        if not self._find_room(sequence, rungs, upto, crowded):
            return 0
        if chooses:
            self._ladder.started(sequence, now)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.rank)
        sequence.state = State.RUNNING
        sequence.started_s = now if sequence.started_s is None else sequence.started_s
        self._counts.recomputed_tokens += sequence.on_host - restored
        sequence.computed = sequence.on_host = restored
        if restored:
            plan.swap_ins.append(sequence)
        return self._give_work(plan, sequence, budget)

    def _find_room(self, sequence: Sequence, rungs: Many[Rung | None], upto: int, crowded: set[Rung]) -> bool:
        """Blocks for the first `upto` tokens on the first of the rungs that has them; else it is as it was."""
        before = sequence.rung
        for rung in rungs:
            assert rung is not None
            if rung in crowded and not sequence.preemptions:
                continue
            sequence.rung = rung
            if self._reserve(sequence, upto, may_preempt=False):
                return True
            if sequence.preemptions:
                crowded.add(rung)
        sequence.rung = before
        return False

    def _give_work(self, plan: Plan, sequence: Sequence, budget: int) -> int:
        count = min(sequence.pending, budget, self._config.chunk_tokens)
        if not self._reserve(sequence, sequence.computed + count, may_preempt=True):
            return 0
        assert sequence.rung is not None
        samples = sequence.computed + count == len(sequence.tokens)
        plan.batches.setdefault(sequence.rung, []).append(Work(sequence, sequence.computed, count, samples))
        return count

    def _reserve(self, sequence: Sequence, upto: int, *, may_preempt: bool) -> bool:
        """Blocks for the first `upto` tokens; without, the sequence is left as it was or is itself preempted."""
        assert sequence.rung is not None
        pool = self._pools[sequence.rung]
        while (lacking := sequence.blocks_lacking(upto)) > pool.free:
            if self._grow(pool):
                continue
            if not may_preempt:
                return False
            victim = self._victim(sequence)
            self.preempt(victim)
            if victim is sequence:
                return False
        for _ in range(lacking):
            block = pool.allocate()
            assert block is not None
            sequence.blocks.append(block)
        return True

    def _grow(self, pool: KvPool) -> bool:
        if self._card_is_full:
            return False
        try:
            return pool.grow()
        except self._out_of_memory as error:
            self._card_is_full = True
            self._on_out_of_memory(error)
            return False

    def _victim(self, needy: Sequence) -> Sequence:
        """Who gives way: the lowest rank on the same rung that holds blocks, which may be the needy one itself."""
        return max(
            (s for s in self.running if s.rung == needy.rung and (s.blocks or s is needy)),
            key=lambda s: s.rank,
        )

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks. What the host tier has of its KV is kept, the rest computed again."""
        self.running.remove(sequence)
        lost = sequence.computed - sequence.on_host
        sequence.state = State.SWAPPED if sequence.on_host else State.WAITING
        sequence.computed = 0
        sequence.preemptions += 1
        self._free_blocks(sequence)
        self.add(sequence)
        self._counts.preemptions += 1
        self._counts.recomputed_tokens += lost
        self._on_preempted(sequence, lost)

    def _free_blocks(self, sequence: Sequence) -> None:
        if sequence.rung is not None:
            for block in sequence.blocks:
                self._pools[sequence.rung].drop(block)
        sequence.blocks.clear()
