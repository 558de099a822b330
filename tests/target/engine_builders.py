"""An engine on cards that a test commands, with a model whose text shows every wrong block.

What the hash model stores in a KV slot is a digest of the token and of the slot before it; the next token is a
digest of everything read through the block table. The oracle is the same without a cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from target.breaker import BreakerState
from target.config import EngineConfig
from target.device import Bound, Direction, Headroom, LinkReading
from target.engine import Engine, RungSpec
from target.kv import BLOCK_TOKENS, KvShape
from target.links import nvlink
from target.plan import LinkWatch, Outcome, Plan, Route, Staging
from target.request import Accepted, Finished, GenerationRequest, Output, Rejected, Token
from target.sequence import Rung
from target.sequence import Sequence as Course

TOKENS = 90
KV_BYTES = 64  # of one token on one card
ROOM = Headroom(80, 100)
FULL_CARD = Headroom(3, 100)


class CardFull(Exception):
    """What the fake cards raise."""


@dataclass
class FakeCopy:
    """Done after so many looks."""

    nbytes: int
    looks_left: int

    def readings(self) -> Sequence[LinkReading] | None:
        self.looks_left -= 1
        return None if self.looks_left >= 0 else (LinkReading("pcie:0:d2h", self.nbytes, 1.0, 1.0),)


class CardsLost(Exception):
    """What the fake cards raise while they are lost."""


@dataclass
class FakeKernel:
    """Tells how long the host worked on it."""

    cards: FakeCards
    bound: Bound

    def finish(self, worked_s: float) -> None:
        self.cards.kernels.append((self.bound, worked_s))

    def cancel(self) -> None:
        self.cards.kernels.append((self.bound, None))


@dataclass
class FakeCards:
    """Cards whose allocations fail when told so, and whose links are as healthy as told."""

    cards: int = 4
    fails: Callable[[int], bool] = lambda _: False  # given the allocation's number, from 1
    healths: dict[str, float] = field(default_factory=dict)  # link -> achieved ÷ nominal rate
    copy_looks: int = 1
    out_of_memory: type[Exception] = CardFull
    broken: type[Exception] = CardsLost
    lost: bool = False
    reopened: int = 0
    reopens: list[Exception] = field(default_factory=list)  # what the next ones raise
    kernels: list[tuple[Bound, float | None]] = field(default_factory=list)
    room: Headroom = ROOM
    allocations: int = 0
    live: set[object] = field(default_factory=set)
    copies: list[tuple[Direction, int]] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)

    def reopen(self) -> None:
        self.reopened += 1
        self.live.clear()
        if self.reopens:
            raise self.reopens.pop(0)

    def start_kernel(self, bound: Bound) -> FakeKernel:
        self._check()
        return FakeKernel(self, bound)

    def _check(self) -> None:
        if self.lost:
            raise CardsLost("GPU 2 is lost")

    def alloc(self, nbytes: int, label: str) -> object:
        self._check()
        self.allocations += 1
        if self.fails(self.allocations):
            raise CardFull(f"allocation {self.allocations}")
        handle = object()
        self.live.add(handle)
        return handle

    def free(self, handle: object) -> None:
        self.live.remove(handle)

    def headroom(self) -> Headroom:
        return self.room

    def reading(self, link: str, nbytes: float = 1.0) -> LinkReading:
        return LinkReading(link, nbytes, 1.0 / self.healths.get(link, 1.0), 1.0)

    def copy(self, direction: Direction, nbytes: int) -> Sequence[LinkReading]:
        self.copies.append((direction, nbytes))
        return [self.reading(f"pcie:{card}:{direction}") for card in range(self.cards)]

    def start_copy(self, direction: Direction, nbytes: int) -> FakeCopy:
        self.staged.append(nbytes)
        return FakeCopy(nbytes, self.copy_looks)

    def exchange(self, flows: Sequence[tuple[int, int, float]]) -> Sequence[LinkReading]:
        return [self.reading(nvlink(a, b), nbytes) for a, b, nbytes in flows]


def digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def next_token(rung: str, read: Sequence[str]) -> int:
    return int(digest(rung, *read), 16) % TOKENS


def oracle(prompt: Sequence[int], count: int, rung: str = "full") -> list[int]:
    """The first `count` tokens of the answer to a prompt, computed alone and without a cache."""
    tokens, chain, before = list(prompt), [], ""
    answer: list[int] = []
    while len(answer) < count:
        for token in tokens[len(chain) :]:
            before = digest(rung, before, token)
            chain.append(before)
        answer.append(next_token(rung, chain))
        tokens.append(answer[-1])
    return answer


@dataclass
class HashRunner:
    """Computes plans with digests, in the same order as the torch runner."""

    device: FakeCards
    breaks: Callable[[Plan], bool] = lambda _: False  # raises instead, after the swaps
    slots: dict[tuple[Rung, int], str] = field(default_factory=dict)
    host: dict[str, tuple[Rung, dict[int, str]]] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    staging: tuple[Staging, FakeCopy] | None = None

    def execute(self, plan: Plan, watch: LinkWatch) -> Outcome:
        outcome = Outcome()
        arrived = self._arrived()
        for sequence in plan.swap_ins:
            outcome.restored[sequence.id] = self._swap_in(sequence, watch)
        if self.breaks(plan):
            raise RuntimeError("the step died")
        plan = self._without_those_cut_short(plan, outcome)
        self._compute(plan, watch, outcome)
        self._write_through(plan, watch, outcome)
        if arrived is not None:
            self.staging = None
            outcome.staged.append(arrived)
        if plan.staging is not None:
            assert self.staging is None
            copy = self.device.start_copy("d2h", plan.staging.count * KV_BYTES)
            self.staging = (plan.staging, copy)
        return outcome

    def forget(self, sequence_id: str) -> None:
        self.host.pop(sequence_id, None)

    def reset(self) -> None:
        self.staging = None

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS

    def _compute(self, plan: Plan, watch: LinkWatch, outcome: Outcome) -> None:
        self.device.start_kernel("memory").finish(0.0)
        written: set[tuple[Rung, int]] = set()
        for rung, works in plan.batches.items():
            for work in works:
                sequence = work.sequence
                for position in range(work.start, work.start + work.count):
                    slot = (rung, self._slot(sequence.blocks, position))
                    assert slot not in written, "two tokens of one step in one slot"
                    written.add(slot)
                    before = self._read(rung, sequence.blocks, position - 1) if position else ""
                    self.slots[slot] = digest(rung, before, sequence.tokens[position])
                if work.sample:
                    read = [self._read(rung, sequence.blocks, p) for p in range(len(sequence.tokens))]
                    outcome.tokens[sequence.id] = next_token(rung, read)
        if written:
            route = watch.route()
            self.routes.append(route)
            hops = (
                []
                if route.ring is None
                else list(zip(route.ring, route.ring[1:] + route.ring[:1], strict=True))
            )
            pairs = hops or [
                (a, b) for a in range(self.device.cards) for b in range(self.device.cards) if a != b
            ]
            watch.saw_exchange(self.device.exchange([(a, b, 1.0) for a, b in pairs]))

    def _read(self, rung: Rung, blocks: Sequence[int], position: int) -> str:
        return self.slots.get((rung, self._slot(blocks, position)), "nothing")

    def _write_through(self, plan: Plan, watch: LinkWatch, outcome: Outcome) -> None:
        for work in plan.write_through:
            done = work.start
            while done < work.start + work.count:
                chunk = watch.begin_copy()
                if chunk is None:
                    return
                count = min(chunk, work.start + work.count - done)
                watch.saw_copy(self.device.copy("d2h", count * KV_BYTES))
                self._to_host(work.sequence, done, count, work.sequence.blocks)
                done += count
                outcome.on_host[work.sequence.id] = done

    def _arrived(self) -> Staging | None:
        if self.staging is None or self.staging[1].readings() is None:
            return None
        staging = self.staging[0]
        if staging.is_wanted:
            padding = [-1] * (staging.start // BLOCK_TOKENS)
            self._to_host(staging.sequence, staging.start, staging.count, [*padding, *staging.blocks])
        return staging

    def _to_host(self, sequence: Course, start: int, count: int, blocks: Sequence[int]) -> None:
        assert sequence.rung is not None
        rung, held = self.host.get(sequence.id, (sequence.rung, {}))
        if rung != sequence.rung:
            held = {}
        for position in range(start, start + count):
            held[position] = self._read(sequence.rung, blocks, position)
        self.host[sequence.id] = (sequence.rung, held)

    def _swap_in(self, sequence: Course, watch: LinkWatch) -> int:
        assert sequence.rung is not None
        rung, held = self.host[sequence.id]
        assert rung == sequence.rung
        done = 0
        while done < sequence.computed and (chunk := watch.begin_copy()) is not None:
            upto = min(done + chunk, sequence.computed)
            watch.saw_copy(self.device.copy("h2d", (upto - done) * KV_BYTES))
            for position in range(done, upto):
                self.slots[rung, self._slot(sequence.blocks, position)] = held[position]
            done = upto
        return done

    def _without_those_cut_short(self, plan: Plan, outcome: Outcome) -> Plan:
        cut_short = {s.id for s in plan.swap_ins if outcome.restored[s.id] < s.computed}
        return replace(
            plan,
            batches={
                rung: [work for work in works if work.sequence.id not in cut_short]
                for rung, works in plan.batches.items()
            },
            write_through=[work for work in plan.write_through if work.sequence.id not in cut_short],
        )


def decode(tokens: Sequence[int]) -> str:
    """One visible character a token."""
    return "".join(chr(33 + token) for token in tokens)


def a_request(name: str = "r", prompt: Iterable[int] = (1, 2, 3), **settings: Any) -> GenerationRequest:
    """Eight tokens after a short prompt."""
    return GenerationRequest(name, tuple(prompt), **({"max_tokens": 8, "client_id": name} | settings))


def rung_specs(least: int = 1, most: int = 4, *, light: bool = True) -> dict[Rung, RungSpec]:
    """Pools of 256 tokens a slab; a context of 256 tokens."""
    shape = KvShape(KV_BYTES * BLOCK_TOKENS, least, most)
    specs: dict[Rung, RungSpec] = {"full": RungSpec("big", shape, 256)}
    if light:
        specs["light"] = RungSpec("small", KvShape(shape.block_bytes, 1, 1), 256)
    return specs


class Bench:
    """An engine with its runner, stepped by hand; also the ears that the runner tells."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        device: FakeCards | None = None,
        rungs: dict[Rung, RungSpec] | None = None,
        *,
        end_tokens: frozenset[int] = frozenset(),
        step_s: float = 0.01,
    ) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.device = device or FakeCards()
        self.journal: list[dict[str, Any]] = []
        self.runner = HashRunner(self.device)
        self.engine = Engine(
            config or EngineConfig(),
            self.device,
            rungs or rung_specs(),
            decode,
            end_tokens,
            self.journal.append,
        )
        self.outputs: dict[str, list[Output]] = {}
        self.requests: dict[str, GenerationRequest] = {}
        self.plans: list[Plan] = []

    # What the runner tells.

    def begin_copy(self) -> int | None:
        return self.engine.transfers.begin_copy(self.now)

    def saw_copy(self, readings: Sequence[LinkReading]) -> None:
        self.engine.transfers.saw_copy(readings, self.now)

    def route(self) -> Route:
        return self.engine.transfers.route(self.now)

    def saw_exchange(self, readings: Sequence[LinkReading]) -> None:
        self.engine.transfers.saw_exchange(readings, self.now)

    # What a test does.

    def submit(self, *requests: GenerationRequest) -> Rejected | None:
        """Submit; returns the last one's refusal."""
        refusal = None
        for request in requests:
            refusal = self.engine.submit(request, self.now)
            if refusal is None:
                self.requests[request.id] = request
        return refusal

    def cancel(self, name: str) -> None:
        self.engine.cancel(name, self.now)
        self._deliver()

    def see_memory(self, room: Headroom) -> None:
        self.engine.observe_memory(room, self.now)

    def step(self, times: int = 1) -> Plan:
        """Run so many steps, each followed by an inventory; returns the last one's plan."""
        for _ in range(times):
            self.now += self.step_s
            plan = self.engine.schedule(self.now)
            self._deliver()
            self.plans.append(plan)
            both = plan.write_through and self.engine.is_copying
            assert not both, "direct copies and a staged one share the link"
            if not plan.is_empty or self.engine.is_copying:
                try:
                    outcome = self.runner.execute(plan, self)
                except RuntimeError as error:
                    self.engine.abandon(plan, str(error), self.now)
                else:
                    self.engine.commit(plan, outcome, self.now, self.step_s)
                self._deliver()
            self.take_inventory()
        return plan

    def run(self, steps_most: int = 3000) -> None:
        """Step until there is nothing left to do."""
        for _ in range(steps_most):
            if self.engine.is_idle and not self.engine.is_copying:
                return
            self.step()
        raise AssertionError(f"still {self.running()} and {self.waiting()} after {steps_most} steps")

    def take_inventory(self) -> None:
        """Every block is free, or held by a sequence or by the copy under way, and by nobody twice."""
        engine = self.engine
        live = [*engine.scheduler.running, *engine.scheduler.waiting]
        assert sorted(s.id for s in live) == sorted(n for n in self.requests if self.end(n) is None)
        pinned = self.runner.staging[0] if self.runner.staging else None
        for rung, pool in engine.pools.items():
            pool.check_integrity()
            owned = [block for s in live if s.rung == rung for block in s.blocks]
            assert len(owned) == len(set(owned)), "two sequences hold one block"
            copied = set(pinned.blocks) if pinned is not None and pinned.rung == rung else set()
            assert pool.held == len(set(owned) | copied), "a block is held by nobody"
        for sequence in engine.scheduler.running:
            assert sequence.on_host <= sequence.computed

    def sequence(self, name: str) -> Course:
        queue = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
        return next(s for s in queue if s.id == name)

    def running(self) -> list[str]:
        return [s.id for s in self.engine.scheduler.running]

    def waiting(self) -> list[str]:
        return [s.id for s in self.engine.scheduler.waiting]

    def tokens(self, name: str) -> list[int]:
        return [o.token_id for o in self.outputs.get(name, []) if isinstance(o, Token) and o.token_id >= 0]

    def text(self, name: str) -> str:
        return "".join(o.text for o in self.outputs.get(name, []) if isinstance(o, Token))

    def end(self, name: str) -> Finished | None:
        """The one end of a request; None while there is none."""
        ends = [o for o in self.outputs.get(name, []) if isinstance(o, Finished)]
        assert len(ends) <= 1, f"{name} ended {len(ends)} times"
        return ends[0] if ends else None

    def reason(self, name: str) -> str | None:
        end = self.end(name)
        return end.reason if end else None

    def state(self, breaker: str) -> BreakerState:
        return self.engine.breakers[breaker].state(self.now)

    def force(self, breaker: str, *, bad: int = 20) -> None:
        """Bad evidence until the breaker is open."""
        for _ in range(bad):
            self.engine.breakers[breaker].record(False, self.now, "forced")
        assert self.state(breaker) is BreakerState.OPEN

    def check_answers(self) -> None:
        """Each request ended once; its tokens are the oracle's, or the first of them if it did not complete."""
        for name, request in self.requests.items():
            end = self.end(name)
            assert end is not None, f"{name} has no end"
            assert self.outputs[name][-1] is end
            got = self.tokens(name)
            assert len(got) == end.output_tokens
            assert got == oracle(request.prompt_ids, len(got), end.rung), f"{name} has foreign tokens"
            indices = [o.index for o in self.outputs[name] if isinstance(o, Token) and o.token_id >= 0]
            assert indices == list(range(len(got)))
            if end.reason == "length":
                assert len(got) == request.max_tokens
            accepted = [o for o in self.outputs[name] if isinstance(o, Accepted)]
            assert [a.rung for a in accepted] == ([end.rung] if accepted else [])
            assert bool(accepted) or not got

    def check_all_given_back(self) -> None:
        """Nothing is held, and only what a pool never gives back is allocated."""
        for pool in self.engine.pools.values():
            assert pool.held == 0
            assert pool.total == pool.shape.slabs_least * 16
        assert not self.runner.host
        assert self.engine.close() == 0
        assert not self.device.live

    def _deliver(self) -> None:
        for name, output in self.engine.take_outputs():
            assert self.end(name) is None, f"{name} goes on after its end"
            self.outputs.setdefault(name, []).append(output)
            if isinstance(output, Finished):
                self.runner.forget(name)
