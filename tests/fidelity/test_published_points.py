"""What the cost model reproduces of published measurements, what it misses, and that the page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.gpu.cost.fault_points import TOLERANCE, Expectation, expectations
from faults.gpu.cost.fidelity import Row, render, rows
from faults.gpu.cost.published import POINTS, SOURCES
from faults.gpu.cost.serving_points import ANSWER, MLPERF, PROMPT, SERVER, most_within_slo, saturated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fidelity.md"
KNOWN_MISSES = {"V13.ttft50", "V13.ttft99", "V13.tpot50", "V13.tpot99"}


@pytest.mark.parametrize("key", [point.key for point in POINTS if point.key not in KNOWN_MISSES])
def test_a_published_point_is_reproduced_within_its_tolerance(key: str) -> None:
    row = row_of(key)

    assert row.held, f"{row.ours:.4g} {row.point.unit} is {row.error:+.1%} from {row.point.value:g}"


def test_what_is_missed_is_exactly_what_the_page_explains() -> None:
    assert {row.point.key for row in rows() if not row.held} == KNOWN_MISSES


def test_the_highest_rate_within_the_bounds_is_one_that_can_be_kept_up_for_ever() -> None:
    full = saturated(MLPERF, SERVER, PROMPT, ANSWER).tokens_per_s / ANSWER

    assert most_within_slo() <= full


def test_every_published_point_has_a_source_and_a_key_of_its_own() -> None:
    assert len({point.key for point in POINTS}) == len(POINTS)
    assert {point.source for point in POINTS} == set(SOURCES)


def test_all_thirteen_published_sets_are_there() -> None:
    sets = {point.key.partition(".")[0].rstrip("abc") for point in POINTS}

    assert sets == {f"V{number}" for number in range(1, 14)}


def test_throughput_and_time_between_tokens_that_nothing_was_fitted_to_are_within_a_tenth() -> None:
    predicted = [
        row
        for row in rows()
        if row.point.source == "nim" and row.point.calibrates == "no" and not row.point.key.endswith(".ttft")
    ]

    assert len(predicted) >= 10
    assert all(abs(row.error) <= 0.10 for row in predicted)


@pytest.mark.parametrize("key", ["V7", "V8.ttft", "V8.itl"])
def test_the_constants_that_one_point_leaves_open_are_those_that_it_asks_for(key: str) -> None:
    assert abs(row_of(key).error) < 0.005


@pytest.mark.parametrize("expectation", expectations(), ids=lambda each: f"{each.what}-{each.unit}")
def test_narrow_links_add_to_a_step_what_an_earlier_calculation_gave(expectation: Expectation) -> None:
    assert abs(expectation.error) <= TOLERANCE


def test_the_page_is_what_is_generated() -> None:
    assert PAGE.read_text() == render(), "python -m faults.gpu.cost.fidelity > docs/fidelity.md"


def row_of(key: str) -> Row:
    return next(row for row in rows() if row.point.key == key)
