"""From the engine's outputs and counts to the service's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from target.engine import Engine
from target.exposition import Exposition
from target.request import Accepted, Finished, Output, Rejected, Token
from target.sequence import RUNGS


@dataclass
class Course:
    """When one request arrived, and what was last seen of it; seconds."""

    arrived_s: float
    last_s: float
    asked: str | None = None  # the model that the client named
    model: str = ""


class Measures:
    """Hears of each output as it leaves the engine; fills in the gauges when it is scraped."""

    def __init__(self, exposition: Exposition, engine: Callable[[], Engine]) -> None:
        self._exposition = exposition
        self._engine = engine
        self._courses: dict[str, Course] = {}
        self._downgraded = 0
        # Breakers are told monotonic time; dashboards want the calendar's.
        self._unix_minus_monotonic = time.time() - time.monotonic()

    def arrived(self, request_id: str, now: float, asked: str | None = None) -> None:
        """A request for the model `asked`, or for whichever there is."""
        self._courses[request_id] = Course(now, now, asked)

    def observe(self, request_id: str, output: Output, now: float) -> None:
        """Take in one output; unknown ids count for totals only."""
        if isinstance(output, Rejected):
            self._exposition.count_rejected(output.code)
            self._courses.pop(request_id, None)
            return
        course = self._courses.get(request_id, Course(now, now))
        if isinstance(output, Accepted):
            course.model = output.model
            self._exposition.observe_ttft(now - course.arrived_s, output.model)
            self._exposition.observe_queue(output.queued_s, output.model)
        elif isinstance(output, Token) and output.token_id >= 0 and output.index:
            self._exposition.observe_itl(now - course.last_s, course.model)
        elif isinstance(output, Finished):
            self._finished(course, output, now)
            self._courses.pop(request_id, None)
        course.last_s = now

    def render(self, now: float) -> bytes:
        """The exposition, with what only the engine knows filled in."""
        engine = self._engine()
        for rung, spec in engine.rungs.items():
            pool = engine.pools[rung]
            on_rung = sum(sequence.rung == rung for sequence in list(engine.scheduler.running))
            self._exposition.set_gauges(
                spec.name,
                running=on_rung,
                waiting=len(engine.scheduler.waiting) if rung == RUNGS[0] else 0,
                kv_usage=pool.held / max(1, pool.blocks_most),
                kv_blocks_held=pool.held,
                kv_bytes_per_token=spec.kv.token_bytes,
                fragmentation=pool.fragmentation,
            )
        counts = engine.counts
        self._exposition.set_totals(
            {
                "brownout_steps": counts.steps,
                "brownout_throttled_steps": counts.throttled_steps,
                "brownout_computed_tokens": counts.computed_tokens,
                "brownout_computed_kv_bytes": counts.computed_kv_bytes,
                "brownout_direct_dma_bytes": counts.direct_bytes,
                "brownout_staged_dma_bytes": counts.staged_bytes,
                "brownout_swap_in_bytes": counts.swap_in_bytes,
                "brownout_recomputed_tokens": counts.recomputed_tokens,
                "brownout_out_of_memory": counts.out_of_memory,
                "brownout_downgraded": self._downgraded,
                "vllm:num_preemptions": counts.preemptions,
            }
        )
        self._exposition.set_batches(counts.batch_steps, counts.batch_seconds)
        self._exposition.set_running_limit(engine.scheduler.running_limit(now))
        for name, breaker in engine.breakers.items():
            state = breaker.state(now).value
            moved_at = breaker.since_s + self._unix_minus_monotonic if breaker.since_s else None
            self._exposition.set_breaker(name, state, moved_at)
        return self._exposition.render()

    def _finished(self, course: Course, end: Finished, now: float) -> None:
        self._exposition.count_finished(end.reason, end.model)
        self._exposition.count_tokens(end.model, prompt=end.prompt_tokens, generated=end.output_tokens)
        self._exposition.observe_e2e(now - course.arrived_s, end.model)
        moved = end.rung != RUNGS[0] and end.model != course.asked
        self._downgraded += moved and end.reason in ("stop", "length")
