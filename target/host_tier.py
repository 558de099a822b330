"""The host tier: which KV is copied to the host and how, and what came back from there.

While direct DMA is in force, new KV is written through within its step, and a sequence that lags behind (after a
time of staging, or for want of room) catches up a little in every step. While it is not, one copy at a time is
staged in the background, from blocks that stay pinned until it has arrived. The two never run at once: on the
one link they would slow each other down, and look like a weak link.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Many

from target.config import EngineConfig
from target.counts import Counts
from target.kv import BLOCK_TOKENS, KvPool, KvShape
from target.plan import Outcome, Plan, Staging, Work
from target.sequence import Rung, Sequence, State
from target.transfers import Transfers

CATCH_UP_CHUNKS = 2  # of direct DMA in one step, on top of what the step itself computed


class HostTier:
    """Books of the tier; the runner holds the KV itself."""

    def __init__(
        self, config: EngineConfig, pools: Mapping[Rung, KvPool], transfers: Transfers, counts: Counts
    ) -> None:
        self._config = config
        self._pools = pools
        self._transfers = transfers
        self._counts = counts
        self._staging: Staging | None = None

    @property
    def is_copying(self) -> bool:
        """Whether a staged copy is under way: blocks are pinned until a step takes its arrival in."""
        return self._staging is not None

    def plan_copies(
        self, plan: Plan, running: Many[Sequence], live: Collection[Sequence], now: float
    ) -> None:
        """Add to a step the copies that it is to make, or start."""
        if self.is_copying or self._config.preemption != "swap":
            return
        room = self._config.host_tier_tokens - sum(sequence.on_host for sequence in live)
        if self._transfers.direct_dma(now):
            room = self._write_through(plan, room)
            self._catch_up(plan, running, room)
        else:
            plan.staging = self._staging = self._next_staging(running, room)

    def take_in(self, outcome: Outcome, live: Mapping[str, Sequence]) -> None:
        """What a step wrote through, and the staged copy that it found arrived."""
        for sequence_id, upto in outcome.on_host.items():
            if (sequence := live.get(sequence_id)) is not None:
                tokens = upto - sequence.on_host
                self._counts.direct_bytes += tokens * self._shape(sequence).token_bytes
                sequence.on_host = upto
        for staging in outcome.staged:
            self._unpin(staging)
            self._counts.staged_bytes += staging.count * self._shape(staging).token_bytes
            if staging.is_wanted and staging.start <= staging.sequence.on_host < staging.end:
                staging.sequence.on_host = staging.end

    def took_back(self, plan: Plan, outcome: Outcome) -> set[str]:
        """What a step swapped in; returns who is still to compute a part of it, and so did not compute at all."""
        cut_short: set[str] = set()
        for sequence in plan.swap_ins:
            restored = outcome.restored.get(sequence.id, 0)
            self._counts.swap_in_bytes += restored * self._shape(sequence).token_bytes
            if restored < sequence.computed:
                cut_short.add(sequence.id)
                if sequence.state is State.RUNNING:
                    self._counts.recomputed_tokens += sequence.computed - restored
                    sequence.computed = sequence.on_host = restored
        return cut_short

    def abandon(self, plan: Plan) -> None:
        """A step died: what it was to stage was not started."""
        if plan.staging is not None:
            self._unpin(plan.staging)

    def close(self) -> None:
        """Nobody will take in the copy under way."""
        if self._staging is not None:
            self._unpin(self._staging)

    def _write_through(self, plan: Plan, room: int) -> int:
        """New KV of those that do not lag; returns the room that is left."""
        for work in plan.works():
            if work.start == work.sequence.on_host and work.count <= room:
                plan.write_through.append(work)
                room -= work.count
        return room

    def _catch_up(self, plan: Plan, running: Many[Sequence], room: int) -> None:
        """Older KV, a bounded part of it; who has caught up goes on with what the step computes."""
        budget = CATCH_UP_CHUNKS * self._config.copy_tokens
        works = {work.sequence.id: work for work in plan.works()}
        for sequence in reversed(running):  # who would give way first has the most use for it
            lag = sequence.computed - sequence.on_host
            count = min(lag, budget, room)
            if count <= 0:
                continue
            budget -= count
            new = works.get(sequence.id)
            if count == lag and new is not None and new.count <= room - count:
                count += new.count
            room -= count
            plan.write_through.append(Work(sequence, sequence.on_host, count, sample=False))

    def _next_staging(self, running: Many[Sequence], room: int) -> Staging | None:
        blocks_most = min(self._config.staged_blocks, room // BLOCK_TOKENS)
        for sequence in reversed(running):
            # Direct DMA may have ended within a block: that block is copied again, whole.
            first = sequence.on_host // BLOCK_TOKENS
            blocks = tuple(sequence.blocks[first : sequence.computed // BLOCK_TOKENS][:blocks_most])
            if blocks and sequence.rung is not None:
                for block in blocks:
                    self._pools[sequence.rung].pin(block)
                start, count = first * BLOCK_TOKENS, len(blocks) * BLOCK_TOKENS
                return Staging(sequence, sequence.rung, start, count, blocks)
        return None

    def _unpin(self, staging: Staging) -> None:
        self._staging = None
        for block in staging.blocks:
            self._pools[staging.rung].drop(block)

    def _shape(self, of: Sequence | Staging) -> KvShape:
        assert of.rung is not None
        return self._pools[of.rung].shape
