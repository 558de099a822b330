"""What others have published, as they published it, and how near we want to come. Nothing in here is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Calibrates = Literal["yes", "cache size", "no"]

GITHUB = "https://github.com"
AIC = f"{GITHUB}/ai-dynamo/aiconfigurator"
SOURCES = {
    "vidur": f"[Vidur, mlp.csv]({GITHUB}/microsoft/vidur/blob/683364e91288ede0309a60a00773d230e6aead44/"
    "data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv), Llama-2-70B on H100",
    "aic-attention": f"[AIConfigurator]({AIC}), data of h100_sxm, attention of vLLM 0.19.0, 8 q and 1 kv heads",
    "aic-custom": f"[AIConfigurator]({AIC}), data of h100_sxm, vLLM 0.19.0's all-reduce in a CUDA graph; that its "
    "sizes count numbers of 2 bytes is inferred",
    "aic-nccl": f"[AIConfigurator]({AIC}), data of h100_sxm, NCCL 2.27.3",
    "vllm-ci": "[a table of vLLM's performance CI](https://buildkite.com/elastic/enterprise-search-ruby/builds/571), "
    "found under another project's name: secondary",
    "nim": "[NVIDIA NIM for LLMs, performance](https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance), "
    "Llama-3.3-70B, version 1.8.0, 2 H100, FP8",
    "trtllm": f"[TensorRT-LLM v1.0, perf-overview.md]({GITHUB}/NVIDIA/TensorRT-LLM) at 00f37686, Llama-3.3-70B, "
    "2 H100, FP8",
    "mlperf": f"[MLPerf Inference v4.1 results]({GITHUB}/mlcommons/inference_results_v4.1) at a2f5d66d, NVIDIA, "
    "8 H100, llama2-70b-99.9, mlperf_log_summary.txt",
}


@dataclass(frozen=True)
class Point:
    """One published number. `tolerance` is a fraction of it; V1 to V13 in the order of docs/fidelity.md."""

    key: str
    what: str
    value: float
    unit: str
    tolerance: float
    source: str
    calibrates: Calibrates = "no"


def _kernel(key: str, what: str, value: float, tolerance: float, source: str) -> Point:
    return Point(key, what, value, "µs", tolerance, source, "yes")


def _nim(
    number: str,
    what: str,
    numbers: tuple[float, float, float],
    *,
    ttft_within: float = 0.25,
    calibrates: Calibrates = "no",
) -> tuple[Point, ...]:
    """A row of NIM's table: time to first token and between tokens in ms, tokens a second."""
    ttft, itl, rate = numbers
    return (
        Point(f"{number}.ttft", f"{what}: TTFT", ttft, "ms", ttft_within, "nim", calibrates),
        Point(f"{number}.itl", f"{what}: ITL", itl, "ms", 0.10, "nim", calibrates),
        Point(f"{number}.rate", f"{what}: throughput", rate, "tok/s", 0.10, "nim", calibrates),
    )


POINTS: tuple[Point, ...] = (
    _kernel("V1", "dense products of a layer, TP1, 1 token", 593.0, 0.05, "vidur"),
    _kernel("V2", "dense products of a layer, TP8, 4,096 tokens", 1180.0, 0.10, "vidur"),
    _kernel("V3.1k", "decode attention, batch 64, context 1,024", 15.6, 0.15, "aic-attention"),
    _kernel("V3.16k", "decode attention, batch 64, context 16,384", 188.0, 0.15, "aic-attention"),
    _kernel("V4.4k", "prefill attention of 4,096 tokens", 61.9, 0.10, "aic-attention"),
    _kernel("V4.8k", "prefill attention of 8,192 tokens", 205.8, 0.10, "aic-attention"),
    _kernel("V5.8k", "all-reduce, TP8, 8,192 numbers", 5.20, 0.15, "aic-custom"),
    _kernel("V5.512k", "all-reduce, TP8, 524,288 numbers", 14.8, 0.15, "aic-custom"),
    _kernel("V5.16M", "all-reduce, TP8, 16,777,216 numbers", 178.0, 0.15, "aic-custom"),
    _kernel("V6", "NCCL all-reduce, 8 cards, 512 MiB", 2112.0, 0.10, "aic-nccl"),
    Point("V7", "vLLM BF16, TP4, batch 8, 32 in, 128 out", 2444.47, "ms", 0.10, "vllm-ci", "yes"),
    *_nim("V8", "5000/500, concurrency 1", (406.77, 18.58, 51.67), calibrates="yes"),
    *_nim("V8b", "5000/500, concurrency 5", (546.7, 21.83, 218.48)),
    *_nim("V8c", "500/2000, concurrency 1", (47.77, 18.91, 52.85)),
    *_nim("V9", "5000/500, concurrency 25", (688.69, 38.75, 623.4)),
    *_nim("V10", "5000/500, concurrency 50", (834.51, 59.73, 814.37)),
    *_nim(
        "V11.100",
        "5000/500, concurrency 100",
        (7996.25, 92.91, 917.26),
        ttft_within=0.15,
        calibrates="cache size",
    ),
    *_nim("V11.250", "5000/500, concurrency 250", (88605.32, 93.2, 920.12), ttft_within=0.15),
    Point("V12.1000/1000", "1000/1000, as many as fit", 4205.0, "tok/s", 0.15, "trtllm"),
    Point("V12.128/2048", "128/2048, as many as fit", 6651.0, "tok/s", 0.15, "trtllm"),
    Point("V12.2048/128", "2048/128, as many as fit", 762.0, "tok/s", 0.15, "trtllm"),
    Point("V12.5000/500", "5000/500, as many as fit", 898.0, "tok/s", 0.15, "trtllm"),
    Point("V13.offline", "Offline: throughput", 24524.9, "tok/s", 0.15, "mlperf"),
    Point("V13.server", "Server: the most within its bounds", 21605.79, "tok/s", 0.15, "mlperf"),
    Point("V13.ttft50", "Server at the published rate: TTFT, median", 273.0, "ms", 0.15, "mlperf"),
    Point("V13.ttft99", "Server at the published rate: TTFT, 99th percentile", 461.0, "ms", 0.15, "mlperf"),
    Point("V13.tpot50", "Server at the published rate: TPOT, median", 156.0, "ms", 0.15, "mlperf"),
    Point("V13.tpot99", "Server at the published rate: TPOT, 99th percentile", 175.0, "ms", 0.15, "mlperf"),
)
