"""The engine: admits requests, plans steps, and takes in what they did. Sans-IO: it is told the time.

submit ──► waiting ──► schedule() ──► Plan ──(a runner computes it)──► Outcome ──► commit() ──► outputs
               ▲                                                                       │
               └──────────────────────── preempted, keeps its place ◄──────────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from target.breaker import Breaker, BreakerState, Transition
from target.config import EngineConfig
from target.device import Device, Headroom, LinkReading
from target.kv import BLOCK_TOKENS, KvPool, KvShape
from target.ladder import Ladder
from target.links import LinkHealth, ring_around
from target.plan import Outcome, Plan, Route, Staging
from target.request import Accepted, Finished, GenerationRequest, Output, Rejected, Token
from target.scheduler import Scheduler
from target.sequence import RUNGS, Rung, Sequence, State
from target.text import Decode, TextStream

STEPS_BETWEEN_SHRINKS = 16

OUTCOMES = {
    "stop": "completed"
}  # how the journal names an end, where it differs from the API's finish reason

Journal = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RungSpec:
    """One model of the ladder, as the engine needs to know it."""

    name: str
    kv: KvShape
    context_most: int


@dataclass
class Counts:
    """Counters that only grow."""

    steps: int = 0
    computed_tokens: int = 0
    computed_kv_bytes: int = 0  # on one card, as are the next two
    direct_bytes: int = 0
    staged_bytes: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    out_of_memory: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


class Engine:
    """One service on one device. Not thread-safe: its driver calls it from one place at a time."""

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        rungs: Mapping[Rung, RungSpec],
        decode: Decode,
        end_tokens: frozenset[int],
        journal: Journal = lambda _: None,
    ) -> None:
        self.config = config
        self.counts = Counts()
        self.rungs = rungs
        self._device = device
        self._decode = decode
        self._end_tokens = end_tokens
        self._journal = journal
        self._now = 0.0
        self._outputs: list[tuple[str, Output]] = []
        self._texts: dict[str, TextStream] = {}
        self._live: dict[str, Sequence] = {}
        self._arrivals = 0
        self._finish_times: list[float] = []
        self._staging: Staging | None = None
        self.breakers = {
            name: Breaker(name, spec, self._on_transition) for name, spec in config.breakers.items()
        }
        self.pcie = LinkHealth(self.breakers["pcie"])
        self.nvlink = LinkHealth(self.breakers["nvlink"])
        self.ladder = Ladder(self.breakers["memory"], list(rungs), enabled=config.countermeasures.vram)
        self.pools = {
            rung: KvPool(spec.kv, partial(device.alloc, label=f"kv {rung}"), device.free)
            for rung, spec in rungs.items()
        }
        self.scheduler = Scheduler(
            config, self.pools, self.ladder, device.out_of_memory, self._on_out_of_memory, self._on_preempted
        )

    # --- requests -------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, now: float) -> Rejected | None:
        """Queue a request, or say at once why not."""
        self._now = now
        refusal = self._refusal(request)
        if refusal is not None:
            self.counts.rejected[refusal.code] = self.counts.rejected.get(refusal.code, 0) + 1
            return refusal
        sequence = Sequence(request, now, self._arrivals)
        self._arrivals += 1
        for rung, spec in self.rungs.items():
            if request.model == spec.name and rung != RUNGS[0]:
                sequence.rung, sequence.pinned_rung = rung, True
        self._live[request.id] = sequence
        self._texts[request.id] = TextStream(self._decode, request.stop)
        self.scheduler.add(sequence)
        self._journal({"kind": "service", "event": "admitted", "id": request.client_id, "t": now})
        return None

    def cancel(self, request_id: str, now: float) -> None:
        """The client is gone: stop the work and give back what it held. Unknown ids are ignored."""
        self._now = now
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._end(sequence, "cancelled")

    def _refusal(self, request: GenerationRequest) -> Rejected | None:
        if request.model is not None and request.model not in {spec.name for spec in self.rungs.values()}:
            known = ", ".join(spec.name for spec in self.rungs.values())
            return Rejected(404, "model_not_found", f"no model {request.model!r}; there are: {known}", None)
        longest = len(request.prompt_ids) + request.max_tokens
        most = min(spec.context_most for spec in self.rungs.values())
        if longest > most:
            return Rejected(
                400,
                "context_length_exceeded",
                f"prompt ({len(request.prompt_ids)}) and max_tokens ({request.max_tokens}) "
                f"make {longest} tokens; this model's context is {most}",
                None,
            )
        if len(self.scheduler.waiting) >= self.config.max_queue:
            return Rejected(
                429, "queue_full", f"{len(self.scheduler.waiting)} requests are waiting", self.retry_after_s()
            )
        return None

    def retry_after_s(self) -> float:
        """When the queue should have drained, from the rate of the last answers; between 1 and 30 s."""
        recent = self._finish_times[-16:]
        if len(recent) < 2 or recent[-1] == recent[0]:
            return 1.0
        rate = (len(recent) - 1) / (recent[-1] - recent[0])
        return min(30.0, max(1.0, math.ceil(len(self.scheduler.waiting) / rate)))

    # --- steps ----------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Plan:
        """The next step. An empty plan means that there is nothing to compute."""
        self._now = now
        for sequence in list(self._live.values()):
            deadline = sequence.request.deadline_s
            if deadline is not None and now >= deadline:
                self._end(sequence, "deadline")
        plan = self.scheduler.plan(now)
        if self._direct_dma():
            room = self._host_room()
            for work in plan.works():
                if work.start == work.sequence.on_host and work.count <= room:
                    plan.write_through.append(work)
                    room -= work.count
        elif self.config.preemption == "swap":
            plan.staging = self._next_staging()
        return plan

    def commit(self, plan: Plan, outcome: Outcome, now: float) -> None:
        """Take in what a step did."""
        self._now = now
        self.counts.steps += 1
        for sequence_id, upto in outcome.on_host.items():
            if (sequence := self._live.get(sequence_id)) is not None:
                self.counts.direct_bytes += (upto - sequence.on_host) * self._token_bytes(sequence)
                sequence.on_host = upto
        for staging in outcome.staged:
            self._staged(staging)
        for work in plan.works():
            sequence = work.sequence
            self.counts.computed_tokens += work.count
            self.counts.computed_kv_bytes += work.count * self._token_bytes(sequence)
            if sequence.state is not State.RUNNING:
                continue  # cancelled while the step ran
            sequence.computed = work.start + work.count
            if sequence.id in outcome.failures:
                self._end(sequence, "failed", outcome.failures[sequence.id])
            elif work.sample:
                self._take_token(sequence, outcome.tokens[sequence.id])
        if self.is_idle or self.counts.steps % STEPS_BETWEEN_SHRINKS == 0:
            self.give_back_memory()

    def abandon(self, plan: Plan, message: str, now: float) -> None:
        """A step died: its sequences fail, everything else lives on."""
        self._now = now
        if plan.staging is not None:
            self._unpin(plan.staging)
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
        outputs, self._outputs = self._outputs, []
        return outputs

    @property
    def is_idle(self) -> bool:
        return not self._live

    @property
    def is_copying(self) -> bool:
        """Whether a copy to the host tier is under way: blocks are pinned until a step takes its arrival in."""
        return self._staging is not None

    def live_ids(self) -> list[str]:
        """Engine ids of requests that have not ended."""
        return list(self._live)

    # --- what the hardware says -----------------------------------------------------------------------------

    def observe_memory(self, headroom: Headroom, now: float) -> None:
        """A reading of free memory. Our own growth stops above the watermark, so less is somebody else's doing."""
        self._now = now
        memory = self.breakers["memory"]
        low = headroom.free_bytes < self.config.memory_low_fraction * headroom.total_bytes
        reason = f"{headroom.free_bytes / 2**20:.2f} of {headroom.total_bytes / 2**20:.0f} MiB free"
        memory.record(not low, now, reason)
        if low and (memory.probing or memory.try_probe(now)):
            memory.settle_probe(False, now, reason)
        elif not self.ladder.probes_with_requests and memory.try_probe(now):
            memory.settle_probe(True, now, reason)

    def saw_copy(self, readings: Many[LinkReading], now: float) -> None:
        """One chunk of direct DMA is done."""
        self._now = now
        ok = self.pcie.observe(readings, now)
        self._settle_link_probe(self.pcie, ok, now)

    def saw_exchange(self, readings: Many[LinkReading], now: float) -> None:
        """One all-reduce is done."""
        self._now = now
        ok = self.nvlink.observe(readings, now)
        self._settle_link_probe(self.nvlink, ok, now)

    def route(self, now: float) -> Route:
        """Direct while the links are whole, or to try them once; else a ring around the weak ones."""
        breaker = self.breakers["nvlink"]
        tries_direct = breaker.probing or breaker.try_probe(now)
        if tries_direct or breaker.is_closed(now) or not self.config.countermeasures.nvlink:
            return Route()
        return Route(ring_around(self.nvlink.weak(), self._device.cards))

    def _direct_dma(self) -> bool:
        if self.config.preemption != "swap":
            return False
        breaker = self.breakers["pcie"]
        closed = breaker.is_closed(self._now) or not self.config.countermeasures.pcie
        return closed or breaker.state(self._now) is BreakerState.HALF_OPEN

    def begin_copy(self, now: float) -> int | None:
        """Tokens whose KV may go by direct DMA in the next chunk; None: none, until the breaker says otherwise."""
        self._now = now
        breaker = self.breakers["pcie"]
        tries_direct = breaker.try_probe(now)
        if tries_direct or breaker.is_closed(now) or not self.config.countermeasures.pcie:
            return self.config.copy_tokens
        return None

    def _settle_link_probe(self, link: LinkHealth, ok: bool, now: float) -> None:
        if link.breaker.probing:
            if ok:
                link.forget()
            link.breaker.settle_probe(ok, now, "probe held" if ok else "probe found a weak link")

    # --- inside ---------------------------------------------------------------------------------------------

    def _on_out_of_memory(self, error: Exception) -> None:
        self.counts.out_of_memory += 1
        memory = self.breakers["memory"]
        memory.record(False, self._now, f"allocation failed: {error}")
        memory.settle_probe(False, self._now, f"allocation failed: {error}")

    def _on_preempted(self, sequence: Sequence, lost_tokens: int) -> None:
        self.counts.preemptions += 1
        self.counts.recomputed_tokens += lost_tokens
        self._journal(
            {
                "kind": "service",
                "event": "preempted",
                "id": sequence.request.client_id,
                "t": self._now,
                "lost_tokens": lost_tokens,
            }
        )

    def _on_transition(self, move: Transition) -> None:
        self._journal(
            {
                "kind": "breaker",
                "name": move.name,
                "was": move.was.value,
                "now": move.now.value,
                "reason": move.reason,
                "t": move.at_s,
            }
        )

    def _host_room(self) -> int:
        return self.config.host_tier_tokens - sum(sequence.on_host for sequence in self._live.values())

    def _next_staging(self) -> Staging | None:
        if self._staging is not None:
            return None
        blocks_most = min(self.config.staged_blocks, self._host_room() // BLOCK_TOKENS)
        for sequence in reversed(self.scheduler.running):  # who would give way first has the most use for it
            # Direct DMA may have ended within a block: that block is copied again, whole.
            first = sequence.on_host // BLOCK_TOKENS
            blocks = tuple(sequence.blocks[first : sequence.computed // BLOCK_TOKENS][:blocks_most])
            if blocks and sequence.rung is not None:
                for block in blocks:
                    self._pool(sequence).pin(block)
                start, count = first * BLOCK_TOKENS, len(blocks) * BLOCK_TOKENS
                self._staging = Staging(sequence, sequence.rung, start, count, blocks)
                return self._staging
        return None

    def _staged(self, staging: Staging) -> None:
        self._unpin(staging)
        self.counts.staged_bytes += staging.count * self._token_bytes(staging)
        sequence = staging.sequence
        if staging.is_wanted and staging.start <= sequence.on_host < staging.end:
            sequence.on_host = staging.end

    def _unpin(self, staging: Staging) -> None:
        self._staging = None
        for block in staging.blocks:
            self.pools[staging.rung].drop(block)

    def _pool(self, of: Sequence | Staging) -> KvPool:
        assert of.rung is not None
        return self.pools[of.rung]

    def _token_bytes(self, of: Sequence | Staging) -> int:
        return self._pool(of).shape.block_bytes // BLOCK_TOKENS

    def _take_token(self, sequence: Sequence, token: int) -> None:
        assert sequence.rung is not None
        if sequence.first_token_s is None:
            sequence.first_token_s = self._now
            queued_s = (self._now if sequence.started_s is None else sequence.started_s) - sequence.arrival_s
            self._outputs.append(
                (sequence.id, Accepted(self.rungs[sequence.rung].name, sequence.rung, queued_s))
            )
        if token in self._end_tokens:
            self._end(sequence, "stop")
            return
        sequence.tokens.append(token)
        self.counts.generated_tokens += 1
        stream = self._texts[sequence.id]
        text = stream.push(token)
        self._outputs.append((sequence.id, Token(text, token, sequence.output_tokens - 1)))
        if stream.stopped:
            self._end(sequence, "stop")
        elif sequence.output_tokens >= sequence.request.max_tokens:
            self._end(sequence, "length")

    def _end(self, sequence: Sequence, reason: str, message: str = "") -> None:
        del self._live[sequence.id]
        stream = self._texts.pop(sequence.id)
        tail = stream.finish() if reason in ("stop", "length") else ""
        if tail:
            self._outputs.append((sequence.id, Token(tail, -1, sequence.output_tokens)))
        self.scheduler.remove(sequence)
        self.ladder.ended(sequence, reason, self._now)
        rung = sequence.rung or RUNGS[0]
        finished = Finished(
            reason=reason,
            prompt_tokens=len(sequence.request.prompt_ids),
            output_tokens=sequence.output_tokens,
            model=self.rungs[rung].name,
            rung=rung,
            message=message,
        )
        self._outputs.append((sequence.id, finished))
        self._finish_times = [*self._finish_times[-15:], self._now]
        self._journal(
            {
                "kind": "service",
                "event": "terminal",
                "id": sequence.request.client_id,
                "t": self._now,
                "reason": OUTCOMES.get(reason, reason),
                "rung": rung,
                "output_tokens": sequence.output_tokens,
                "preemptions": sequence.preemptions,
            }
        )
        if self.is_idle:
            self.give_back_memory()

    def waiting(self) -> Iterator[Sequence]:
        """Sequences in the queue, next first."""
        return iter(self.scheduler.waiting)

    def close(self) -> int:
        """End what is left and give every slab back; returns how many blocks were held by nobody alive."""
        for sequence in list(self._live.values()):
            self._end(sequence, "cancelled")
        if self._staging is not None:
            self._unpin(self._staging)
        leaked = sum(pool.held for pool in self.pools.values())
        for pool in self.pools.values():
            pool.close()
        return leaked
