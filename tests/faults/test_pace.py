"""How fast a counter moves, told from looks at it."""

from __future__ import annotations

import pytest

from faults.ecc import EccErrors
from faults.gpu.levers import LeverKind
from faults.gpu.sim import SimNode
from faults.pace import Pace


def look_on(
    pace: Pace, node: SimNode, clock, count: float, per_s: float, seconds: float
) -> tuple[float, float]:
    """Look every 0.1 s while the counter moves; the count at the end, and the last rate."""
    rate = 0.0
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        count += per_s / 10
        rate = pace.per_s(node, "errors", count)
    return count, rate


def test_one_look_says_nothing_and_a_few_tell_the_rate(still: SimNode, clock) -> None:
    pace = Pace()
    assert pace.per_s(still, "errors", 1000.0) == 0
    _, rate = look_on(pace, still, clock, 1000.0, per_s=50, seconds=0.3)
    assert rate == pytest.approx(50)


def test_a_counter_that_stands_still_has_no_rate_once_the_window_is_over(still: SimNode, clock) -> None:
    pace = Pace()
    count, rate = look_on(pace, still, clock, 0.0, per_s=50, seconds=10)
    assert rate == pytest.approx(50)
    count, rate = look_on(pace, still, clock, count, per_s=0, seconds=0.3)
    assert 0 < rate < 50
    _, rate = look_on(pace, still, clock, count, per_s=0, seconds=0.3)
    assert rate == 0


def test_looks_of_long_ago_belong_to_another_question(still: SimNode, clock) -> None:
    pace = Pace()
    pace.per_s(still, "errors", 0.0)
    clock.now += 60
    assert pace.per_s(still, "errors", 6000.0) == 0


def test_counters_and_nodes_are_told_apart(still: SimNode, tmp_path, clock) -> None:
    pace = Pace()
    with SimNode.create(tmp_path / "other", cards=1, clock=clock) as other:
        for _ in range(5):
            clock.now += 0.1
            rates = [
                pace.per_s(node, counter, clock.now * per_s)
                for node, counter, per_s in ((still, "a", 10), (still, "b", 20), (other, "a", 30))
            ]
        assert rates == pytest.approx([10, 20, 30])


def test_errors_of_a_past_injection_are_no_effect_of_the_next(still: SimNode, path, clock) -> None:
    """The counter never goes back: what it showed before must not make the next one visible."""
    still.count(0, ecc_corrected_volatile=1e6, ecc_corrected=1e6)
    fault = EccErrors(per_s=100)
    assert not fault.took_effect(still).visible
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        other.keep(LeverKind.ECC_CORRECTED_PER_S, [0], 100)
        for _ in range(5):
            clock.now += 0.1
            still.tick()
            seen = fault.took_effect(still)
        assert seen.visible
        assert seen.measured == pytest.approx(100)
