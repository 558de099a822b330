"""The fitted constants, all of them, with where they come from. Seconds, bytes per second, fractions.

Each was fitted to published tables that other people measured on H100 SXM 80 GB cards. Nothing here was measured
by us. Which published points were used for which constant stands in docs/fidelity.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


def _by_degree(one: float, two: float, four: float, eight: float) -> Mapping[int, float]:
    return MappingProxyType({1: one, 2: two, 4: four, 8: eight})


@dataclass(frozen=True)
class Fit:
    """What a card reaches of its datasheet, and what a kernel costs at least."""

    # Dense products. Vidur data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv; 6.8 % mean error.
    hbm_efficiency: float = 0.93
    bf16_efficiency: float = 0.73
    layer_s: float = 14.7e-6  # launches and tails of one layer's products
    knee: float = (
        4.0  # exponent of the smooth maximum; within 3 % at 256 tokens, where reading meets computing
    )
    # FP8 products: not in that table. The time to first token of NIM at concurrency 1 (V8) leaves this one open.
    fp8_efficiency: float = 0.618
    # Norms, activations, rotary embedding, residuals of one layer: per token (8 to 12 % error), and at least the
    # floor, which is the sum of their means at 8 tokens. Same table as the dense products.
    elementwise_s: Mapping[int, float] = field(
        default_factory=lambda: _by_degree(0.19e-6, 0.13e-6, 0.10e-6, 0.086e-6)
    )
    elementwise_floor_s: Mapping[int, float] = field(
        default_factory=lambda: _by_degree(33.7e-6, 25.2e-6, 20.4e-6, 17.7e-6)
    )
    # Attention. AIConfigurator h100_sxm/attention/vllm/0.19.0. The two parts of the decode are what V3 asks for:
    # one rate for all sizes (2.3e12, 9 to 11 % over the table) is 24 % off at 16k tokens of context.
    decode_floor_s: float = 9.6e-6
    decode_s: float = 4.1e-6
    kv_bytes_per_s: float = 2.92e12
    prefill_floor_s: float = 11e-6
    prefill_flops: float = 755e12  # causal; 4.5 to 6.9 % error
    # All-reduce of vLLM's own kernel inside a CUDA graph. AIConfigurator h100_sxm/comm/vllm/0.19.0; 6, 10, 16 %.
    reduce_s: Mapping[int, float] = field(default_factory=lambda: _by_degree(0.0, 4.3e-6, 4.7e-6, 5.1e-6))
    reduce_bytes_per_s: Mapping[int, float] = field(
        default_factory=lambda: _by_degree(1.0, 277e9, 199e9, 194e9)
    )
    # That kernel goes over to two stages at 256 KiB with 8 cards (vllm csrc/custom_all_reduce.cuh); V5 shows it.
    two_stage_from_bytes: int = 256 * 1024
    two_stage_s: float = 4.3e-6
    # NCCL. AIConfigurator h100_sxm/comm/nccl/2.27.3: 445 GB/s bus bandwidth of 450 (V6).
    nccl_efficiency: float = 0.989
    # Bus bandwidth without NVLink: 35 to 45 GB/s by Alaya NeW's measurements, the middle of it.
    pcie_busbw_bytes_per_s: float = 40e9
    # Copies between host and card, pinned: 55 of 64 GB/s (a tutorial that quotes NVIDIA's nvbandwidth post).
    copy_efficiency: float = 0.86


H100_FIT = Fit()
