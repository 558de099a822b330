"""From outputs to metrics: what a scraper sees agrees with what happened."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from target.config import EngineConfig
from target.exposition import Exposition
from target.measures import Measures
from target.request import Rejected
from tests.target.engine_builders import FULL_CARD, KV_BYTES, Bench, a_request


class Scraped:
    """A bench whose outputs are measured."""

    def __init__(self) -> None:
        self.bench = Bench(EngineConfig(max_queue=2))
        self.exposition = Exposition(["big", "small"], list(self.bench.engine.breakers), 16)
        self.measures = Measures(self.exposition, lambda: self.bench.engine)

    def ask(self, name: str, **settings: object) -> None:
        request = a_request(name, **settings)
        self.measures.arrived(name, self.bench.now, request.model)
        refusal = self.bench.submit(request)
        if isinstance(refusal, Rejected):
            self.measures.observe(name, refusal, self.bench.now)

    def run(self) -> None:
        seen = dict.fromkeys(self.bench.requests, 0)
        while not self.bench.engine.is_idle:
            self.bench.step()
            for name, count in seen.items():
                for output in self.bench.outputs.get(name, [])[count:]:
                    self.measures.observe(name, output, self.bench.now)
                    seen[name] += 1

    def read(self) -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(self.measures.render(self.bench.now).decode())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_a_request_is_measured_from_its_arrival() -> None:
    scraped = Scraped()
    scraped.ask("r", prompt=range(70), max_tokens=4)  # two steps of 10 ms to the first token
    scraped.run()
    samples = scraped.read()
    assert samples[("vllm:time_to_first_token_seconds_sum", "big")] == pytest.approx(0.02)
    assert samples[("vllm:request_queue_time_seconds_sum", "big")] == pytest.approx(0.01)
    assert samples[("vllm:inter_token_latency_seconds_count", "big")] == 3
    assert samples[("vllm:inter_token_latency_seconds_sum", "big")] == pytest.approx(0.03)
    assert samples[("vllm:e2e_request_latency_seconds_sum", "big")] == pytest.approx(0.05)
    assert samples[("vllm:request_success_total", "length", "big")] == 1
    assert samples[("vllm:prompt_tokens_total", "big")] == 70
    assert samples[("vllm:generation_tokens_total", "big")] == 4
    assert samples[("brownout_computed_kv_bytes_total",)] == 73 * KV_BYTES


def test_gauges_are_zero_again_once_nothing_is_left() -> None:
    scraped = Scraped()
    scraped.ask("a", max_tokens=40)
    scraped.ask("b", max_tokens=40)
    assert scraped.read()[("vllm:num_requests_waiting", "big")] == 2
    scraped.bench.step()
    samples = scraped.read()
    assert samples[("vllm:num_requests_running", "big")] == 2
    assert samples[("brownout_kv_blocks_held", "big")] == 2
    scraped.bench.cancel("a")
    scraped.bench.cancel("b")
    samples = scraped.read()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "brownout_kv_blocks_held"):
        assert samples[(name, "big")] == 0


def test_every_request_is_counted_once_under_its_end() -> None:
    scraped = Scraped()
    for n in range(5):
        scraped.ask(f"r{n}")
    scraped.run()
    samples = scraped.read()
    assert samples[("vllm:request_success_total", "length", "big")] == 2
    assert samples[("brownout_rejected_total", "queue_full")] == 3
    assert scraped.measures._courses == {}


def test_answers_of_the_light_model_that_nobody_asked_for_are_counted_as_downgraded() -> None:
    scraped = Scraped()
    scraped.bench.see_memory(FULL_CARD)
    scraped.ask("asked for any")
    scraped.ask("asked for it", model="small")
    scraped.run()
    samples = scraped.read()
    assert samples[("brownout_downgraded_total",)] == 1
    assert samples[("vllm:request_success_total", "length", "small")] == 2
    assert samples[("brownout_breaker_state", "memory", "open")] == 1


def test_batches_limits_and_losses_are_exported() -> None:
    scraped = Scraped()
    samples = scraped.read()
    assert samples[("brownout_batch_steps_total", "16")] == 0
    assert samples[("brownout_running_limit",)] == 16
    scraped.ask("a", max_tokens=3)
    scraped.run()
    scraped.bench.see_memory(FULL_CARD)
    counts = scraped.bench.engine.counts
    counts.recomputed_tokens, counts.out_of_memory, counts.swap_in_bytes, counts.throttled_steps = 1, 2, 3, 4
    pool = scraped.bench.engine.pools["full"]
    blocks = [pool.allocate() for _ in range(16)]
    for block in blocks[::2]:
        assert block is not None
        pool.drop(block)
    samples = scraped.read()
    assert samples[("brownout_batch_steps_total", "1")] == 3
    assert samples[("brownout_batch_seconds_total", "1")] == pytest.approx(0.03)
    assert samples[("brownout_running_limit",)] == 3
    assert samples[("brownout_recomputed_tokens_total",)] == 1
    assert samples[("brownout_out_of_memory_total",)] == 2
    assert samples[("brownout_swap_in_bytes_total",)] == 3
    assert samples[("brownout_throttled_steps_total",)] == 4
    assert samples[("brownout_vram_fragmentation", "big")] == 1 - 1 / 8
    assert samples[("brownout_vram_fragmentation", "small")] == 0
