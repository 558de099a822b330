"""The breaker's automaton, on a clock that the test moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target.breaker import Breaker, BreakerConfig, BreakerState, Transition
from target.config import OPEN_S, breaker_configs

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
LEGAL = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (HALF_OPEN, CLOSED)}


def a_breaker(moves: list[Transition] | None = None, **settings: float) -> Breaker:
    """Opens for 10 s when half of the last 4 to 8 outcomes within 2 s are bad."""
    config = BreakerConfig(open_s=10.0, **settings)  # type: ignore[arg-type]
    return Breaker("pcie", config, [].append if moves is None else moves.append)


def half_open(moves: list[Transition] | None = None, **settings: float) -> Breaker:
    """Open at 0 s, half-open from 10 s on."""
    breaker = a_breaker(moves, **settings)
    for _ in range(4):
        breaker.record(False, 0.0, "slow")
    assert breaker.state(10.0) is HALF_OPEN
    return breaker


def test_it_opens_when_the_failure_rate_is_reached() -> None:
    breaker = a_breaker()
    for ok in (True, False, True):
        breaker.record(ok, 1.0, "slow")
    assert breaker.state(1.0) is CLOSED
    breaker.record(False, 1.0, "slow")
    assert breaker.state(1.0) is OPEN


def test_too_few_samples_are_no_evidence() -> None:
    breaker = a_breaker(samples_min=4)
    for _ in range(3):
        breaker.record(False, 1.0, "slow")
    assert breaker.state(1.0) is CLOSED


def test_only_the_last_samples_count_so_a_busy_link_is_not_judged_later() -> None:
    breaker = a_breaker(samples_most=8)
    for _ in range(1000):
        breaker.record(True, 1.0, "fine")
    for _ in range(4):
        breaker.record(False, 1.0, "slow")
    assert breaker.state(1.0) is OPEN


def test_samples_older_than_the_window_are_forgotten() -> None:
    breaker = a_breaker(window_s=2.0)
    for now in (0.0, 0.1, 0.2):
        breaker.record(False, now, "slow")
    breaker.record(False, 2.25, "slow")
    assert breaker.state(2.25) is CLOSED


def test_a_good_sample_never_opens_it() -> None:
    breaker = a_breaker(samples_min=4)
    for ok in (False, False, False, True):
        breaker.record(ok, 1.0, "slow")
    assert breaker.state(1.0) is CLOSED


def test_one_bad_memory_sample_is_proof() -> None:
    breaker = Breaker("memory", breaker_configs(1.0)["memory"])
    for _ in range(100):
        breaker.record(True, 0.0, "fine")
    breaker.record(False, 0.01, "3 MiB free")
    assert breaker.state(0.01) is OPEN


@pytest.mark.parametrize(("name", "proof"), [("pcie", 3), ("nvlink", 8)])
def test_a_link_wants_several_bad_samples(name: str, proof: int) -> None:
    breaker = Breaker(name, breaker_configs(1.0)[name])
    for _ in range(proof - 1):
        breaker.record(False, 0.0, "slow")
    assert breaker.state(0.0) is CLOSED
    breaker.record(False, 0.0, "slow")
    assert breaker.state(0.0) is OPEN


@pytest.mark.parametrize("name", ["pcie", "nvlink"])
def test_one_bad_sample_among_good_ones_does_not_open_a_link(name: str) -> None:
    breaker = Breaker(name, breaker_configs(1.0)[name])
    for n in range(200):
        breaker.record(n % 8 != 0, n * 0.01, "slow")
    assert breaker.state(2.0) is CLOSED


def test_the_time_scale_shortens_how_long_each_stays_open_and_nothing_else() -> None:
    for name, config in breaker_configs(0.1).items():
        assert config.open_s == pytest.approx(OPEN_S[name] / 10)
        assert config.window_s == breaker_configs(1.0)[name].window_s


def test_it_is_half_open_once_its_open_time_has_passed() -> None:
    breaker = a_breaker()
    for _ in range(4):
        breaker.record(False, 5.0, "slow")
    assert breaker.state(14.99) is OPEN
    assert not breaker.try_probe(14.99)
    assert breaker.state(15.0) is HALF_OPEN


def test_evidence_from_ordinary_work_counts_only_while_closed() -> None:
    breaker = half_open()
    for _ in range(20):
        breaker.record(False, 11.0, "slow")
        breaker.record(True, 11.0, "fine")
    assert breaker.state(11.0) is HALF_OPEN


def test_of_ten_that_ask_at_once_one_may_probe() -> None:
    breaker = half_open()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: breaker.try_probe(10.0), range(10)))
    assert answers.count(True) == 1


@pytest.mark.parametrize("now", [0.0, 5.0])
def test_nobody_probes_a_breaker_that_is_closed_or_open(now: float) -> None:
    assert not a_breaker().try_probe(now)
    breaker = a_breaker()
    for _ in range(4):
        breaker.record(False, 0.0, "slow")
    assert not breaker.try_probe(now)


def test_a_probe_that_held_closes_it_with_a_clean_slate() -> None:
    breaker = half_open()
    assert breaker.try_probe(10.0)
    breaker.settle_probe(True, 11.0, "held")
    assert breaker.state(11.0) is CLOSED
    for _ in range(3):
        breaker.record(False, 11.0, "slow")
    assert breaker.state(11.0) is CLOSED  # three of four wanted: the old outcomes are gone


@pytest.mark.parametrize("reason", ["slow", "cancelled", "disconnected"])
def test_a_probe_that_failed_or_was_cancelled_opens_it_for_another_full_time(reason: str) -> None:
    breaker = half_open()
    assert breaker.try_probe(10.0)
    breaker.settle_probe(False, 12.0, reason)
    assert breaker.state(21.99) is OPEN
    assert breaker.state(22.0) is HALF_OPEN


def test_a_probe_that_hangs_counts_as_failed_and_frees_its_slot() -> None:
    breaker = half_open(probe_timeout_s=3.0)
    assert breaker.try_probe(10.0)
    assert breaker.state(12.99) is HALF_OPEN
    assert breaker.state(13.0) is OPEN
    assert not breaker.probing
    assert breaker.try_probe(23.0)


def test_a_late_answer_of_a_settled_probe_is_ignored() -> None:
    breaker = half_open(probe_timeout_s=3.0)
    assert breaker.try_probe(10.0)
    assert breaker.state(13.0) is OPEN
    breaker.settle_probe(True, 13.5, "late")
    assert breaker.state(13.5) is OPEN


def test_a_success_that_comes_after_the_probes_time_is_a_failure_even_if_nobody_looked_meanwhile() -> None:
    moves: list[Transition] = []
    breaker = half_open(moves, probe_timeout_s=3.0)
    assert breaker.try_probe(10.0)
    breaker.settle_probe(True, 14.0, "held")
    assert breaker.state(14.0) is OPEN
    assert moves[-1].reason == "probe timed out"


def test_settling_without_a_probe_changes_nothing() -> None:
    breaker = half_open()
    breaker.settle_probe(True, 10.0, "?")
    assert breaker.state(10.0) is HALF_OPEN


def test_each_move_says_when_from_where_and_why() -> None:
    moves: list[Transition] = []
    breaker = half_open(moves)
    assert breaker.try_probe(10.5)
    breaker.settle_probe(True, 11.25, "probe held")
    assert moves == [
        Transition("pcie", CLOSED, OPEN, 0.0, "slow"),
        Transition("pcie", OPEN, HALF_OPEN, 10.0, "open for 10 s"),
        Transition("pcie", HALF_OPEN, CLOSED, 11.25, "probe held"),
    ]
    assert breaker.since_s == 11.25


MOVES = st.lists(
    st.tuples(st.sampled_from(["good", "bad", "try", "held", "failed", "look"]), st.floats(0, 6)), max_size=80
)


@settings(max_examples=150, deadline=None)
@given(MOVES)
def test_no_order_of_events_makes_an_illegal_move_or_two_probes(walk: list[tuple[str, float]]) -> None:
    moves: list[Transition] = []
    breaker = a_breaker(moves, probe_timeout_s=5.0)
    now, probing_since = 0.0, None
    for what, pause in walk:
        now += pause
        before = breaker.state(now)
        if not breaker.probing:
            probing_since = None
        if what in ("good", "bad"):
            breaker.record(what == "good", now, what)
            assert before is CLOSED or breaker.state(now) is before
        elif what == "try":
            if breaker.try_probe(now):
                assert before is HALF_OPEN
                assert probing_since is None
                probing_since = now
        elif what in ("held", "failed"):
            breaker.settle_probe(what == "held", now, what)
            if probing_since is not None:
                assert breaker.state(now) is (CLOSED if what == "held" else OPEN)
            else:
                assert breaker.state(now) is before
        assert not breaker.probing or breaker.state(now) is HALF_OPEN
    assert all((move.was, move.now) in LEGAL for move in moves)
    assert [move.was for move in moves[1:]] == [move.now for move in moves[:-1]]
    times = [move.at_s for move in moves]
    assert times == sorted(times)
