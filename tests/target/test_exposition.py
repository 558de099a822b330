"""What a scraper reads."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from target.exposition import TOTALS, Exposition


def scraped(exposition: Exposition) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their labels, in the order in which they are rendered."""
    families = text_string_to_metric_families(exposition.render().decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def exposition() -> Exposition:
    return Exposition(["big", "small"], ["memory", "pcie"], 16)


def test_names_keep_their_colons_and_every_series_exists_from_the_start() -> None:
    samples = scraped(exposition())
    for name in TOTALS:
        assert samples[(f"{name}_total",)] == 0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert samples[(name, "big")] == samples[(name, "small")] == 0
    assert samples[("vllm:request_success_total", "length", "big")] == 0
    assert samples[("vllm:time_to_first_token_seconds_count", "small")] == 0
    assert samples[("brownout_breaker_state", "memory", "closed")] == 1
    assert not [name for name, *_ in samples if name.endswith("_created")]


def test_totals_follow_the_services_own_counts() -> None:
    metrics = exposition()
    metrics.set_totals({"brownout_steps": 5, "brownout_direct_dma_bytes": 4096})
    metrics.set_totals({"brownout_steps": 7})
    samples = scraped(metrics)
    assert samples[("brownout_steps_total",)] == 7
    assert samples[("brownout_direct_dma_bytes_total",)] == 4096
    with pytest.raises(KeyError):
        metrics.set_totals({"brownout_typos": 1})


def test_a_request_shows_in_counters_and_histograms_of_its_model() -> None:
    metrics = exposition()
    metrics.observe_queue(0.02, "small")
    metrics.observe_ttft(0.03, "small")
    metrics.observe_itl(0.01, "small")
    metrics.observe_e2e(2.0, "small")
    metrics.count_tokens("small", prompt=7)
    metrics.count_tokens("small", generated=3)
    metrics.count_finished("length", "small")
    metrics.count_rejected("queue_full")
    samples = scraped(metrics)
    assert samples[("vllm:time_to_first_token_seconds_sum", "small")] == 0.03
    assert samples[("vllm:inter_token_latency_seconds_count", "small")] == 1
    assert samples[("vllm:e2e_request_latency_seconds_bucket", "2.5", "small")] == 1
    assert samples[("vllm:request_queue_time_seconds_count", "small")] == 1
    assert samples[("vllm:prompt_tokens_total", "small")] == 7
    assert samples[("vllm:generation_tokens_total", "small")] == 3
    assert samples[("vllm:request_success_total", "length", "small")] == 1
    assert samples[("brownout_rejected_total", "queue_full")] == 1


def test_gauges_that_are_not_given_stay() -> None:
    metrics = exposition()
    metrics.set_gauges("big", running=3, kv_usage=0.5, kv_bytes_per_token=1024)
    metrics.set_gauges("big", waiting=2)
    samples = scraped(metrics)
    assert samples[("vllm:num_requests_running", "big")] == 3
    assert samples[("vllm:num_requests_waiting", "big")] == 2
    assert samples[("vllm:kv_cache_usage_perc", "big")] == 0.5
    assert samples[("brownout_kv_bytes_per_token", "big")] == 1024


def test_a_breaker_is_in_one_state_and_remembers_when_it_moved_to_each() -> None:
    metrics = exposition()
    metrics.set_breaker("memory", "open", moved_at=100.5)
    metrics.set_breaker("memory", "half_open", moved_at=160.5)
    samples = scraped(metrics)
    assert [samples[("brownout_breaker_state", "memory", s)] for s in ("closed", "open", "half_open")] == [
        0,
        0,
        1,
    ]
    assert samples[("brownout_breaker_transition_timestamp_seconds", "memory", "open")] == 100.5
    assert samples[("brownout_breaker_transition_timestamp_seconds", "memory", "half_open")] == 160.5
    with pytest.raises(ValueError, match="half_open"):
        metrics.set_breaker("memory", "ajar")


def test_steps_by_batch_size_follow_the_services_own_counts() -> None:
    metrics = exposition()
    metrics.set_batches({3: 2}, {3: 0.5})
    metrics.set_batches({3: 5, 16: 1}, {3: 1.25, 16: 0.25})
    samples = scraped(metrics)
    assert samples[("brownout_batch_steps_total", "3")] == 5
    assert samples[("brownout_batch_seconds_total", "3")] == 1.25
    assert samples[("brownout_batch_steps_total", "16")] == 1
    assert samples[("brownout_batch_steps_total", "1")] == 0
