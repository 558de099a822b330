"""How long one step of an engine takes: a sum of physical parts, none of which knows of faults by name.

    host + layers × (dense products + elementwise + attention + 2 all-reduces) + head + copies that are waited for

A group of cards waits for its slowest rank twice a layer, so what is computed takes what the slowest rank needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.gpu.cost import attention, collective, copies, gemm
from faults.gpu.cost.condition import HEALTHY, Condition, RankCondition
from faults.gpu.cost.fit import H100_FIT, Fit
from faults.gpu.cost.hardware import H100, Card
from faults.gpu.cost.model_shape import BF16, ModelShape


@dataclass(frozen=True)
class Prefill:
    """A chunk of a prompt: so many tokens, at the end of a context that includes them."""

    tokens: int
    context: int


@dataclass(frozen=True)
class StepWork:
    """What a step computes: `decodes` tokens over `context` tokens in all, chunks of prompts, bytes waited for."""

    decodes: int
    context: int
    prefills: Sequence[Prefill] = ()
    copied_bytes: float = 0.0  # per card, over PCIe, not hidden behind anything

    @property
    def tokens(self) -> int:
        """All tokens that go through the layers."""
        return self.decodes + sum(prefill.tokens for prefill in self.prefills)


@dataclass(frozen=True)
class StepTime:
    """Seconds by part."""

    host: float
    dense: float
    elementwise: float
    attention: float
    collectives: float
    head: float
    copies: float

    @property
    def total(self) -> float:
        computed = self.dense + self.elementwise + self.attention + self.head
        return self.host + computed + self.collectives + self.copies


@dataclass(frozen=True)
class Node:
    """A model on a group of `degree` cards, and what the engine's host code adds to each step."""

    shape: ModelShape
    degree: int
    host_s: float
    card: Card = H100
    fit: Fit = H100_FIT

    def __post_init__(self) -> None:
        if self.degree not in collective.DEGREES:
            raise ValueError(f"nothing is known of tensor parallelism over {self.degree} cards")

    def step(self, work: StepWork, condition: Condition = HEALTHY) -> StepTime:
        """The step on cards in that condition."""
        slowest = max(
            (self._on_a_rank(work, rank) for rank in condition.kinds_of_rank(self.degree)),
            key=sum,
        )
        message = self.shape.hidden * BF16 * work.tokens
        reduce = collective.custom_all_reduce_s(message, self.degree, self.card, self.fit, condition)
        copied = copies.host_copy_s(work.copied_bytes, self.card, self.fit, condition)
        dense, elementwise, attended, head = slowest
        layers = self.shape.layers
        return StepTime(self.host_s, dense, elementwise, attended, 2 * layers * reduce, head, copied)

    def step_s(self, work: StepWork, condition: Condition = HEALTHY) -> float:
        """Its seconds in all."""
        return self.step(work, condition).total

    def _on_a_rank(self, work: StepWork, rank: RankCondition) -> tuple[float, float, float, float]:
        shape, degree, card, fit = self.shape, self.degree, self.card, self.fit
        tokens = work.tokens
        dense = gemm.layer_s(shape, degree, tokens, card, fit, rank)
        elementwise = gemm.elementwise_s(shape, degree, tokens, card, fit, rank)
        attended = attention.decode_s(shape, degree, work.context, card, fit, rank)
        for prefill in work.prefills:
            attended += attention.prefill_s(shape, degree, prefill.tokens, prefill.context, card, fit, rank)
        head = gemm.head_s(shape, degree, work.decodes + len(work.prefills), card, fit, rank)
        return shape.layers * dense, shape.layers * elementwise, shape.layers * attended, head
