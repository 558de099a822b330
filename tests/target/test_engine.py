"""The engine's promises, one by one, on fake cards and a told time."""

from __future__ import annotations

import pytest

from target.breaker import BreakerState
from target.config import Countermeasures, EngineConfig, breaker_configs
from target.plan import Outcome
from target.request import Accepted, Finished, Rejected, Token
from tests.target.engine_builders import (
    FULL_CARD,
    KV_BYTES,
    ROOM,
    Bench,
    CardFull,
    FakeCards,
    a_request,
    decode,
    oracle,
    rung_specs,
)


def many(count: int, **settings: object) -> list:  # type: ignore[type-arg]
    return [a_request(f"r{n}", prompt=(n, n + 1, n + 2), **settings) for n in range(count)]


# --- what a request gets


def test_an_answer_is_accepted_then_its_tokens_in_order_then_one_end() -> None:
    bench = Bench()
    bench.submit(a_request("a", (5, 6), max_tokens=3))
    bench.run()
    tokens = oracle((5, 6), 3)
    assert bench.outputs["a"] == [
        Accepted("big", "full", 0.01),
        *(Token(decode([token]), token, n) for n, token in enumerate(tokens)),
        Finished("length", 2, 3, "big", "full"),
    ]
    bench.check_all_given_back()


def test_a_request_of_time_zero_waited_until_its_first_step_and_not_until_its_first_token() -> None:
    bench = Bench(step_s=0.0)
    bench.submit(a_request(prompt=range(80)))  # two chunks, so two steps
    bench.step()
    bench.now, bench.step_s = 5.0, 1.0
    bench.run()
    assert bench.outputs["r"][0] == Accepted("big", "full", 0.0)


def test_an_end_token_ends_the_answer_and_is_not_part_of_it() -> None:
    answer = oracle((1, 2, 3), 8)
    end = next(token for n, token in enumerate(answer) if n >= 2 and token not in answer[:n])
    bench = Bench(end_tokens=frozenset([end]))
    bench.submit(a_request())
    bench.run()
    assert bench.tokens("r") == answer[: answer.index(end)]
    assert bench.reason("r") == "stop"


def test_a_stop_string_ends_the_answer_and_the_text_before_it_is_all_there() -> None:
    text = decode(oracle((1, 2, 3), 8))
    bench = Bench()
    bench.submit(a_request(stop=(text[3:5],)))
    bench.run()
    assert bench.text("r") == text[:3]
    assert bench.reason("r") == "stop"
    assert bench.end("r").output_tokens == 5  # type: ignore[union-attr]


def test_text_held_back_for_a_stop_comes_with_the_end_under_no_token() -> None:
    text = decode(oracle((1, 2, 3), 8))
    bench = Bench()
    bench.submit(a_request(stop=(text[7] + "never",)))
    bench.run()
    assert bench.text("r") == text
    assert bench.outputs["r"][-2] == Token(text[7], -1, 8)


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    bench = Bench(EngineConfig(chunk_tokens=32))
    bench.submit(a_request(prompt=range(70), max_tokens=1))
    works = [(w.start, w.count, w.sample) for _ in range(3) for w in bench.step().works()]
    assert works == [(0, 32, False), (32, 32, False), (64, 6, True)]
    bench.check_answers()


def test_a_step_computes_no_more_tokens_than_its_budget_decodes_first() -> None:
    bench = Bench(EngineConfig(step_tokens=40, chunk_tokens=32))
    bench.submit(a_request("a"), a_request("b"))
    bench.step()
    bench.submit(a_request("c", range(100)), a_request("d", range(100)))
    plan = bench.step()
    assert [(w.sequence.id, w.count) for w in plan.works()] == [("a", 1), ("b", 1), ("c", 32), ("d", 6)]


def test_logits_that_are_not_finite_fail_the_request_and_never_become_a_token() -> None:
    bench = Bench()
    bench.submit(a_request("a"), a_request("b"))
    plan = bench.engine.schedule(1.0)
    bench.engine.commit(plan, Outcome(tokens={"b": 7}, failures={"a": "not finite"}), 1.0)
    bench._deliver()
    assert bench.outputs["a"] == [Finished("failed", 3, 0, "big", "full", "not finite")]
    assert bench.tokens("b") == [7]
    assert bench.running() == ["b"]


def test_a_step_that_died_fails_its_own_requests_and_no_others() -> None:
    bench = Bench(EngineConfig(max_running=2))
    bench.submit(*many(4))
    bench.step(2)
    bench.runner.breaks = lambda plan: True
    bench.step()
    bench.runner.breaks = lambda plan: False
    bench.run()
    assert [bench.reason(f"r{n}") for n in range(4)] == ["failed", "failed", "length", "length"]
    assert bench.end("r0").message == "the step died"  # type: ignore[union-attr]
    bench.check_answers()
    bench.check_all_given_back()


# --- admission


def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    bench = Bench(EngineConfig(max_queue=2))
    assert bench.submit(*many(2)) is None
    refusal = bench.submit(a_request("late"))
    assert refusal == Rejected(429, "queue_full", "2 requests are waiting", 1.0)
    assert bench.waiting() == ["r0", "r1"]


def test_when_to_come_again_follows_the_rate_of_the_last_answers() -> None:
    bench = Bench(EngineConfig(max_queue=4, max_running=1), step_s=0.5)
    bench.submit(*many(4, max_tokens=2))  # one second each
    while bench.reason("r1") is None:
        bench.step()
    bench.submit(a_request("late0"), a_request("late1"))
    assert bench.waiting() == ["r2", "r3", "late0", "late1"]
    assert bench.submit(a_request("late2")) == Rejected(429, "queue_full", "4 requests are waiting", 4.0)


def test_when_to_come_again_is_never_more_than_half_a_minute() -> None:
    bench = Bench(EngineConfig(max_running=1, max_queue=20), step_s=20.0)
    bench.submit(*many(20, max_tokens=1))
    bench.step(2)
    refusal = bench.submit(*(a_request(f"late{n}") for n in range(3)))
    assert refusal == Rejected(429, "queue_full", "20 requests are waiting", 30.0)


def test_the_running_ones_do_not_fill_the_queue() -> None:
    bench = Bench(EngineConfig(max_queue=2))
    bench.submit(*many(2))
    bench.step()
    assert bench.submit(a_request("next")) is None


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    bench = Bench()
    refusal = bench.submit(a_request(prompt=range(200), max_tokens=57))
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (400, "context_length_exceeded", None)
    assert "257 tokens; this model's context is 256" in refusal.message
    assert bench.submit(a_request(prompt=range(200), max_tokens=56)) is None
    bench.run()
    assert bench.reason("r") == "length"


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    refusal = Bench().submit(a_request(model="huge"))
    assert refusal == Rejected(404, "model_not_found", "no model 'huge'; there are: big, small", None)


@pytest.mark.parametrize("started", [False, True], ids=["queued", "running"])
def test_a_request_past_its_deadline_is_dropped(started: bool) -> None:
    bench = Bench(EngineConfig(max_running=1))
    if not started:
        bench.submit(a_request("first", max_tokens=100))
    bench.submit(a_request("r", deadline_s=0.05, max_tokens=100))
    bench.run()
    assert bench.reason("r") == "deadline"
    assert len(bench.tokens("r")) == (4 if started else 0)
    bench.check_answers()
    bench.check_all_given_back()


def test_cancelling_ends_a_request_wherever_it_is_and_unknown_ids_are_ignored() -> None:
    bench = Bench(EngineConfig(max_running=1))
    bench.submit(*many(3))
    bench.step(2)
    bench.cancel("r0")
    bench.cancel("r2")
    bench.cancel("r2")
    bench.cancel("nobody")
    bench.run()
    assert [bench.reason(f"r{n}") for n in range(3)] == ["cancelled", "length", "cancelled"]
    bench.check_answers()
    bench.check_all_given_back()


def test_a_cancel_while_the_step_runs_gives_no_token_any_more() -> None:
    bench = Bench()
    bench.submit(a_request())
    plan = bench.engine.schedule(1.0)
    outcome = bench.runner.execute(plan, bench)
    bench.cancel("r")
    bench.engine.commit(plan, outcome, 1.1)
    bench._deliver()
    assert bench.outputs["r"] == [Finished("cancelled", 3, 0, "big", "full")]
    bench.check_all_given_back()


# --- order


def test_lower_priority_values_go_first_and_equals_in_order_of_arrival() -> None:
    bench = Bench(EngineConfig(max_running=1))
    for name, priority in [("a", 5), ("b", -1), ("c", 5), ("d", 0)]:
        bench.submit(a_request(name, priority=priority))
    assert bench.waiting() == ["b", "d", "a", "c"]
    bench.run()
    ends = [e["id"] for e in bench.journal if e.get("event") == "terminal"]
    assert ends == ["b", "d", "a", "c"]


def test_a_pass_does_not_end_at_the_first_request_that_does_not_fit() -> None:
    bench = Bench(rungs=rung_specs(1, 1), config=EngineConfig(chunk_tokens=256, step_tokens=512))
    bench.submit(a_request("large", range(200), max_tokens=40))
    bench.step()
    bench.submit(a_request("larger", range(100)), a_request("small"))
    bench.step()
    assert bench.running() == ["large", "small"]
    assert bench.waiting() == ["larger"]


def test_who_gave_way_and_does_not_fit_again_is_not_overtaken_by_new_requests_to_the_same_model() -> None:
    bench = tight("recompute")
    while not bench.engine.counts.preemptions:
        bench.step()
    bench.submit(a_request("light", model="small"))
    for number in range(200):
        bench.submit(a_request(f"new{number}", max_tokens=20))
        bench.step()
        if "young" in bench.running():
            break
        assert [name for name in bench.running() if name.startswith("new")] == []
    assert bench.reason("old") == "length"
    assert bench.reason("light") == "length"  # other models are not held up
    bench.run()
    bench.check_answers()


def test_no_more_run_at_once_than_allowed() -> None:
    bench = Bench(EngineConfig(max_running=3))
    bench.submit(*many(10))
    for _ in range(10):
        bench.step()
        assert len(bench.running()) <= 3


def tight(preemption: str, **settings: object) -> Bench:
    """Two that fit at first and grow out of the one slab: 16 blocks."""
    config = EngineConfig(preemption=preemption, **settings)  # type: ignore[arg-type]
    bench = Bench(config, rungs=rung_specs(1, 1))
    bench.submit(
        a_request("old", range(100), max_tokens=40), a_request("young", range(9, 109), max_tokens=40)
    )
    return bench


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_who_came_last_gives_way_keeps_its_place_and_its_text(preemption: str) -> None:
    bench = tight(preemption)
    while not bench.engine.counts.preemptions:
        bench.step()
    assert bench.running() == ["old"]
    bench.submit(a_request("new", range(20)))
    assert bench.waiting() == ["young", "new"]
    bench.run()
    assert bench.engine.counts.preemptions == 1
    assert [e["id"] for e in bench.journal if e.get("event") == "preempted"] == ["young"]
    bench.check_answers()
    bench.check_all_given_back()


def test_nobody_gives_way_to_a_request_of_another_model() -> None:
    bench = tight("swap")
    bench.submit(a_request("light", range(50), max_tokens=60, model="small"))
    bench.run()
    assert [e["id"] for e in bench.journal if e.get("event") == "preempted"] == ["young"]


def test_a_lower_priority_gives_way_even_if_it_came_first() -> None:
    bench = Bench(rungs=rung_specs(1, 1))
    bench.submit(a_request("low", range(100), max_tokens=40, priority=1))
    bench.step(3)
    bench.submit(a_request("high", range(100), max_tokens=40, priority=0))
    bench.run()
    assert [e["id"] for e in bench.journal if e.get("event") == "preempted"] == ["low"]
    bench.check_answers()


def test_recomputing_loses_what_was_computed_and_swapping_loses_nothing() -> None:
    recompute, swap = tight("recompute"), tight("swap")
    for bench in (recompute, swap):
        bench.run()
    assert recompute.engine.counts.recomputed_tokens > 100
    assert swap.engine.counts.recomputed_tokens == 0
    assert ("h2d", 64 * KV_BYTES) not in recompute.device.copies
    assert sum(nbytes for direction, nbytes in swap.device.copies if direction == "h2d") > 100 * KV_BYTES


def test_while_the_link_is_weak_who_gave_way_is_computed_again_and_not_swapped_in() -> None:
    bench = tight("swap")
    while not bench.engine.counts.preemptions:
        bench.step()
    kept = bench.sequence("young").on_host
    assert kept > 100
    bench.force("pcie")
    bench.run()
    counts = bench.engine.counts
    assert [direction for direction, _ in bench.device.copies if direction == "h2d"] == []
    assert (counts.swap_in_bytes, counts.recomputed_tokens) == (0, kept)
    bench.check_answers()
    bench.check_all_given_back()


def test_a_swap_in_over_a_weak_link_opens_the_breaker_and_the_rest_is_computed() -> None:
    bench = tight("swap")
    while not bench.engine.counts.preemptions:
        bench.step()
    kept = bench.sequence("young").on_host
    bench.device.healths = {"pcie:1:h2d": 0.2}
    while "young" not in bench.running():
        bench.step()
    counts = bench.engine.counts
    assert bench.state("pcie") is BreakerState.OPEN
    assert [nbytes for direction, nbytes in bench.device.copies if direction == "h2d"] == [16 * KV_BYTES] * 3
    assert (counts.swap_in_bytes, counts.recomputed_tokens) == (48 * KV_BYTES, kept - 48)
    bench.run()
    bench.check_answers()
    bench.check_all_given_back()


def test_in_half_open_the_first_chunk_of_a_swap_in_is_the_probe() -> None:
    bench = tight("swap")
    while not bench.engine.counts.preemptions:
        bench.step()
    bench.force("pcie")
    bench.cancel("old")
    bench.now += 31
    bench.step()
    assert bench.plans[-1].swap_ins
    assert bench.state("pcie") is BreakerState.CLOSED
    assert bench.engine.counts.recomputed_tokens == 0
    bench.run()
    bench.check_answers()


def test_kv_that_came_back_is_counted_apart_from_kv_that_was_written_through() -> None:
    bench = tight("swap")
    bench.run()
    counts, copies = bench.engine.counts, bench.device.copies
    assert counts.swap_in_bytes == sum(nbytes for direction, nbytes in copies if direction == "h2d") > 0
    assert counts.direct_bytes == sum(nbytes for direction, nbytes in copies if direction == "d2h")


def test_a_swapped_one_keeps_what_the_host_tier_has_and_computes_only_the_rest() -> None:
    bench = tight("swap", host_tier_tokens=240)
    bench.run()
    assert bench.engine.counts.preemptions == 1
    assert 0 < bench.engine.counts.recomputed_tokens < 20
    bench.check_answers()
    bench.check_all_given_back()


@pytest.mark.parametrize("staged", [False, True], ids=["direct", "staged"])
def test_the_host_tier_never_holds_more_tokens_than_it_may(staged: bool) -> None:
    bench = Bench(EngineConfig(host_tier_tokens=100))
    if staged:
        bench.force("pcie")
    bench.submit(*many(6, max_tokens=40))
    while not bench.engine.is_idle:
        bench.step()
        assert sum(bench.sequence(name).on_host for name in bench.running() + bench.waiting()) <= 100
    bench.check_answers()


def test_one_that_gave_way_is_not_started_again_in_the_same_pass() -> None:
    # "small" decodes, then gives its blocks to "first"; "second" lacks some too, and gives way itself: now "small"
    # would fit again, while it still has work planned on the blocks that it no longer holds.
    bench = Bench(EngineConfig(step_tokens=512), rungs=rung_specs(1, 1))
    bench.submit(a_request("small", range(20), priority=3), a_request("filler", range(60), priority=0))
    bench.step()
    bench.submit(a_request("first", range(200), priority=1), a_request("second", range(150), priority=2))
    bench.step()
    plan = bench.step()
    assert bench.engine.counts.preemptions == 2
    assert [work.sequence.id for work in plan.works()] == ["filler", "first"]
    bench.run()
    bench.check_answers()


# --- memory


def test_slabs_come_with_demand_and_go_when_nothing_is_left() -> None:
    bench = Bench(rungs=rung_specs(1, 4))
    bench.submit(*many(12, max_tokens=70))
    most = 0
    while not bench.engine.is_idle:
        bench.step()
        most = max(most, bench.engine.pools["full"].total)
    assert most == 64
    bench.check_all_given_back()


@pytest.mark.parametrize("how", ["cancel", "die"])
def test_slabs_go_back_as_well_when_the_last_request_does_not_end_by_itself(how: str) -> None:
    bench = Bench(rungs=rung_specs(1, 4))
    bench.submit(*many(12, max_tokens=60))
    bench.step(30)
    assert bench.engine.pools["full"].total > 16
    if how == "die":
        bench.runner.breaks = lambda plan: True
        bench.step()
    for n in range(12):
        bench.cancel(f"r{n}")
    if bench.engine.is_copying:
        bench.step()
    assert bench.engine.pools["full"].total == 16
    bench.check_all_given_back()


def test_a_failed_allocation_opens_the_memory_breaker_and_fails_nobody() -> None:
    device = FakeCards(fails=lambda n: n > 2)
    bench = Bench(device=device, rungs=rung_specs(1, 4))
    bench.submit(*many(10, max_tokens=60))
    bench.run()
    assert bench.engine.counts.out_of_memory > 0
    assert next(e["now"] for e in bench.journal if e["kind"] == "breaker") == "open"
    assert {bench.reason(f"r{n}") for n in range(10)} == {"length"}
    bench.check_answers()
    bench.check_all_given_back()


def test_a_full_card_is_asked_once_in_a_pass() -> None:
    device = FakeCards(fails=lambda n: n > 2)
    bench = Bench(device=device, rungs=rung_specs(1, 4))
    bench.submit(*(a_request(f"r{n}", range(100)) for n in range(8)))
    bench.step()
    before = device.allocations
    bench.step()
    assert device.allocations - before <= 1


def test_little_free_memory_opens_the_memory_breaker_at_the_first_reading() -> None:
    bench = Bench()
    bench.see_memory(ROOM)
    assert bench.state("memory") is BreakerState.CLOSED
    bench.now = 1.5
    bench.see_memory(FULL_CARD)
    assert bench.state("memory") is BreakerState.OPEN
    assert bench.journal[-1] == {
        "kind": "breaker",
        "name": "memory",
        "was": "closed",
        "now": "open",
        "reason": "0.00 of 0 MiB free",
        "t": 1.5,
    }


# --- the ladder


def with_memory(**settings: object) -> Bench:
    """An open time of 6 s, without hurry."""
    return Bench(EngineConfig(breakers=breaker_configs(0.1), **settings), step_s=0.01)  # type: ignore[arg-type]


def test_while_memory_is_short_new_requests_get_the_light_model_and_old_ones_stay() -> None:
    bench = with_memory()
    bench.submit(a_request("before", max_tokens=20))
    bench.step(3)
    bench.see_memory(FULL_CARD)
    bench.submit(a_request("during"))
    bench.run()
    assert bench.outputs["during"][0] == Accepted("small", "light", pytest.approx(0.01))
    assert bench.end("before").rung == "full"  # type: ignore[union-attr]
    bench.check_answers()


def test_one_that_began_on_full_finishes_on_full_even_if_it_is_preempted_meanwhile() -> None:
    bench = tight("recompute")
    bench.step(4)
    assert bench.tokens("young")
    bench.see_memory(FULL_CARD)
    bench.run()
    assert bench.engine.counts.preemptions == 1
    assert bench.end("young").rung == "full"  # type: ignore[union-attr]
    bench.check_answers()


def test_one_that_had_no_token_yet_may_start_again_on_the_light_model() -> None:
    bench = Bench(EngineConfig(preemption="recompute", chunk_tokens=32), rungs=rung_specs(1, 1))
    bench.submit(a_request("old", range(150), max_tokens=60))
    bench.submit(a_request("young", range(9, 159), max_tokens=20))
    while not bench.engine.counts.preemptions:
        bench.step()
    assert bench.tokens("young") == []
    bench.see_memory(FULL_CARD)
    bench.step()
    assert bench.sequence("young").rung == "light"
    bench.run()
    bench.check_answers()


def test_fewer_run_at_once_while_the_memory_breaker_is_not_closed() -> None:
    bench = with_memory(max_running=8, max_running_throttled=3)
    bench.see_memory(FULL_CARD)
    bench.submit(*many(8, max_tokens=30))
    bench.step(3)
    assert len(bench.running()) == 3


def test_half_open_sends_one_request_to_the_full_model_and_its_success_brings_all_back() -> None:
    bench = with_memory()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    assert bench.state("memory") is BreakerState.HALF_OPEN
    bench.submit(*many(3))
    bench.step()
    assert [bench.sequence(f"r{n}").rung for n in range(3)] == ["full", "light", "light"]
    bench.run()
    assert bench.state("memory") is BreakerState.CLOSED
    bench.submit(a_request("after"))
    bench.run()
    assert bench.end("after").rung == "full"  # type: ignore[union-attr]
    bench.check_answers()


def test_a_request_that_finds_no_room_as_the_probe_runs_on_the_light_model_and_leaves_the_probe_to_others() -> (
    None
):
    bench = Bench(
        EngineConfig(breakers=breaker_configs(0.1), step_tokens=512, chunk_tokens=256), rungs=rung_specs(1, 1)
    )
    bench.submit(a_request("old", range(200), max_tokens=50))
    bench.step()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.submit(a_request("large", range(100)))
    bench.step()
    assert bench.sequence("large").rung == "light"
    assert bench.state("memory") is BreakerState.HALF_OPEN
    assert not bench.engine.breakers["memory"].probing
    bench.submit(a_request("small"))
    bench.step()
    assert bench.sequence("small").rung == "full"
    assert bench.engine.breakers["memory"].probing
    bench.run()
    assert bench.state("memory") is BreakerState.CLOSED
    bench.check_answers()


def test_one_that_finds_no_room_on_any_model_waits_without_the_probe() -> None:
    bench = Bench(
        EngineConfig(breakers=breaker_configs(0.1), step_tokens=512, chunk_tokens=256), rungs=rung_specs(1, 1)
    )
    bench.submit(
        a_request("old", range(200), max_tokens=50),
        a_request("light", range(200), max_tokens=50, model="small"),
    )
    bench.step()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.submit(a_request("large", range(100)))
    bench.step()
    assert (bench.waiting(), bench.sequence("large").rung) == (["large"], None)
    assert not bench.engine.breakers["memory"].probing


def test_an_allocation_that_fails_in_half_open_is_a_failed_probe() -> None:
    device = FakeCards(fails=lambda n: n > 2)
    bench = Bench(EngineConfig(breakers=breaker_configs(0.1)), device, rung_specs(1, 4))
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.engine.ladder.saw_out_of_memory(CardFull("no"), bench.now)
    assert bench.state("memory") is BreakerState.OPEN
    assert bench.journal[-1]["reason"] == "allocation failed: no"


def test_a_cancelled_probe_request_counts_as_failed() -> None:
    bench = with_memory()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.submit(a_request("probe", max_tokens=50))
    bench.step(3)
    bench.cancel("probe")
    assert bench.state("memory") is BreakerState.OPEN
    reasons = [e["reason"] for e in bench.journal if e["kind"] == "breaker"]
    assert reasons[-1] == "the probe request ended as cancelled"


def test_memory_that_is_short_again_ends_the_probe_and_its_request_still_finishes_on_full() -> None:
    bench = with_memory()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.submit(a_request("probe", max_tokens=50))
    bench.step(3)
    bench.see_memory(FULL_CARD)
    assert bench.state("memory") is BreakerState.OPEN
    bench.run()
    assert bench.end("probe").rung == "full"  # type: ignore[union-attr]
    assert bench.state("memory") is BreakerState.OPEN


def test_a_probe_request_that_hangs_is_given_up_and_its_late_success_closes_nothing() -> None:
    bench = with_memory()
    bench.see_memory(FULL_CARD)
    bench.now = 7.0
    bench.submit(a_request("probe", max_tokens=5))
    bench.step()
    bench.now = 17.5
    bench.run()
    assert bench.reason("probe") == "length"
    assert bench.state("memory") is BreakerState.OPEN


def test_without_the_countermeasure_memory_is_watched_and_nothing_is_downgraded() -> None:
    bench = with_memory(countermeasures=Countermeasures(vram=False))
    bench.see_memory(FULL_CARD)
    bench.submit(*many(3))
    bench.run()
    assert {bench.end(f"r{n}").rung for n in range(3)} == {"full"}  # type: ignore[union-attr]
    assert bench.state("memory") is BreakerState.OPEN
    bench.now += 6.0
    bench.see_memory(ROOM)  # with no request to try, a good reading is the probe
    assert bench.state("memory") is BreakerState.CLOSED


def test_without_a_light_model_everything_stays_on_full() -> None:
    bench = Bench(rungs=rung_specs(light=False))
    bench.see_memory(FULL_CARD)
    bench.submit(*many(3))
    bench.run()
    assert {bench.end(f"r{n}").model for n in range(3)} == {"big"}  # type: ignore[union-attr]


def test_the_light_model_asked_for_by_name_answers_whatever_the_breaker_says() -> None:
    bench = with_memory()
    bench.submit(a_request("sound", model="small"))
    bench.run()
    bench.see_memory(FULL_CARD)
    bench.now += 7.0
    bench.submit(a_request("trying", model="small"))
    bench.run()
    assert {bench.end(name).model for name in ("sound", "trying")} == {"small"}  # type: ignore[union-attr]
    assert bench.state("memory") is BreakerState.HALF_OPEN  # it was no probe
    bench.check_answers()


def test_the_full_model_asked_for_by_name_is_what_answers_while_memory_is_sound() -> None:
    bench = Bench()
    bench.submit(a_request(model="big"))
    bench.run()
    assert bench.end("r").model == "big"  # type: ignore[union-attr]


# --- its own record


def test_the_journal_has_each_request_once_in_and_once_out_by_the_clients_id() -> None:
    bench = Bench(EngineConfig(max_running=2))
    bench.submit(*(a_request(f"e{n}", client_id=f"c{n}") for n in range(4)))
    bench.step()
    bench.cancel("e3")
    bench.run()
    for event in ("admitted", "terminal"):
        assert sorted(e["id"] for e in bench.journal if e.get("event") == event) == ["c0", "c1", "c2", "c3"]
    reasons = {e["id"]: e["reason"] for e in bench.journal if e.get("event") == "terminal"}
    assert reasons == {"c0": "length", "c1": "length", "c2": "length", "c3": "cancelled"}


def test_the_counters_add_up() -> None:
    bench = Bench()
    bench.submit(*many(3, max_tokens=5))
    bench.run()
    counts = bench.engine.counts
    assert counts.computed_tokens == 3 * (3 + 4)  # the last token of each is never computed
    assert counts.computed_kv_bytes == counts.direct_bytes == 21 * KV_BYTES
    assert counts.staged_bytes == 0


def test_steps_and_their_time_are_counted_by_how_many_were_computed_together() -> None:
    bench = Bench(step_s=0.5)
    bench.submit(a_request("a", max_tokens=4))
    bench.step(2)
    bench.submit(a_request("b", max_tokens=4))
    bench.run()
    assert bench.engine.counts.batch_steps == {1: 4, 2: 2}
    assert bench.engine.counts.batch_seconds == {1: 2.0, 2: 1.0}


def test_a_step_is_throttled_if_only_the_lowered_limit_kept_a_request_waiting() -> None:
    bench = with_memory(max_running=8, max_running_throttled=2)
    bench.submit(*many(3, max_tokens=30))
    bench.step(5)
    assert bench.engine.counts.throttled_steps == 0
    bench.see_memory(FULL_CARD)
    bench.step(5)  # nobody waits
    assert bench.engine.counts.throttled_steps == 0
    bench.submit(a_request("late"))
    bench.step(5)
    assert bench.engine.counts.throttled_steps == 5
    assert bench.waiting() == ["late"]


def test_a_step_is_not_throttled_if_the_request_would_wait_anyway() -> None:
    bench = with_memory(max_running=3, max_running_throttled=2)
    bench.submit(*many(3, max_tokens=30))
    bench.step()
    bench.see_memory(FULL_CARD)
    bench.submit(a_request("late"))
    bench.step(5)
    assert bench.engine.counts.throttled_steps == 0


def test_whoever_is_left_at_the_end_hears_why() -> None:
    bench = Bench(EngineConfig(max_running=1))
    bench.submit(*many(2))
    bench.step(2)
    bench.engine.end_all("going home", bench.now)
    bench._deliver()
    assert [(bench.reason(f"r{n}"), bench.end(f"r{n}").message) for n in range(2)] == [  # type: ignore[union-attr]
        ("cancelled", "going home")
    ] * 2
    bench.check_all_given_back()


def test_closing_ends_what_is_left_and_says_how_many_blocks_had_leaked() -> None:
    bench = Bench()
    bench.submit(*many(3))
    bench.step(2)
    pool = bench.engine.pools["full"]
    pool.allocate()
    assert bench.engine.close() == 1
    bench._deliver()
    assert {bench.reason(f"r{n}") for n in range(3)} == {"cancelled"}
    assert not bench.device.live
