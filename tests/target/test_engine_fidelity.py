"""Whatever happens to the engine, each request's tokens are those of the same request alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target.config import EngineConfig, breaker_configs
from tests.target.engine_builders import FULL_CARD, ROOM, Bench, FakeCards, a_request, rung_specs

PREEMPTIONS = ["recompute", "swap"]


def chaos(seed: int, preemption: str, *, fails: object = None) -> Bench:
    """Arrivals, cancels, deadlines, faults and dying steps at random; then the end of all of them."""
    dice = random.Random(seed)
    failing = dice.random() * 0.7
    device = FakeCards(copy_looks=dice.randrange(8))
    config = EngineConfig(
        max_running=dice.choice([2, 4, 16]),
        max_running_throttled=2,
        max_queue=30,
        step_tokens=dice.choice([24, 96]),
        chunk_tokens=dice.choice([16, 64]),
        host_tier_tokens=dice.choice([100, 16_384]),
        copy_tokens=dice.choice([3, 16]),
        preemption=preemption,  # type: ignore[arg-type]
        breakers=breaker_configs(dice.choice([0.005, 0.05])),
    )
    bench = Bench(config, device, rung_specs(1, dice.choice([1, 2, 3])), step_s=dice.choice([0.005, 0.05]))
    device.fails = fails if callable(fails) else (lambda n: n > 2 and dice.random() < failing)
    for number in range(dice.randrange(4, 24)):
        for _ in range(dice.randrange(6)):
            if dice.random() < 0.3:
                bench.device.healths = dice.choice([{}, {"pcie:1:d2h": 0.1}, {"nvlink:0>2": 0.1}])
            if dice.random() < 0.3:
                bench.see_memory(dice.choice([ROOM, ROOM, FULL_CARD]))
            dies = dice.random() < 0.03
            bench.runner.breaks = lambda plan, dies=dies: dies and not plan.is_empty
            bench.step()
        bench.runner.breaks = lambda plan: False
        length = dice.choice([1, 3, 16, 17, 40, 100, 180])
        bench.submit(
            a_request(
                f"r{number}",
                [dice.randrange(90) for _ in range(length)],
                max_tokens=dice.choice([1, 2, 17, 40, 70]),
                priority=dice.randrange(3),
                model=dice.choice([None, None, "small"]),
                deadline_s=bench.now + 0.2 if dice.random() < 0.1 else None,
            )
        )
        if dice.random() < 0.2:
            bench.cancel(f"r{dice.randrange(number + 1)}")
    bench.device.healths = {}
    bench.run()
    return bench


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_under_any_mix_of_faults_every_token_is_the_oracles_and_everything_comes_back(
    preemption: str, seed: int
) -> None:
    bench = chaos(seed, preemption)
    bench.check_answers()
    bench.check_all_given_back()


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("nth", range(1, 9))
def test_the_failure_of_any_one_allocation_fails_no_request(nth: int, preemption: str) -> None:
    device = FakeCards()
    bench = Bench(EngineConfig(preemption=preemption), device, rung_specs(1, 6))  # type: ignore[arg-type]
    made = device.allocations
    device.fails = lambda n: n == made + nth
    bench.submit(*(a_request(f"r{n}", range(n, n + 50), max_tokens=60) for n in range(14)))
    bench.run()
    bench.check_answers()
    assert {bench.reason(name) for name in bench.requests} == {"length"}
    bench.check_all_given_back()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_service_that_can_not_even_have_its_least_memory_says_so_at_the_start(nth: int) -> None:
    device = FakeCards(fails=lambda n: n == nth)
    with pytest.raises(device.out_of_memory):
        Bench(device=device)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_nobody_gives_way_again_and_again(preemption: str) -> None:
    bench = Bench(EngineConfig(preemption=preemption), rungs=rung_specs(1, 2))  # type: ignore[arg-type]
    bench.submit(*(a_request(f"r{n}", range(n, n + 60), max_tokens=100) for n in range(12)))
    bench.run()
    bench.check_answers()
    ends = [e for e in bench.journal if e.get("event") == "terminal"]
    assert max(e["preemptions"] for e in ends) <= 4


def test_the_same_run_twice_is_the_same_to_the_last_output() -> None:
    first, second = chaos(7, "swap"), chaos(7, "swap")
    assert first.outputs == second.outputs
    assert first.journal == second.journal
