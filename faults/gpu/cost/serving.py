"""An engine in virtual time: continuous batching over the cost model, with requests that are all known beforehand.

Small on purpose: it answers what a published serving benchmark would have measured on the modelled node. Time
passes only in steps. All that is running decodes one token a step; what is left of the step's budget of tokens goes
to prompts, in order of arrival. A request starts only when its prompt and all of its answer fit into the KV cache
(the policy TensorRT-LLM calls GUARANTEED_NO_EVICT), so nothing is ever preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from faults.gpu.cost.condition import HEALTHY, Condition
from faults.gpu.cost.step import Node, Prefill, StepWork


@dataclass(frozen=True)
class Limits:
    """What an engine lets into a step, and into its cache."""

    kv_tokens: int
    step_tokens: int = 8192
    running: int = 2048
    splits_prompts: bool = True  # chunked prefill: a prompt may take what is left, and go on in the next step


@dataclass(slots=True)
class Request:
    """One request and when things happened to it, in seconds."""

    arrived_s: float
    prompt: int
    answer: int
    prefilled: int = 0
    first_s: float = 0.0
    done_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrived_s

    @property
    def itl_s(self) -> float:
        """Mean time between its tokens."""
        return (self.done_s - self.first_s) / (self.answer - 1)


@dataclass
class Serving:
    """The state of the engine between two steps."""

    node: Node
    limits: Limits
    condition: Condition = HEALTHY
    now_s: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: deque[Request] = field(default_factory=deque)
    running: int = 0  # started and not ended
    decoding: int = 0
    context: int = 0  # of all that is decoding
    reserved: int = 0  # tokens of KV cache
    steps: int = 0
    made: int = 0  # tokens of answers
    _ends_at: dict[int, list[Request]] = field(default_factory=dict)  # by the step that makes the last token

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.decoding)

    def step(self) -> list[Request]:
        """One step; the requests that ended with it."""
        decodes, context = self.decoding, self.context
        chunks = self._chunks(self.limits.step_tokens - decodes)
        if not decodes and not chunks:
            raise ValueError(f"there is nothing to compute, or what waits does not fit into {self.limits}")
        prefills = tuple(Prefill(tokens, request.prefilled) for request, tokens in chunks)
        self.now_s += self.node.step_s(StepWork(decodes, context, prefills), self.condition)
        self.steps += 1
        self.made += decodes
        self.context += decodes
        for request, _ in chunks:
            if request.prefilled == request.prompt:
                request.first_s = self.now_s
                self.made += 1
                self.decoding += 1
                self.context += request.prompt + 1
                self._ends_at.setdefault(self.steps + request.answer - 1, []).append(request)
        ended = self._ends_at.pop(self.steps, [])
        for request in ended:
            request.done_s = self.now_s
            self.running -= 1
            self.decoding -= 1
            self.context -= request.prompt + request.answer
            self.reserved -= request.prompt + request.answer
        return ended

    def _chunks(self, budget: int) -> list[tuple[Request, int]]:
        """Parts of prompts that fit into the budget, first come first served."""
        chunks: list[tuple[Request, int]] = []
        while budget > 0 and (self.prefilling or self._admit()):
            request = self.prefilling[0]
            left = request.prompt - request.prefilled
            if left > budget and chunks and not self.limits.splits_prompts:
                break
            tokens = min(left, budget)
            request.prefilled += tokens
            budget -= tokens
            chunks.append((request, tokens))
            if tokens == left:
                self.prefilling.popleft()
        return chunks

    def _admit(self) -> bool:
        """Start the request that has waited longest, if there is room for all of it."""
        if not self.waiting or self.running >= self.limits.running:
            return False
        request = self.waiting[0]
        if self.reserved + request.prompt + request.answer > self.limits.kv_tokens:
            return False
        self.running += 1
        self.reserved += request.prompt + request.answer
        self.prefilling.append(self.waiting.popleft())
        return True


@dataclass(frozen=True)
class Measured:
    """What a benchmark reports of a run in its steady part: means, and tokens of answers a second."""

    ttft_s: float
    itl_s: float
    tokens_per_s: float


def closed_loop(
    serving: Serving, clients: int, prompt: int, answer: int, *, warm_up: int, counted: int
) -> Measured:
    """Clients that start together and ask again as soon as they are answered.

    The first `warm_up` answers are not counted. Nothing is drawn at random, so clients that start together stay
    near each other, and drift apart slowly: below saturation the time to first token is about that, too.
    """
    done: list[Request] = []
    began_s, made = 0.0, 0
    serving.waiting.extend(Request(serving.now_s, prompt, answer) for _ in range(clients))
    while len(done) < warm_up + counted:
        ended = serving.step()
        done += ended
        serving.waiting.extend(Request(serving.now_s, prompt, answer) for _ in ended)
        if not began_s and len(done) >= warm_up:
            began_s, made = serving.now_s, serving.made
    steady = done[warm_up:]
    return Measured(
        ttft_s=sum(request.ttft_s for request in steady) / len(steady),
        itl_s=sum(request.itl_s for request in steady) / len(steady),
        tokens_per_s=(serving.made - made) / (serving.now_s - began_s),
    )


def open_loop(serving: Serving, requests: Iterable[Request]) -> list[Request]:
    """Requests that come when they come, sorted by arrival; all of them, in the order in which they ended."""
    coming, done = deque(requests), list[Request]()
    while coming or not serving.is_idle:
        if serving.is_idle:
            serving.now_s = max(serving.now_s, coming[0].arrived_s)
        while coming and coming[0].arrived_s <= serving.now_s:
            serving.waiting.append(coming.popleft())
        done += serving.step()
    return done
