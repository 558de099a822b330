"""V7 to V13 by the model: the published benchmarks, served in virtual time."""

from __future__ import annotations

import random
from functools import cache

from faults.gpu.cost.model_shape import FP8, llama_2_70b, llama_3_3_70b
from faults.gpu.cost.serving import Limits, Measured, Request, Serving, closed_loop, open_loop
from faults.gpu.cost.step import Node

# What the engines' host code adds to a step: what is left of V7 and of V8's time between tokens, seconds.
VLLM_HOST_S = 2.3e-3
TENSORRT_HOST_S = 2.6e-3

# Tokens of KV cache that NIM had, read off the knee of its own table: at concurrency 100 there decode, by Little's
# law, 917.26 / 500 × 499 × 92.91 ms = 85.05 requests, and another 917.26 / 500 × 0.83 s (the time to first token
# just below the knee) = 1.5 hold blocks while their prompt is computed. So 86 requests of 5,500 tokens.
KV_TOKENS = 86 * 5500

# 8,192 tokens a step is TensorRT-LLM's default. That a prompt may be split to fill it is assumed.
NIM = Node(llama_3_3_70b(FP8, FP8), 2, TENSORRT_HOST_S)
NIM_LIMITS = Limits(KV_TOKENS, step_tokens=8192, splits_prompts=True)

# MLPerf: two cards a replica, four replicas, 896 running Offline and 1,024 in Server (closed/NVIDIA/configs/
# llama2-70b). A sample has 290.3 tokens of answer in the mean (24,524.9 / 84.48) and 294 of prompt (the mean of the
# OpenOrca subset); the logs give no distribution, so every sample has the mean. They do not say how large the cache
# was; it held that batch, so it is no limit here.
MLPERF = Node(llama_2_70b(FP8, FP8), 2, TENSORRT_HOST_S)
REPLICAS = 4
PROMPT, ANSWER = 294, 290
OFFLINE, SERVER = Limits(896 * 584, running=896), Limits(1024 * 584, running=1024)
PUBLISHED_RATE = 21605.79 / ANSWER / REPLICAS  # samples per second and replica
# Enough that a queue which grows for ever has the time to show: with 6,000, rates above capacity seem to be served.
SAMPLES, WARM_UP_SAMPLES = 24_000, 4000
TTFT_MOST_S, TPOT_MOST_S = 2.0, 0.2


def served() -> dict[str, float]:
    """By key of the published point, in the published unit."""
    results = {"V7": 1000 * batch_s()}
    for key, clients, prompt, answer in (
        ("V8", 1, 5000, 500),
        ("V8b", 5, 5000, 500),
        ("V8c", 1, 500, 2000),
        ("V9", 25, 5000, 500),
        ("V10", 50, 5000, 500),
        ("V11.100", 100, 5000, 500),
        ("V11.250", 250, 5000, 500),
    ):
        measured = nim(clients, prompt, answer)
        results[f"{key}.ttft"] = 1000 * measured.ttft_s
        results[f"{key}.itl"] = 1000 * measured.itl_s
        results[f"{key}.rate"] = measured.tokens_per_s
    for prompt, answer in ((1000, 1000), (128, 2048), (2048, 128), (5000, 500)):
        results[f"V12.{prompt}/{answer}"] = saturated(NIM, NIM_LIMITS, prompt, answer).tokens_per_s
    offline = saturated(MLPERF, OFFLINE, PROMPT, ANSWER)
    results["V13.offline"] = REPLICAS * offline.tokens_per_s
    results["V13.server"] = REPLICAS * ANSWER * most_within_slo()
    return results | server_latencies(PUBLISHED_RATE)


def batch_s() -> float:
    """V7: eight prompts at once, until the last token of all."""
    serving = Serving(Node(llama_2_70b(), 4, VLLM_HOST_S), Limits(kv_tokens=8 * 160))
    open_loop(serving, [Request(0.0, 32, 128) for _ in range(8)])
    return serving.now_s


def nim(clients: int, prompt: int, answer: int, limits: Limits = NIM_LIMITS) -> Measured:
    """A row of NIM's table: after two answers per client, ten for each that runs at once."""
    at_once = min(clients, limits.kv_tokens // (prompt + answer))
    serving = Serving(NIM, limits)
    return closed_loop(serving, clients, prompt, answer, warm_up=2 * clients, counted=10 * at_once)


def saturated(node: Node, limits: Limits, prompt: int, answer: int) -> Measured:
    """Always more requests than fit."""
    at_once = min(limits.running, limits.kv_tokens // (prompt + answer))
    clients = at_once * 3 // 2
    return closed_loop(
        Serving(node, limits), clients, prompt, answer, warm_up=2 * at_once, counted=5 * at_once
    )


def server(rate: float) -> tuple[list[float], list[float]]:
    """MLPerf's Server scenario on one replica: sorted times to first token, and times per later token, in seconds."""
    draw, at_s, requests = random.Random(1), 0.0, list[Request]()
    for _ in range(SAMPLES):
        at_s += draw.expovariate(rate)
        requests.append(Request(at_s, PROMPT, ANSWER))
    done = open_loop(Serving(MLPERF, SERVER), requests)[WARM_UP_SAMPLES:]
    return sorted(request.ttft_s for request in done), sorted(request.itl_s for request in done)


def server_latencies(rate: float) -> dict[str, float]:
    """V13's four latencies at so many samples per second and replica, ms."""
    ttft, tpot = server(rate)
    return {
        "V13.ttft50": 1000 * quantile(ttft, 0.50),
        "V13.ttft99": 1000 * quantile(ttft, 0.99),
        "V13.tpot50": 1000 * quantile(tpot, 0.50),
        "V13.tpot99": 1000 * quantile(tpot, 0.99),
    }


@cache
def most_within_slo() -> float:
    """The highest rate, in steps of a quarter, whose 99th percentiles keep MLPerf's bounds."""
    kept, broken = 8 * 4, 32 * 4
    while broken - kept > 1:
        middle = (kept + broken) // 2
        kept, broken = (middle, broken) if keeps_slo(middle / 4) else (kept, middle)
    return kept / 4


def keeps_slo(rate: float) -> bool:
    """Whether both 99th percentiles are within MLPerf's bounds at so many samples per second."""
    ttft, tpot = server(rate)
    return quantile(ttft, 0.99) <= TTFT_MOST_S and quantile(tpot, 0.99) <= TPOT_MOST_S


def quantile(ordered: list[float], part: float) -> float:
    """The value below which that part of an ordered list lies."""
    return ordered[int(part * len(ordered))]
