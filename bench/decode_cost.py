"""What paging, tensor parallelism over simulated links and batch invariance cost a decode step.

    .venv/bin/python bench/decode_cost.py

Each figure is a ratio against a plain loop over the same weights that ran beside it: contiguous cache, no ranks, no
links, `scaled_dot_product_attention`. One thread; medians of alternating runs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from faults.gpu.sim import SimNode
from target.device import LinkReading
from target.models.checkpoint import built_in, load
from target.models.linear import linear
from target.models.llama import Llama
from target.models.runner import TorchRunner
from target.models.shape import LlamaShape
from target.models.simulated_cards import SimulatedCards
from target.plan import Plan, Route, Work
from target.request import GenerationRequest
from target.sequence import Sequence as Served
from target.sequence import State

CONTEXT, CARDS, REPEATS = 60, 4, 15


class Watch:
    """Links that are always whole."""

    def begin_copy(self) -> int | None:
        return None

    def saw_copy(self, readings: Sequence[LinkReading]) -> None: ...

    def route(self) -> Route:
        return Route()

    def saw_exchange(self, readings: Sequence[LinkReading]) -> None: ...


def plain_step(shape: LlamaShape, weights: dict[str, Tensor], count: int) -> Callable[[], object]:
    """One decode step of `count` sequences, as simply as torch lets it be written."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
    layers = [[linear(weights[f"model.layers.{i}.{n}.weight"]) for n in names] for i in range(shape.layers)]
    head = linear(weights["lm_head.weight"])
    keys = torch.randn(shape.layers, count, shape.kv_heads, CONTEXT, shape.head_dim)
    tokens = torch.arange(count) + 40

    def step() -> Tensor:
        x = weights["model.embed_tokens.weight"][tokens]
        for index, (q, k, v, o, gate, up, down) in enumerate(layers):
            y = functional.rms_norm(x, (shape.hidden,))
            query = q(y).view(count, shape.heads, 1, shape.head_dim)
            k(y), v(y)
            heads = functional.scaled_dot_product_attention(query, keys[index], keys[index], enable_gqa=True)
            x = x + o(heads.reshape(count, -1))
            y = functional.rms_norm(x, (shape.hidden,))
            x = x + down(functional.silu(gate(y)) * up(y))
        return head(x).argmax(-1)

    return step


def served_step(model: Llama, node: SimNode, count: int) -> Callable[[], object]:
    """The same step by the service's runner, on simulated cards."""
    runner = TorchRunner({"full": model}, SimulatedCards(node))
    works = []
    for number in range(count):
        request = GenerationRequest(str(number), tuple(range(40, 40 + CONTEXT)), 8)
        sequence = Served(request, 0.0, number, rung="full", state=State.RUNNING, computed=CONTEXT - 1)
        sequence.blocks = list(range(number * 4, number * 4 + 4))
        works.append(Work(sequence, CONTEXT - 1, 1, sample=True))
    return lambda: runner.execute(Plan(batches={"full": works}), Watch())


def timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


@torch.inference_mode()
def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, SimNode.create(Path(folder) / "node", cards=CARDS) as node:
        shape, weights = load(built_in(Path(".brownout"), "full", 11))
        model = Llama(shape, weights, cards=CARDS, slots=2048)
        print(f"{'sequences':>9} {'plain ms':>9} {'served ms':>10} {'ratio':>6}")
        for count in (1, 4, 8, 16):
            plain, served = plain_step(shape, weights, count), served_step(model, node, count)
            pairs = [(timed(plain), timed(served)) for _ in range(REPEATS)][3:]
            ratio = statistics.median(b / a for a, b in pairs)
            middle = [statistics.median(times) * 1000 for times in zip(*pairs, strict=True)]
            print(f"{count:>9} {middle[0]:>9.1f} {middle[1]:>10.1f} {ratio:>6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
