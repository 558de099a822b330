"""Exact binomial bounds: published sizes, edges, and what more would settle."""

from __future__ import annotations

import pytest

from harness.binomial import lower_bound, more_needed, upper_bound, weigh


@pytest.mark.parametrize(
    ("allowed", "least"), [(0.01, 299), (0.05, 59), (0.1, 29)], ids=["p99", "p95", "p90"]
)
def test_without_a_bad_request_the_least_number_that_shows_an_objective(allowed: float, least: int) -> None:
    assert weigh(0, least, allowed=allowed).outcome == "HELD"
    assert weigh(0, least - 1, allowed=allowed).outcome == "INCONCLUSIVE"
    assert weigh(0, least - 1, allowed=allowed).more == 1


@pytest.mark.parametrize(
    ("allowed", "n", "most_bad"),
    [
        (0.01, 473, 1),
        (0.01, 628, 2),
        (0.01, 773, 3),
        (0.01, 1182, 6),
        (0.01, 1941, 12),
        (0.01, 3137, 22),
        (0.05, 153, 3),
    ],
)
def test_so_many_bad_ones_of_n_still_hold_and_one_more_does_not(
    allowed: float, n: int, most_bad: int
) -> None:
    assert weigh(most_bad, n, allowed=allowed).outcome == "HELD"
    assert weigh(most_bad + 1, n, allowed=allowed).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("n", "fewest_bad"), [(1567, 23), (521, 10), (181, 5), (61, 3)])
def test_so_many_bad_ones_of_n_break_a_p99_and_one_fewer_does_not(n: int, fewest_bad: int) -> None:
    assert weigh(fewest_bad, n, allowed=0.01).outcome == "BROKEN"
    assert weigh(fewest_bad - 1, n, allowed=0.01).outcome == "INCONCLUSIVE"


def test_the_size_of_both_claims_is_at_most_five_percent() -> None:
    """The exact probability of a wrong BROKEN or HELD when the true rate is the allowed one, for n = 300."""
    from scipy.stats import binom

    n, allowed = 300, 0.01
    outcomes = [weigh(bad, n, allowed=allowed).outcome for bad in range(n + 1)]
    chance = {
        o: sum(binom.pmf(bad, n, allowed) for bad in range(n + 1) if outcomes[bad] == o) for o in outcomes
    }
    assert chance["BROKEN"] <= 0.05
    assert chance["HELD"] <= 0.05


def test_nothing_is_known_from_no_request() -> None:
    weighed = weigh(0, 0, allowed=0.1)
    assert (weighed.outcome, weighed.lower, weighed.upper, weighed.more) == ("INCONCLUSIVE", 0.0, 1.0, 29)


def test_with_all_requests_bad_the_upper_bound_is_one_and_the_lower_one_is_exact() -> None:
    assert upper_bound(20, 20) == 1.0
    assert lower_bound(20, 20) == pytest.approx(0.05 ** (1 / 20))


def test_with_no_request_bad_the_lower_bound_is_zero_and_the_upper_one_is_exact() -> None:
    assert lower_bound(0, 20) == 0.0
    assert upper_bound(0, 20) == pytest.approx(1 - 0.05 ** (1 / 20))


def test_a_rate_clearly_above_the_allowed_one_needs_more_requests_to_be_called_broken() -> None:
    more = more_needed(3, 20, allowed=0.1)
    assert more is not None
    assert 0 < more < 400
    assert lower_bound(0.15 * (20 + more), 20 + more) > 0.1


def test_at_exactly_the_allowed_rate_no_number_of_requests_settles_it() -> None:
    assert more_needed(10, 100, allowed=0.1) is None


def test_that_there_is_never_a_bad_one_can_be_broken_but_not_shown() -> None:
    assert weigh(1, 100, allowed=0.0).outcome == "BROKEN"
    assert weigh(0, 100, allowed=0.0).outcome == "INCONCLUSIVE"
    assert weigh(0, 100, allowed=0.0).more is None


def test_bursts_of_three_need_three_times_as_many_requests() -> None:
    assert weigh(0, 299, allowed=0.01, design_effect=3).outcome == "INCONCLUSIVE"
    assert weigh(0, 3 * 299, allowed=0.01, design_effect=3).outcome == "HELD"
    assert weigh(30, 100, allowed=0.2, design_effect=1).outcome == "BROKEN"
    assert weigh(30, 100, allowed=0.2, design_effect=10).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("bad", "of"), [(2, 1), (-1, 5)], ids=["more-bad-than-all", "fewer-than-none"])
def test_an_impossible_count_is_refused(bad: int, of: int) -> None:
    with pytest.raises(ValueError, match="bad of"):
        weigh(bad, of, allowed=0.1)


def test_a_design_effect_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="design effect"):
        weigh(0, 5, allowed=0.1, design_effect=0)
