"""How KV and partial sums travel while links are whole, weak, and tried again."""

from __future__ import annotations

import pytest

from target.breaker import BreakerState
from target.config import Countermeasures, EngineConfig, breaker_configs
from target.links import nvlink
from target.plan import Route
from tests.target.engine_builders import KV_BYTES, Bench, FakeCards, a_request, rung_specs

SLOW_PCIE = {"pcie:2:d2h": 0.2}
SLOW_NVLINK = {nvlink(0, 1): 0.3}


def a_bench(**settings: object) -> Bench:
    """PCIe stays open for 3 s, NVLink for 12 s."""
    return Bench(EngineConfig(breakers=breaker_configs(0.1), **settings))  # type: ignore[arg-type]


def d2h(bench: Bench) -> list[int]:
    """Tokens in each chunk of direct DMA to the host."""
    return [nbytes // KV_BYTES for direction, nbytes in bench.device.copies if direction == "d2h"]


# --- PCIe


def test_whole_links_carry_new_kv_directly_in_small_chunks() -> None:
    bench = a_bench()
    bench.submit(a_request(prompt=range(40), max_tokens=3))
    bench.step(3)
    assert d2h(bench) == [16, 16, 8, 1, 1]
    assert bench.device.staged == []
    assert bench.engine.counts.direct_bytes == 42 * KV_BYTES


def test_recomputing_services_copy_nothing() -> None:
    bench = a_bench(preemption="recompute")
    bench.submit(a_request(prompt=range(40)))
    bench.run()
    assert bench.device.copies == []
    assert bench.device.staged == []


def test_slow_copies_open_the_breaker_within_the_step_and_end_direct_dma_at_once() -> None:
    bench = a_bench()
    bench.device.healths = dict(SLOW_PCIE)
    bench.submit(a_request(prompt=range(64)), a_request("other", range(30)))
    bench.step()
    assert bench.state("pcie") is BreakerState.OPEN
    assert d2h(bench) == [16, 16, 16]
    assert bench.sequence("r").on_host == 48


def test_while_the_breaker_is_open_kv_is_staged_in_whole_blocks_behind_the_step() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.submit(a_request(prompt=range(90), max_tokens=60))
    bench.step(4)
    assert d2h(bench) == []
    assert bench.device.staged[0] == 64 * KV_BYTES
    assert all(nbytes % (16 * KV_BYTES) == 0 for nbytes in bench.device.staged)
    bench.run()
    assert bench.engine.counts.staged_bytes == sum(bench.device.staged)
    bench.check_answers()
    bench.check_all_given_back()


def test_who_would_give_way_first_is_staged_first() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.submit(a_request("old", range(40), max_tokens=100), a_request("young", range(40), max_tokens=100))
    bench.step(2)
    assert bench.plans[-1].staging is not None
    assert bench.plans[-1].staging.sequence.id == "young"


def test_only_one_staged_copy_is_under_way_at_a_time() -> None:
    bench = a_bench()
    bench.device.copy_looks = 10
    bench.force("pcie")
    bench.submit(a_request(prompt=range(90), max_tokens=100))
    bench.step(8)
    assert len(bench.device.staged) == 1


def test_staging_goes_on_where_direct_dma_stopped_within_a_block() -> None:
    bench = a_bench()
    bench.submit(a_request(prompt=range(40), max_tokens=100))
    bench.step(3)
    assert bench.sequence("r").on_host == 42
    bench.force("pcie")
    bench.step(30)
    assert bench.sequence("r").on_host >= 64
    bench.run()
    bench.check_answers()


def test_staged_blocks_are_pinned_until_the_copy_arrived_even_if_the_request_is_gone() -> None:
    bench = a_bench()
    bench.device.copy_looks = 5
    bench.force("pcie")
    bench.submit(a_request("gone", range(64), max_tokens=100), a_request("stays", range(9), max_tokens=100))
    bench.step(2)
    staging = bench.runner.staging
    assert staging is not None
    assert staging[0].sequence.id == "gone"
    bench.cancel("gone")
    for _ in range(4):
        bench.step()
        assert not set(staging[0].blocks) & set(bench.sequence("stays").blocks)
    bench.step(3)
    assert bench.runner.host.keys() <= {"stays"}  # what arrived too late was not kept
    bench.run()
    bench.check_all_given_back()


def test_a_copy_that_arrives_after_the_last_request_still_gives_its_blocks_back() -> None:
    bench = a_bench()
    bench.device.copy_looks = 5
    bench.force("pcie")
    bench.submit(a_request(prompt=range(64), max_tokens=2))
    while not bench.engine.is_idle:
        bench.step()
    assert bench.engine.is_copying
    assert bench.engine.pools["full"].held == 4
    bench.run()
    bench.check_all_given_back()


def test_a_step_that_died_before_it_started_its_staging_leaves_nothing_pinned() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.submit(a_request("dies", range(90), max_tokens=20))
    bench.step()
    bench.runner.breaks = lambda plan: True
    plan = bench.step()
    assert plan.staging is not None
    assert not bench.engine.is_copying
    bench.runner.breaks = lambda plan: False
    bench.submit(a_request("next", range(90), max_tokens=20))
    bench.run()
    assert bench.device.staged  # staging works on
    bench.check_answers()
    bench.check_all_given_back()


def test_a_copy_that_had_arrived_in_a_step_that_died_is_taken_in_by_the_next() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.submit(a_request("dies", range(64), max_tokens=20))
    bench.step(2)
    assert bench.engine.is_copying
    bench.runner.breaks = lambda plan: not plan.is_empty
    bench.step()
    bench.run()
    bench.check_all_given_back()


def test_a_copy_under_way_belongs_to_the_rung_that_it_was_started_on() -> None:
    # Preempted before its first token while memory is short, the request starts again on the light model.
    bench = Bench(
        EngineConfig(breakers=breaker_configs(0.1), chunk_tokens=32, step_tokens=40), rungs=rung_specs(1, 1)
    )
    bench.device.copy_looks = 30
    bench.force("pcie")
    bench.submit(a_request("moves", range(150), max_tokens=60, priority=1))
    bench.step(3)
    staging = bench.runner.staging
    assert staging is not None
    assert staging[0].sequence.id == "moves"
    bench.submit(a_request("pushes", range(9, 140), max_tokens=60, priority=0))
    while bench.sequence("moves").state != "waiting":
        bench.step()
    bench.force("memory")
    while bench.runner.staging is not None and bench.runner.staging[0] is staging[0]:
        bench.step()
    assert bench.sequence("moves").computed >= staging[0].end
    assert bench.sequence("moves").on_host == 0
    bench.run()
    assert bench.end("moves").rung == "light"  # type: ignore[union-attr]
    bench.check_answers()
    bench.check_all_given_back()


def test_what_was_staged_for_a_request_that_lost_its_kv_meanwhile_is_not_taken_for_its_own() -> None:
    bench = Bench(EngineConfig(breakers=breaker_configs(1.0)), rungs=rung_specs(1, 1))
    bench.device.copy_looks = 8
    bench.force("pcie")
    bench.submit(a_request("old", range(100), max_tokens=60))
    bench.submit(a_request("young", range(9, 109), max_tokens=60))
    bench.run()
    assert bench.engine.counts.preemptions
    bench.check_answers()
    bench.check_all_given_back()


def test_half_open_tries_one_small_chunk_and_its_failure_ends_direct_dma_again() -> None:
    bench = a_bench()
    bench.device.healths = dict(SLOW_PCIE)
    bench.force("pcie")
    bench.now = 3.5
    bench.submit(a_request(prompt=range(64)))
    bench.step()
    assert d2h(bench) == [16]
    assert bench.state("pcie") is BreakerState.OPEN


def test_half_open_goes_back_to_direct_dma_once_the_chunk_was_fast() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.now = 3.5
    bench.submit(a_request(prompt=range(64)))
    bench.step()
    assert bench.state("pcie") is BreakerState.CLOSED
    assert d2h(bench) == [16, 16, 16, 16]


def lagging() -> Bench:
    """One sequence with 64 tokens that are not on the host, and a breaker that is half-open."""
    bench = a_bench()
    bench.force("pcie")
    bench.submit(a_request(prompt=range(64), max_tokens=100))
    bench.step()
    bench.now += 3.5
    assert bench.state("pcie") is BreakerState.HALF_OPEN
    return bench


def test_who_lags_behind_catches_up_a_little_in_every_step_and_then_goes_on_with_new_kv() -> None:
    bench = lagging()
    bench.step(4)
    assert d2h(bench) == [16, 16, 16, 16, 2 + 1, 1]
    assert bench.sequence("r").on_host == bench.sequence("r").computed
    bench.run()
    bench.check_answers()


def test_in_half_open_one_that_lags_is_the_probe_when_there_is_no_other() -> None:
    bench = lagging()
    bench.device.healths = dict(SLOW_PCIE)
    bench.step()
    assert d2h(bench) == [16]
    assert bench.state("pcie") is BreakerState.OPEN


def test_all_that_lag_share_what_one_step_may_catch_up_and_who_gives_way_first_goes_first() -> None:
    bench = a_bench()
    bench.force("pcie")
    bench.submit(*(a_request(name, range(40), max_tokens=100) for name in ("old", "young")))
    bench.step()
    bench.now += 3.5
    bench.step()
    assert [(work.sequence.id, work.start, work.count) for work in bench.plans[-1].write_through] == [
        ("young", 0, 32)
    ]
    bench.step()
    assert [(work.sequence.id, work.start, work.count) for work in bench.plans[-1].write_through] == [
        ("young", 32, 9 + 1),
        ("old", 0, 23),
    ]


def test_direct_copies_wait_for_the_staged_one_that_is_still_under_way() -> None:
    bench = a_bench()
    bench.device.copy_looks = 6
    bench.force("pcie")
    bench.submit(a_request(prompt=range(64), max_tokens=100))
    bench.step(2)
    assert bench.engine.is_copying
    bench.now += 3.5
    while bench.engine.is_copying:
        assert d2h(bench) == []
        bench.step()
    bench.step()
    assert d2h(bench)
    assert bench.state("pcie") is BreakerState.CLOSED


def test_a_chunk_is_as_small_as_configured() -> None:
    bench = a_bench(copy_tokens=4)
    bench.device.healths = dict(SLOW_PCIE)
    bench.force("pcie")
    bench.now = 3.5
    bench.submit(a_request(prompt=range(64)))
    bench.step()
    assert d2h(bench) == [4]


def test_without_the_countermeasure_direct_dma_goes_on_over_slow_links() -> None:
    bench = a_bench(countermeasures=Countermeasures(pcie=False))
    bench.device.healths = dict(SLOW_PCIE)
    bench.submit(a_request(prompt=range(64), max_tokens=20))
    bench.run()
    assert bench.state("pcie") is BreakerState.OPEN  # it is still seen
    assert sum(d2h(bench)) == 64 + 19
    assert bench.device.staged == []


# --- NVLink


def test_whole_links_exchange_directly() -> None:
    bench = a_bench()
    bench.submit(a_request(max_tokens=30))
    bench.run()
    assert set(bench.runner.routes) == {Route()}
    assert bench.state("nvlink") is BreakerState.CLOSED


def test_a_slow_link_is_driven_around_after_a_few_exchanges() -> None:
    bench = a_bench()
    bench.device.healths = dict(SLOW_NVLINK)
    bench.submit(a_request(max_tokens=30))
    bench.run()
    assert bench.runner.routes[:9] == [Route()] * 8 + [Route((0, 2, 1, 3))]
    assert set(bench.runner.routes[8:]) == {Route((0, 2, 1, 3))}
    bench.check_answers()


def test_half_open_tries_one_direct_exchange_and_stays_on_the_ring_if_it_was_slow() -> None:
    bench = a_bench()
    bench.device.healths = dict(SLOW_NVLINK)
    bench.submit(a_request(max_tokens=200))
    bench.step(10)
    bench.now += 12.0
    bench.step(3)
    ring = Route((0, 2, 1, 3))
    assert bench.runner.routes[-3:] == [Route(), ring, ring]
    assert bench.state("nvlink") is BreakerState.OPEN


def test_half_open_goes_back_to_direct_exchange_once_the_link_is_whole() -> None:
    bench = a_bench()
    bench.device.healths = dict(SLOW_NVLINK)
    bench.submit(a_request(max_tokens=200))
    bench.step(10)
    bench.device.healths = {}
    bench.now += 12.0
    bench.step(3)
    assert bench.runner.routes[-3:] == [Route()] * 3
    assert bench.state("nvlink") is BreakerState.CLOSED
    assert bench.engine.transfers.nvlink.weak() == frozenset()


def test_without_the_countermeasure_exchanges_stay_direct() -> None:
    bench = a_bench(countermeasures=Countermeasures(nvlink=False))
    bench.device.healths = dict(SLOW_NVLINK)
    bench.submit(a_request(max_tokens=30))
    bench.run()
    assert bench.state("nvlink") is BreakerState.OPEN
    assert set(bench.runner.routes) == {Route()}


@pytest.mark.parametrize("cards", [1, 2])
def test_few_cards_have_no_other_way_and_go_on(cards: int) -> None:
    bench = Bench(EngineConfig(), device=FakeCards(cards=cards, healths=dict(SLOW_NVLINK)))
    bench.submit(a_request(max_tokens=30))
    bench.run()
    bench.check_answers()
