"""V1 to V6 by the model: single kernels on a healthy H100, in microseconds."""

from __future__ import annotations

from faults.gpu.cost.attention import decode_s, prefill_s
from faults.gpu.cost.collective import custom_all_reduce_s, nccl_all_reduce_s
from faults.gpu.cost.fit import H100_FIT
from faults.gpu.cost.gemm import formula_layer_s
from faults.gpu.cost.hardware import H100
from faults.gpu.cost.model_shape import BF16, llama_2_70b

MIB = 2**20


def kernels() -> dict[str, float]:
    """By key of the published point. V1 and V2 by the formula: the table would only give back what was put in."""
    shape = llama_2_70b()  # over 8 cards it has 8 query heads and 1 key-value head on each
    seconds = {
        "V1": formula_layer_s(shape, 1, 1, H100, H100_FIT),
        "V2": formula_layer_s(shape, 8, 4096, H100, H100_FIT),
        "V3.1k": decode_s(shape, 8, 64 * 1024, H100, H100_FIT),
        "V3.16k": decode_s(shape, 8, 64 * 16384, H100, H100_FIT),
        "V4.4k": prefill_s(shape, 8, 4096, 4096, H100, H100_FIT),
        "V4.8k": prefill_s(shape, 8, 8192, 8192, H100, H100_FIT),
        "V5.8k": custom_all_reduce_s(8192 * BF16, 8, H100, H100_FIT),
        "V5.512k": custom_all_reduce_s(524288 * BF16, 8, H100, H100_FIT),
        "V5.16M": custom_all_reduce_s(16777216 * BF16, 8, H100, H100_FIT),
        "V6": nccl_all_reduce_s(512 * MIB, 8, H100, H100_FIT),
    }
    return {key: 1e6 * value for key, value in seconds.items()}
