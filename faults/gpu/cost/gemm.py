"""Dense products of one layer on one rank: reading the weights or computing, whichever takes longer.

For Llama-70B in BF16 on the H100 there is a measured table, and it is used. For all else the roofline with a rounded
corner; against the table it is up to 45 % too fast just above 256 tokens, where kernels change their tiles.
"""

from __future__ import annotations

import math

from faults.gpu.cost.condition import RankCondition
from faults.gpu.cost.fit import Fit
from faults.gpu.cost.gemm_table import MILLISECONDS, measured_layer_s
from faults.gpu.cost.hardware import H100, Card
from faults.gpu.cost.model_shape import BF16, ModelShape, llama_2_70b

TABLED = llama_2_70b()
NOMINAL = RankCondition()


def roofline_s(
    weights: float, bytes_per_weight: float, tokens: int, card: Card, fit: Fit, rank: RankCondition
) -> float:
    """Seconds to multiply `tokens` rows by so many weights of this rank."""
    efficiency = fit.fp8_efficiency if card.flops(bytes_per_weight) > card.bf16_flops else fit.bf16_efficiency
    read = weights * bytes_per_weight / (fit.hbm_efficiency * card.hbm_bytes_per_s * rank.memory_clock)
    compute = 2 * weights * tokens / (efficiency * card.flops(bytes_per_weight) * rank.sm_clock)
    longer, shorter = max(read, compute), min(read, compute)
    return longer * math.pow(1 + math.pow(shorter / longer, fit.knee), 1 / fit.knee)


def formula_layer_s(
    shape: ModelShape, degree: int, tokens: int, card: Card, fit: Fit, rank: RankCondition = NOMINAL
) -> float:
    """One layer by the formula."""
    weights = shape.layer_weights / degree
    return roofline_s(weights, shape.weight_bytes, tokens, card, fit, rank) + fit.layer_s


def layer_s(
    shape: ModelShape, degree: int, tokens: int, card: Card, fit: Fit, rank: RankCondition = NOMINAL
) -> float:
    """One layer by the table where there is one. A fault changes a measured time as it changes the formula's."""
    by_formula = formula_layer_s(shape, degree, tokens, card, fit, rank)
    if not is_tabled(shape, degree, card):
        return by_formula
    measured = measured_layer_s(degree, tokens)
    if rank == NOMINAL:
        return measured
    return measured * by_formula / formula_layer_s(shape, degree, tokens, card, fit)


def is_tabled(shape: ModelShape, degree: int, card: Card) -> bool:
    """Whether this layer's products were measured."""
    same = shape.layer_weights == TABLED.layer_weights and shape.weight_bytes == BF16
    return same and degree in MILLISECONDS and card == H100


def head_s(shape: ModelShape, degree: int, rows: int, card: Card, fit: Fit, rank: RankCondition) -> float:
    """The language-model head for `rows` tokens that are sampled; it stays in BF16."""
    return roofline_s(shape.head_weights / degree, BF16, rows, card, fit, rank)


def elementwise_s(
    shape: ModelShape, degree: int, tokens: int, card: Card, fit: Fit, rank: RankCondition = NOMINAL
) -> float:
    """Norms, activations, rotary embedding and residuals of one layer; bound by memory, or by being launched."""
    wider = shape.hidden / TABLED.hidden
    slower = H100.hbm_bytes_per_s / (card.hbm_bytes_per_s * rank.memory_clock)
    return max(fit.elementwise_floor_s[degree], fit.elementwise_s[degree] * tokens * wider * slower)
