"""Linear layers whose result for a row does not depend on the rows beside it.

Greedy output must be the same bytes alone and in a batch, or it could not serve as an oracle. oneDNN's prepacked
weights give that on the CPU, and are the faster way too; without them, plain `linear` gives it from `ROWS_LEAST`
rows on (fewer take another kernel), so fewer are padded. `tests/target/test_llama.py` holds both to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

ROWS_LEAST = 4

Linear = Callable[[Tensor], Tensor]


def plain(weight: Tensor) -> Linear:
    """By `torch.nn.functional.linear`, padded to at least `ROWS_LEAST` rows."""
    weight = weight.contiguous()

    def apply(x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < ROWS_LEAST:
            x = torch.cat([x, x.new_zeros(ROWS_LEAST - rows, x.shape[1])])
        return functional.linear(x, weight)[:rows]

    return apply


def packed(weight: Tensor) -> Linear:
    """By oneDNN with the weight laid out once for its kernels; AttributeError where torch has no such operator."""
    reorder = torch.ops.mkldnn._reorder_linear_weight
    pointwise = torch.ops.mkldnn._linear_pointwise
    laid_out = reorder(weight.contiguous(), None)

    def apply(x: Tensor) -> Tensor:
        result: Tensor = pointwise(x, laid_out, None, "none", [], "")
        return result

    return apply


def linear(weight: Tensor) -> Linear:
    """The faster of the two that this build of torch has."""
    try:
        apply = packed(weight)
        apply(torch.zeros(1, weight.shape[1]))
    except (AttributeError, RuntimeError):
        return plain(weight)
    return apply
