"""The plan: which requests will be sent, and when. A pure function of the drill's load, a seed and a trace.

Every draw comes from a stream with a name, so that one repeat or prompt can change without the others.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import BadTrace
from harness.load.arrival import Arrival, prompt_ids
from harness.load.trace import Row

if TYPE_CHECKING:
    from harness.drill import Load

__all__ = ["Arrival", "describe", "plan", "prompt_ids"]

Plan = tuple[Arrival, ...]


def plan(load: Load, seed: int, trace_rows: Sequence[Row]) -> Plan:
    """The arrivals in the order of their due time. BadTrace if the load leaves none."""
    window = _window(load, trace_rows)
    arrivals: list[Arrival] = []
    for repeat in range(load.repeat):
        for position in _kept(len(window), load.keep, f"{seed}/thin/{repeat}"):
            row = window[position]
            arrivals.append(
                Arrival(
                    index=len(arrivals),
                    due_s=(row.at_s - load.offset_s + repeat * load.span_s) * load.stretch,
                    prompt_tokens=_length(row.prompt_tokens, load.prompt_scale, load.max_prompt_tokens),
                    output_tokens=_length(row.output_tokens, load.output_scale, load.max_output_tokens),
                    prompt_seed=f"{seed}/prompt/{repeat}/{position}",
                )
            )
    if not arrivals:
        raise BadTrace(_nothing_to_send(load, len(window), trace_rows))
    return tuple(arrivals)


def describe(arrivals: Plan, load: Load) -> str:
    """What the load is about to do, in one line for people."""
    prompts = [arrival.prompt_tokens for arrival in arrivals]
    outputs = [arrival.output_tokens for arrival in arrivals]
    busiest = max(Counter(int(arrival.due_s) for arrival in arrivals).values())
    return (
        f"{len(arrivals)} requests in {load.duration_s:g} s: "
        f"{len(arrivals) / load.duration_s:.2f}/s on average, {busiest} in the busiest second; "
        f"prompts {_share(prompts, 0.5)} tokens (p50), {_share(prompts, 0.95)} (p95); "
        f"answers up to {_share(outputs, 0.5)} tokens (p50), {_share(outputs, 0.95)} (p95); "
        f"{load.trace.name} from {load.offset_s:g} s for {load.span_s:g} s, keep {load.keep:g}, "
        f"stretch {load.stretch:g}, repeat {load.repeat}, "
        f"prompt_scale {load.prompt_scale:g} (at most {load.max_prompt_tokens}), "
        f"output_scale {load.output_scale:g} (at most {load.max_output_tokens})"
    )


def _window(load: Load, trace_rows: Sequence[Row]) -> list[Row]:
    """The rows inside the window, sorted before anything is drawn: the order they came in changes nothing."""
    inside = [row for row in trace_rows if load.offset_s <= row.at_s < load.offset_s + load.span_s]
    return sorted(inside, key=lambda row: (row.at_s, row.prompt_tokens, row.output_tokens))


def _kept(count: int, keep: float, stream_name: str) -> list[int]:
    """Which of `count` positions survive thinning: each with probability `keep`, on its own."""
    stream = random.Random(stream_name)
    return [position for position in range(count) if stream.random() < keep]


def _length(tokens: int, scale: float, most: int) -> int:
    return min(max(round(tokens * scale), 1), most)


def _share(values: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of the values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _nothing_to_send(load: Load, in_window: int, trace_rows: Sequence[Row]) -> str:
    window = f"{load.trace}: {load.offset_s:g} s to {load.offset_s + load.span_s:g} s"
    if in_window:
        return f"{window}: has {in_window} rows, and keep {load.keep:g} left none of them; raise load.keep"
    ends = f"the trace ends at {trace_rows[-1].at_s:g} s" if trace_rows else "the trace has no rows"
    return f"{window}: no row of the trace lies in it ({ends}); change load.offset_s or load.span_s"
