"""The plan: a pure function of load, seed and trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.drill import Load
from harness.errors import BadTrace
from harness.load.plan import Arrival, describe, plan, prompt_ids
from harness.load.trace import Row, read_trace

ROWS = tuple(Row(float(second), 100 * second, 10 * second) for second in range(20))
BUNDLED = Path(__file__).parents[2] / "traces" / "azure_llm_2023_code.csv"
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def load(**fields: Any) -> Load:
    return Load(**{"trace": Path("t.csv"), "offset_s": 0, "span_s": 20, "max_prompt_tokens": 10**6, **fields})


def test_the_window_is_cut_from_the_trace_and_starts_at_zero() -> None:
    arrivals = plan(load(offset_s=5, span_s=3), 0, ROWS)
    assert [arrival.due_s for arrival in arrivals] == [0, 1, 2]
    assert [arrival.prompt_tokens for arrival in arrivals] == [500, 600, 700]


def test_each_repeat_follows_the_one_before_and_stretch_slows_all() -> None:
    arrivals = plan(load(offset_s=5, span_s=2, repeat=3, stretch=2), 0, ROWS)
    assert [arrival.due_s for arrival in arrivals] == [0, 2, 4, 6, 8, 10]
    assert [arrival.index for arrival in arrivals] == [0, 1, 2, 3, 4, 5]


def test_lengths_are_scaled_then_kept_between_one_and_the_cap() -> None:
    arrivals = plan(load(prompt_scale=0.1, max_prompt_tokens=50, output_scale=0.01), 0, ROWS)
    assert [arrival.prompt_tokens for arrival in arrivals[:7]] == [1, 10, 20, 30, 40, 50, 50]
    assert {arrival.output_tokens for arrival in arrivals} == {1, 2}


def test_equal_seeds_give_equal_plans_and_other_seeds_other_ones() -> None:
    thinned = load(keep=0.5, repeat=4)
    assert plan(thinned, 7, ROWS) == plan(thinned, 7, ROWS)
    assert plan(thinned, 7, ROWS) != plan(thinned, 8, ROWS)


def test_each_repeat_is_thinned_anew_and_a_further_one_changes_none_before() -> None:
    twice, thrice = (plan(load(keep=0.5, repeat=repeat), 7, ROWS) for repeat in (2, 3))
    assert thrice[: len(twice)] == twice
    first = [arrival.due_s for arrival in twice if arrival.due_s < 20]
    second = [arrival.due_s - 20 for arrival in twice if arrival.due_s >= 20]
    assert first != second


def test_thinning_keeps_about_the_share_that_was_asked() -> None:
    rows = tuple(Row(second / 100, 1, 1) for second in range(2000))
    assert 520 < len(plan(load(keep=0.3), 0, rows)) < 680


@patient
@given(st.permutations(ROWS), st.integers(0, 100))
def test_the_order_of_the_rows_changes_nothing(rows: list[Row], seed: int) -> None:
    assert plan(load(keep=0.5, repeat=3), seed, rows) == plan(load(keep=0.5, repeat=3), seed, ROWS)


@patient
@given(st.floats(0.05, 1), st.floats(0.1, 10), st.integers(1, 5), st.integers(0, 1000))
def test_arrivals_are_in_order_inside_the_duration_and_of_allowed_length(
    keep: float, stretch: float, repeat: int, seed: int
) -> None:
    wanted = load(keep=keep, stretch=stretch, repeat=repeat, max_prompt_tokens=300)
    try:
        arrivals = plan(wanted, seed, ROWS)
    except BadTrace:
        return
    dues = [arrival.due_s for arrival in arrivals]
    assert dues == sorted(dues)
    assert 0 <= dues[0] <= dues[-1] < wanted.duration_s
    assert all(1 <= arrival.prompt_tokens <= 300 and 1 <= arrival.output_tokens <= 64 for arrival in arrivals)


def test_a_prompt_depends_on_its_seed_only_and_stays_among_common_ids() -> None:
    one = Arrival(0, 0.0, 2000, 1, "7/prompt/0/3")
    assert prompt_ids(one) == prompt_ids(Arrival(9, 5.0, 2000, 4, "7/prompt/0/3"))
    assert prompt_ids(one) != prompt_ids(Arrival(0, 0.0, 2000, 1, "7/prompt/0/4"))
    assert set(prompt_ids(one)) == set(range(32, 256))


def test_the_same_row_has_another_prompt_in_each_repeat() -> None:
    seeds = [arrival.prompt_seed for arrival in plan(load(repeat=3), 0, ROWS)]
    assert len(set(seeds)) == len(seeds)


def test_plans_are_the_same_on_every_machine_and_in_every_release() -> None:
    arrivals = plan(load(keep=0.2), 1, ROWS)
    assert [arrival.due_s for arrival in arrivals] == [14.0, 17.0]
    assert prompt_ids(arrivals[0])[:6] == [91, 133, 33, 61, 244, 94]


def test_a_plan_without_arrivals_is_refused_with_the_reason() -> None:
    with pytest.raises(BadTrace, match=r"t.csv: 100 s to 120 s: no row .* \(the trace ends at 19 s\)"):
        plan(load(offset_s=100), 0, ROWS)
    with pytest.raises(BadTrace, match=r"has 1 rows, and keep 0.001 left none of them; raise load.keep"):
        plan(load(offset_s=3, span_s=1, keep=0.001), 0, ROWS)


def test_the_line_for_people_states_counts_rates_lengths_and_every_factor() -> None:
    wanted = load(trace=BUNDLED, offset_s=840, span_s=60, keep=0.1, stretch=0.5, prompt_scale=0.05)
    line = describe(plan(wanted, 0, read_trace(BUNDLED)), wanted)
    assert line.startswith(
        "71 requests in 30 s: 2.37/s on average, 15 in the busiest second; "
        "prompts 78 tokens (p50), 330 (p95); answers up to 13 tokens (p50), 64 (p95); "
    )
    for factor in (
        "from 840 s for 60 s",
        "keep 0.1",
        "stretch 0.5",
        "repeat 1",
        "prompt_scale 0.05",
        "(at most 64)",
    ):
        assert factor in line
