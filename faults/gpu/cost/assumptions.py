"""What hangs on the choices that the published pages leave open: the same points, had we chosen otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from faults.gpu.cost.attention import decode_s
from faults.gpu.cost.fit import H100_FIT
from faults.gpu.cost.hardware import H100
from faults.gpu.cost.model_shape import llama_2_70b
from faults.gpu.cost.serving import Limits
from faults.gpu.cost.serving_points import KV_TOKENS, NIM_LIMITS, most_within_slo, nim, server_latencies


@dataclass(frozen=True)
class Variant:
    """Another choice, and what it makes of a point."""

    what: str
    key: str
    ours: float


def variants() -> tuple[Variant, ...]:
    """One choice changed at a time."""
    whole = replace(NIM_LIMITS, splits_prompts=False)
    one_rate = replace(H100_FIT, decode_s=0.0, kv_bytes_per_s=2.3e12)
    fastest = server_latencies(most_within_slo())
    no_stages = H100_FIT.reduce_s[8] + 2 * 524288 / H100_FIT.reduce_bytes_per_s[8]
    return (
        Variant("prompts are never split", "V8b.ttft", 1000 * nim(5, 5000, 500, whole).ttft_s),
        Variant("prompts are never split", "V9.ttft", 1000 * nim(25, 5000, 500, whole).ttft_s),
        Variant("prompts are never split", "V10.ttft", 1000 * nim(50, 5000, 500, whole).ttft_s),
        Variant("the cache holds 85 requests, not 86", "V11.100.ttft", _full(85 * 5500)),
        Variant("the cache holds 87 requests, not 86", "V11.100.ttft", _full(KV_TOKENS + 5500)),
        Variant(
            "one rate of 2.3 TB/s for all reads of the cache",
            "V3.16k",
            1e6 * decode_s(llama_2_70b(), 8, 64 * 16384, H100, one_rate),
        ),
        Variant("no second stage in the all-reduce", "V5.512k", 1e6 * no_stages),
        *(Variant("Server at our own highest rate", key, value) for key, value in fastest.items()),
    )


def _full(kv_tokens: int) -> float:
    """V11 at concurrency 100 with a cache of that size: time to first token, ms."""
    return 1000 * nim(100, 5000, 500, Limits(kv_tokens)).ttft_s
