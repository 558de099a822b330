"""The physics of one link."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.gpu.links import ENDLESS, UNFINISHED, Link

CAPACITY = 1000.0
sizes = st.floats(0, 1e6)
gaps = st.floats(0, 50)


def link(capacity: float = CAPACITY) -> Link:
    return Link([], capacity)


def test_a_flow_alone_takes_its_bytes_over_the_capacity() -> None:
    one = link()
    flow = one.add(1, 1, 500.0)
    one.advance(10.0)
    assert flow.finish_s == 0.5


def test_when_a_flow_finishes_the_others_speed_up_from_that_moment_even_if_time_is_told_late() -> None:
    one = link()
    short, long = one.add(1, 1, 100.0), one.add(2, 2, 400.0)
    assert one.finish_of(long) == pytest.approx(0.5)
    one.advance(99.0)
    assert short.finish_s == pytest.approx(0.2)  # 100 bytes at half the capacity
    assert long.finish_s == pytest.approx(0.5)  # 100 at half, 300 at all of it


def test_a_flow_that_joins_slows_the_first_from_that_moment() -> None:
    one = link()
    first = one.add(1, 1, 1000.0)
    one.advance(0.5)
    one.add(2, 1, 1000.0)
    one.advance(9.0)
    assert first.finish_s == pytest.approx(1.5)


def test_a_lower_capacity_slows_what_is_left() -> None:
    one = link()
    flow = one.add(1, 1, 1000.0)
    one.set_capacity(0.5, 100.0)
    assert one.changed_s == 0.5
    one.advance(99.0)
    assert flow.finish_s == pytest.approx(5.5)


def test_nine_endless_streams_leave_a_tenth_for_a_tenth_flow() -> None:
    one = link()
    for serial in range(9):
        one.add(serial, 1, ENDLESS)
    victim = one.add(99, 2, 100.0)
    one.advance(3.0)
    assert victim.finish_s == pytest.approx(1.0)
    assert one.bytes_total == pytest.approx(3.0 * CAPACITY)


def test_a_cancelled_flow_keeps_what_it_moved() -> None:
    one = link()
    flow = one.add(1, 1, ENDLESS)
    one.advance(2.0)
    assert one.remove(flow) == pytest.approx(2 * CAPACITY)
    assert one.bytes_total == pytest.approx(2 * CAPACITY)


def test_the_finish_of_a_flow_that_is_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="not on this link"):
        link().finish_of(link().add(1, 1, 5.0))


@given(st.lists(st.tuples(gaps, sizes, st.floats(0.01, 1.0)), min_size=1, max_size=12))
def test_a_link_never_moves_more_than_its_capacity_allows(story: list[tuple[float, float, float]]) -> None:
    one, now, allowed = link(), 0.0, 0.0
    for serial, (gap, size, factor) in enumerate(story):
        allowed += gap * one.capacity
        now += gap
        one.set_capacity(now, CAPACITY * factor)
        one.add(serial, 1, size)
        assert one.bytes_total <= allowed * (1 + 1e-9) + 1e-6


@given(st.lists(st.tuples(gaps, sizes), min_size=1, max_size=12))
def test_every_flow_finishes_and_all_its_bytes_are_counted(story: list[tuple[float, float]]) -> None:
    one, now = link(), 0.0
    for serial, (gap, size) in enumerate(story):
        now += gap
        one.advance(now)
        one.add(serial, 1, size)
    one.advance(1e12)
    assert all(flow.finish_s != UNFINISHED for flow in one.flows)
    assert one.bytes_total == pytest.approx(sum(size for _, size in story))


@given(st.lists(st.tuples(gaps, sizes), min_size=1, max_size=10), st.lists(st.floats(0, 1000), max_size=20))
def test_finish_times_do_not_depend_on_when_time_is_told(
    story: list[tuple[float, float]], glances: list[float]
) -> None:
    def finishes(also_at: list[float]) -> list[float]:
        one, now = link(), 0.0
        for serial, (gap, size) in enumerate(story):
            for glance in sorted(g for g in also_at if now < g < now + gap):
                one.advance(glance)
            now += gap
            one.advance(now)
            one.add(serial, 1, size)
        for glance in sorted(g for g in also_at if g > now):
            one.advance(glance)
        one.advance(1e12)
        return [flow.finish_s for flow in one.flows]

    assert finishes(glances) == pytest.approx(finishes([]), rel=1e-6, abs=1e-6)


@given(st.lists(sizes, min_size=1, max_size=10))
def test_what_is_predicted_without_newcomers_comes_true(story: list[float]) -> None:
    one = link()
    flows = [one.add(serial, 1, size) for serial, size in enumerate(story)]
    predicted = [one.finish_of(flow) for flow in flows]
    one.advance(1e12)
    assert [flow.finish_s for flow in flows] == pytest.approx(predicted)


@given(st.integers(1, 20), st.floats(0.1, 10))
def test_active_flows_get_equal_shares_that_add_up_to_the_capacity(count: int, after: float) -> None:
    one = link()
    flows = [one.add(serial, serial, ENDLESS) for serial in range(count)]
    one.advance(after)
    shares = [one.moved(flow) for flow in flows]
    assert max(shares) == min(shares)
    assert math.fsum(shares) == pytest.approx(after * CAPACITY)
