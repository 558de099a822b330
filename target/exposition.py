"""The service's metrics in the Prometheus text format, under vLLM's names where it has them.

Ours start with `brownout_`. Times are seconds, sizes bytes. Safe to call from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, and nobody reads them

BREAKER_STATES = ("closed", "open", "half_open")
FINISH_REASONS = ("stop", "length", "cancelled", "deadline", "failed")
LATENCY_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
)
INTER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10),
)

TOTALS = {  # name: what it counts, over the life of the service
    "brownout_steps": "Engine steps",
    "brownout_throttled_steps": "Steps in which only the limit lowered for want of memory kept a request waiting",
    "brownout_computed_tokens": "Tokens computed, including those computed again",
    "brownout_computed_kv_bytes": "KV bytes that the computed tokens have on one card",
    "brownout_direct_dma_bytes": "KV bytes that one card sent to the host by direct DMA",
    "brownout_staged_dma_bytes": "KV bytes that one card sent to the host through staging",
    "brownout_swap_in_bytes": "KV bytes that one card got back from the host",
    "brownout_recomputed_tokens": "Tokens whose KV was lost and is computed again",
    "brownout_out_of_memory": "Allocations that failed because a card was full",
    "brownout_downgraded": "Requests answered by a lower rung than the first",
    "vllm:num_preemptions": "Preemptions",
}


class Exposition:
    """One registry. Each series exists from the start, so that a rate over it has a first value."""

    def __init__(self, models: Sequence[str], breakers: Sequence[str], running_most: int) -> None:
        self._registry = CollectorRegistry()
        self._totals = {name: Counter(name, what, registry=self._registry) for name, what in TOTALS.items()}
        self._last_totals = dict.fromkeys(TOTALS, 0.0)
        self._batch_steps = self._by_batch("brownout_batch_steps", "Steps by sequences computed together")
        self._batch_seconds = self._by_batch("brownout_batch_seconds", "Seconds spent in these steps")
        self._last_batches: dict[int, tuple[int, float]] = {}

        self._running = self._gauge("vllm:num_requests_running", "Requests being computed")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue")
        self._kv_usage = self._gauge("vllm:kv_cache_usage_perc", "KV blocks in use; 1 means all")
        self._kv_blocks = self._gauge("brownout_kv_blocks_held", "KV blocks that are held")
        self._kv_bytes = self._gauge("brownout_kv_bytes_per_token", "Size of one token's KV")
        self._fragmentation = self._gauge(
            "brownout_vram_fragmentation", "1 - longest run of free KV blocks / all free ones"
        )
        self._running_limit = Gauge(
            "brownout_running_limit", "Requests that may be computed at once now", registry=self._registry
        )

        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens of answers")
        self._success = self._counter("vllm:request_success", "Ended requests", "finished_reason")
        self._rejected = Counter("brownout_rejected", "Requests refused", ["code"], registry=self._registry)

        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Time to first token", LATENCY_S)
        self._itl = self._histogram("vllm:inter_token_latency_seconds", "Time between tokens", INTER_TOKEN_S)
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Time to the last token", LATENCY_S)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Time in the queue", LATENCY_S)

        self._breaker = Gauge(
            "brownout_breaker_state",
            "1 for the state it is in",
            ["breaker", "state"],
            registry=self._registry,
        )
        self._moved_at = Gauge(
            "brownout_breaker_transition_timestamp_seconds",
            "Unix time of the last move to a state",
            ["breaker", "to"],
            registry=self._registry,
        )
        self._begin_series(models, breakers, running_most)

    def render(self) -> bytes:
        """Everything, as text/plain; version=0.0.4."""
        return generate_latest(self._registry)

    def observe_ttft(self, seconds: float, model: str) -> None:
        """From arrival to the first token."""
        self._ttft.labels(model).observe(seconds)

    def observe_itl(self, seconds: float, model: str) -> None:
        """From one token to the next."""
        self._itl.labels(model).observe(seconds)

    def observe_e2e(self, seconds: float, model: str) -> None:
        """From arrival to the last token."""
        self._e2e.labels(model).observe(seconds)

    def observe_queue(self, seconds: float, model: str) -> None:
        """From arrival to the first step it was part of."""
        self._queue.labels(model).observe(seconds)

    def count_tokens(self, model: str, prompt: int = 0, generated: int = 0) -> None:
        """Tokens of prompts that were taken on, and tokens that were made."""
        self._prompt_tokens.labels(model).inc(prompt)
        self._generation_tokens.labels(model).inc(generated)

    def count_finished(self, reason: str, model: str) -> None:
        """A request ended, for one of FINISH_REASONS."""
        self._success.labels(model, reason).inc()

    def count_rejected(self, code: str) -> None:
        """A request was refused."""
        self._rejected.labels(code).inc()

    def set_totals(self, totals: Mapping[str, float]) -> None:
        """Take the service's own counts of TOTALS, which only grow. KeyError for a name that is not in it."""
        for name, total in totals.items():
            self._totals[name].inc(max(total - self._last_totals[name], 0.0))
            self._last_totals[name] = total

    def set_batches(self, steps: Mapping[int, int], seconds: Mapping[int, float]) -> None:
        """Take the service's own counts by how many sequences were computed together, which only grow."""
        for sequences, total in steps.items():
            last_steps, last_seconds = self._last_batches.get(sequences, (0, 0.0))
            self._batch_steps.labels(sequences).inc(max(total - last_steps, 0))
            self._batch_seconds.labels(sequences).inc(max(seconds[sequences] - last_seconds, 0.0))
            self._last_batches[sequences] = total, seconds[sequences]

    def set_running_limit(self, limit: int) -> None:
        """How many requests may be computed at once."""
        self._running_limit.set(limit)

    def set_gauges(
        self,
        model: str,
        *,
        running: int | None = None,
        waiting: int | None = None,
        kv_usage: float | None = None,
        kv_blocks_held: int | None = None,
        kv_bytes_per_token: int | None = None,
        fragmentation: float | None = None,
    ) -> None:
        """How one model is doing now; what is not given stays. Shares are from 0 to 1."""
        for gauge, value in (
            (self._running, running),
            (self._waiting, waiting),
            (self._kv_usage, kv_usage),
            (self._kv_blocks, kv_blocks_held),
            (self._kv_bytes, kv_bytes_per_token),
            (self._fragmentation, fragmentation),
        ):
            if value is not None:
                gauge.labels(model).set(value)

    def set_breaker(self, breaker: str, state: str, moved_at: float | None = None) -> None:
        """The state a breaker is in, one of BREAKER_STATES, and the Unix time at which it moved there."""
        if state not in BREAKER_STATES:
            raise ValueError(f"breaker state {state!r}; known: {', '.join(BREAKER_STATES)}")
        for known in BREAKER_STATES:
            self._breaker.labels(breaker, known).set(known == state)
        if moved_at is not None:
            self._moved_at.labels(breaker, state).set(moved_at)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, ["model_name"], registry=self._registry)

    def _by_batch(self, name: str, what: str) -> Counter:
        return Counter(name, what, ["sequences"], registry=self._registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, ["model_name", *labels], registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, what, ["model_name"], buckets=buckets, registry=self._registry)

    def _begin_series(self, models: Sequence[str], breakers: Sequence[str], running_most: int) -> None:
        for model in models:
            self.set_gauges(model, running=0, waiting=0, kv_usage=0.0, kv_blocks_held=0, kv_bytes_per_token=0)
            self.set_gauges(model, fragmentation=0.0)
            for histogram in (self._ttft, self._itl, self._e2e, self._queue):
                histogram.labels(model)
            for reason in FINISH_REASONS:
                self._success.labels(model, reason)
            self._prompt_tokens.labels(model)
            self._generation_tokens.labels(model)
        for breaker in breakers:
            self.set_breaker(breaker, "closed")
        for sequences in range(1, running_most + 1):
            self._batch_steps.labels(sequences)
            self._batch_seconds.labels(sequences)
        self.set_running_limit(running_most)
