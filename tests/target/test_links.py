"""Are the links whole, which way round the weak ones, and what an all-reduce costs either way."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from target.breaker import Breaker, BreakerState
from target.config import breaker_configs
from target.device import LinkReading
from target.links import LinkHealth, nvlink, ring_around
from target.models.collective import flows
from target.plan import Route

PAIRS = list(combinations(range(4), 2))


def a_health(name: str = "pcie") -> LinkHealth:
    return LinkHealth(Breaker(name, breaker_configs(1.0)[name]))


def at(health: float, link: str = "pcie:0:d2h") -> LinkReading:
    return LinkReading(link, 100.0, 1.0 / health, 1.0)


def hops(ring: tuple[int, ...]) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)}


@pytest.mark.parametrize(("elapsed_s", "health"), [(1.0, 1.0), (4.0, 0.25), (0.5, 1.0), (0.0, 1.0)], ids=str)
def test_health_is_achieved_by_nominal_rate_and_never_above_one(elapsed_s: float, health: float) -> None:
    assert LinkReading("pcie:0:d2h", 100.0, elapsed_s, 1.0).health == health


def test_a_slow_link_opens_the_breaker_after_several_transfers() -> None:
    health = a_health()
    assert [health.observe([at(0.3)], n * 0.1) for n in range(3)] == [False] * 3
    assert health.breaker.state(0.3) is BreakerState.OPEN


def test_the_worst_link_of_a_transfer_speaks_for_it() -> None:
    health = a_health()
    assert not health.observe([at(1.0, "pcie:0:d2h"), at(0.5, "pcie:1:d2h"), at(0.9, "pcie:2:d2h")], 0.0)


def test_links_at_their_nominal_rate_never_alarm() -> None:
    health = a_health()
    assert all(health.observe([at(0.61)], n * 0.01) for n in range(500))
    assert health.breaker.state(5.0) is BreakerState.CLOSED
    assert health.weak() == frozenset()


def test_an_idle_link_says_nothing_and_never_alarms() -> None:
    health = a_health()
    for n in range(500):
        assert health.observe([], n * 0.1)
    assert health.breaker.state(1000.0) is BreakerState.CLOSED
    assert health.weak() == frozenset()


def test_a_link_is_weak_after_a_few_slow_transfers_and_not_after_one() -> None:
    health = a_health("nvlink")
    health.observe([at(0.25, nvlink(0, 1)), at(1.0, nvlink(1, 0))], 0.0)
    assert health.weak() == frozenset()
    health.observe([at(0.25, nvlink(0, 1)), at(1.0, nvlink(1, 0))], 0.1)
    health.observe([at(0.25, nvlink(0, 1)), at(1.0, nvlink(1, 0))], 0.2)
    assert health.weak() == {nvlink(0, 1)}
    health.forget()
    assert health.weak() == frozenset()


def test_weak_links_are_known_by_the_time_that_the_breaker_opens() -> None:
    health = a_health("nvlink")
    n = 0
    while health.breaker.is_closed(n * 0.01):
        health.observe([at(0.3, nvlink(2, 3)), at(1.0, nvlink(0, 1))], n * 0.01)
        n += 1
    assert health.weak() == {nvlink(2, 3)}


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("backwards", [False, True])
def test_with_four_cards_the_ring_avoids_any_one_weak_link(pair: tuple[int, int], backwards: bool) -> None:
    a, b = reversed(pair) if backwards else pair
    ring = ring_around(frozenset([nvlink(a, b)]), 4)
    assert sorted(ring) == [0, 1, 2, 3]
    assert frozenset(pair) not in hops(ring)


def test_with_all_links_of_a_card_weak_the_ring_uses_as_few_as_there_can_be() -> None:
    weak = frozenset(nvlink(0, b) for b in (1, 2, 3))
    assert sum(0 in hop for hop in hops(ring_around(weak, 4))) == 2


def test_whole_links_make_the_plain_ring() -> None:
    assert ring_around(frozenset(), 4) == (0, 1, 2, 3)
    assert ring_around(frozenset(), 8) == (0, 1, 2, 3, 4, 5, 6, 7)


def test_a_ring_of_eight_avoids_a_weak_link_as_well() -> None:
    for a, b in [(0, 1), (3, 4), (0, 7)]:
        assert frozenset((a, b)) not in hops(ring_around(frozenset([nvlink(a, b)]), 8))


@pytest.mark.parametrize("cards", [1, 2])
def test_one_card_or_two_have_no_way_round(cards: int) -> None:
    assert ring_around(frozenset([nvlink(0, 1)]), cards) == tuple(range(cards))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_direct_each_rank_gets_every_other_ones_part_over_its_own_link(ranks: int) -> None:
    moved = flows(Route(), ranks, 100.0)
    assert len(moved) == len({(a, b) for a, b, _ in moved}) == ranks * (ranks - 1)
    received = Counter[int]()
    for _, to, nbytes in moved:
        received[to] += int(nbytes)
    assert dict(received) == dict.fromkeys(range(ranks), 100 * (ranks - 1))


@pytest.mark.parametrize("ranks", [3, 4, 5, 8])
def test_round_a_ring_every_part_travels_to_its_chunks_owners_and_every_sum_back(ranks: int) -> None:
    moved = flows(Route(tuple(range(ranks))), ranks, 100.0)
    chunk = 100.0 / ranks
    gather = sum(chunk * min((a - b) % ranks, (b - a) % ranks) for a in range(ranks) for b in range(ranks))
    broadcast = ranks * chunk * (ranks - 1)  # each sum visits each other rank once
    assert sum(nbytes for _, _, nbytes in moved) == pytest.approx(gather + broadcast)
    assert len({nbytes for _, _, nbytes in moved}) == 1
    assert len(moved) == len({(a, b) for a, b, _ in moved}) == 2 * ranks


def test_four_cards_move_by_ring_875_bytes_of_1000_on_each_link() -> None:
    assert {nbytes for _, _, nbytes in flows(Route((0, 1, 2, 3)), 4, 1000.0)} == {875.0}


def test_two_cards_have_one_pair_of_links_either_way() -> None:
    assert flows(Route((0, 1)), 2, 100.0) == flows(Route(), 2, 100.0) == [(0, 1, 100.0), (1, 0, 100.0)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_nothing_travels_over_a_link_that_the_ring_avoids(pair: tuple[int, int]) -> None:
    ring = ring_around(frozenset([nvlink(*pair)]), 4)
    assert set(pair) not in [{a, b} for a, b, _ in flows(Route(ring), 4, 100.0)]
