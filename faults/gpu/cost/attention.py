"""Attention of one layer on one rank. Decodes read the keys and values of their context; prefills compute."""

from __future__ import annotations

from faults.gpu.cost.condition import RankCondition
from faults.gpu.cost.fit import Fit
from faults.gpu.cost.gemm import NOMINAL
from faults.gpu.cost.hardware import H100, Card
from faults.gpu.cost.model_shape import ModelShape


def decode_s(
    shape: ModelShape, degree: int, context: int, card: Card, fit: Fit, rank: RankCondition = NOMINAL
) -> float:
    """All decodes of a step together; `context` is the sum of their contexts in tokens."""
    if not context:
        return 0.0
    speed = fit.kv_bytes_per_s * rank.memory_clock * card.hbm_bytes_per_s / H100.hbm_bytes_per_s
    read = shape.kv_bytes_per_token_and_layer * context / degree
    return max(fit.decode_floor_s, fit.decode_s + read / speed)


def prefill_s(
    shape: ModelShape,
    degree: int,
    tokens: int,
    context: int,
    card: Card,
    fit: Fit,
    rank: RankCondition = NOMINAL,
) -> float:
    """A chunk of `tokens` at the end of a context of `context` tokens, itself included; causal, so half the square."""
    pairs = tokens * (context - tokens / 2)
    flops = 4 * shape.heads * shape.head_dim * pairs / degree
    speed = fit.prefill_flops * rank.sm_clock * card.bf16_flops / H100.bf16_flops
    return fit.prefill_floor_s + flops / speed
