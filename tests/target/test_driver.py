"""The threads around the engine: outputs reach who asked, and nothing that breaks takes the service along."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import pytest

from target import driver as driver_module
from target.api.service import Health
from target.breaker import BreakerState
from target.config import EngineConfig
from target.device import Headroom
from target.driver import Driver
from target.engine import Engine
from target.exposition import Exposition
from target.measures import Measures
from target.plan import LinkWatch, Outcome, Plan
from target.request import Accepted, Finished, GenerationRequest, Output, Rejected, Token
from target.service import LocalService
from tests.target.engine_builders import (
    FULL_CARD,
    FakeCards,
    HashRunner,
    a_request,
    decode,
    oracle,
    rung_specs,
)


@dataclass
class GatedRunner:
    """The hash model, which can be held within a step, or made to raise."""

    inner: HashRunner
    gate: threading.Event = field(default_factory=threading.Event)
    inside: threading.Event = field(default_factory=threading.Event)
    free_steps: int | None = None  # so many more before the gate falls shut
    dies_on: Callable[[Plan], bool] = lambda _: False

    def execute(self, plan: Plan, watch: LinkWatch) -> Outcome:
        if self.free_steps == 0:
            self.gate.clear()
            self.inside.set()
        if self.free_steps is not None:
            self.free_steps -= 1
        assert self.gate.wait(20)
        if self.dies_on(plan):
            raise ValueError("poison")
        return self.inner.execute(plan, watch)

    def forget(self, sequence_id: str) -> None:
        self.inner.forget(sequence_id)

    def reset(self) -> None:
        self.inner.reset()


class Rig:
    """A driver that runs."""

    def __init__(
        self, config: EngineConfig | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.device = FakeCards()
        self.runner = GatedRunner(HashRunner(self.device))
        self.runner.gate.set()
        self.engine = Engine(config or EngineConfig(), self.device, rung_specs(), decode, frozenset())
        self.observed: list[tuple[str, Output]] = []
        self.driver = Driver(
            self.engine,
            self.runner,
            self.device,
            lambda name, out, _: self.observed.append((name, out)),
            clock,
            load_weights=lambda: self.device.alloc(1, "weights"),
        )

    def hold(self, after: int = 0) -> None:
        """The next step but so many stays under way until `release`."""
        self.runner.free_steps = after

    def release(self) -> None:
        self.runner.free_steps = None
        self.runner.gate.set()

    async def inside(self) -> None:
        """A step is under way."""
        await until(self.runner.inside.is_set)

    async def answer(self, request: GenerationRequest) -> list[Output]:
        return [output async for output in self.driver.submit(request)]


@contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    rig.driver.start()
    try:
        yield rig
    finally:
        rig.release()
        rig.driver.stop()


async def until(true: Callable[[], bool]) -> None:
    """Wait, up to five seconds, for something to become true."""
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end, "it did not come true within 5 s"
        await asyncio.sleep(0.002)


def play(rig: Rig, what: Callable[[Rig], Awaitable[object]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(what(rig), 20)  # type: ignore[arg-type]

    with running(rig):
        asyncio.run(within())


async def first(outputs: AsyncGenerator[Output, None]) -> Output:
    return await anext(outputs)


def test_each_who_asks_gets_the_own_outputs_in_order() -> None:
    async def what(rig: Rig) -> None:
        asked = [a_request(f"r{n}", (n, n + 1)) for n in range(6)]
        answers = await asyncio.gather(*(rig.answer(request) for request in asked))
        for request, outputs in zip(asked, answers, strict=True):
            assert isinstance(outputs[0], Accepted)
            tokens = [o.token_id for o in outputs if isinstance(o, Token)]
            assert tokens == oracle(request.prompt_ids, 8)
            assert outputs[-1] == Finished("length", 2, 8, "big", "full")
        rig.driver.look(lambda: None)  # what is delivered under the lock is observed under it
        for request, outputs in zip(asked, answers, strict=True):
            assert [o for name, o in rig.observed if name == request.id] == outputs

    play(Rig(), what)


def test_a_refusal_is_the_only_output() -> None:
    async def what(rig: Rig) -> None:
        (output,) = await rig.answer(a_request(model="huge"))
        assert isinstance(output, Rejected)
        assert output.status == 404
        assert rig.driver.look(lambda: rig.observed) == [("r", output)]

    play(Rig(), what)


def test_a_full_queue_is_answered_while_a_step_computes_no_later_than_after_it() -> None:
    async def what(rig: Rig) -> None:
        rig.hold()
        running_one = asyncio.create_task(rig.answer(a_request("a")))
        await rig.inside()
        queued = [asyncio.create_task(rig.answer(a_request(f"q{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        rig.release()
        ends = [outputs[-1] for outputs in await asyncio.gather(running_one, *queued)]
        assert [isinstance(end, Rejected) for end in ends].count(True) >= 1

    play(Rig(EngineConfig(max_queue=1, max_running=1)), what)


def test_a_step_that_raises_fails_its_own_requests_and_the_loop_lives_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def what(rig: Rig) -> None:
        rig.runner.dies_on = lambda plan: any(work.sequence.id == "poison" for work in plan.works())
        outputs = await rig.answer(a_request("poison"))
        assert outputs == [Finished("failed", 3, 0, "big", "full", "ValueError: poison")]
        assert (await rig.answer(a_request("next")))[-1] == Finished("length", 3, 8, "big", "full")

    play(Rig(), what)
    assert "the step loop stumbled" in caplog.text


def test_metrics_that_fail_do_not_stop_what_they_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def what(rig: Rig) -> None:
        def fails(*_: object) -> None:
            raise RuntimeError("no metrics today")

        rig.driver._observe = fails
        assert isinstance((await rig.answer(a_request()))[-1], Finished)

    play(Rig(), what)
    assert "could not be measured" in caplog.text


def test_closing_the_iterator_cancels_the_request_and_frees_its_blocks() -> None:
    async def what(rig: Rig) -> None:
        rig.hold(after=1)
        async with aclosing(rig.driver.submit(a_request(max_tokens=200))) as outputs:
            await anext(outputs)
            await anext(outputs)
            await rig.inside()
        rig.release()
        await until(lambda: rig.driver.look(lambda: rig.engine.is_idle))
        assert rig.observed[-1][1].reason == "cancelled"  # type: ignore[union-attr]
        assert rig.engine.pools["full"].held == 0

    play(Rig(), what)


def test_a_client_that_leaves_while_it_waits_is_cancelled_too() -> None:
    async def what(rig: Rig) -> None:
        rig.hold()
        blocker = asyncio.create_task(rig.answer(a_request("a")))
        await rig.inside()
        waiting = asyncio.create_task(rig.answer(a_request("b")))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        rig.release()
        await blocker
        await until(lambda: ("b", "cancelled") in [(n, getattr(o, "reason", "")) for n, o in rig.observed])
        assert not [o for name, o in rig.observed if name == "b" and isinstance(o, Token)]

    play(Rig(EngineConfig(max_running=1)), what)


def test_short_memory_opens_the_breaker_while_a_step_computes() -> None:
    async def what(rig: Rig) -> None:
        rig.hold()
        answer = asyncio.create_task(rig.answer(a_request()))
        await rig.inside()
        rig.device.room = FULL_CARD
        memory = rig.engine.breakers["memory"]
        await until(lambda: rig.driver.look(lambda: memory.state(time.monotonic())) is BreakerState.OPEN)
        assert not answer.done()
        rig.release()
        assert (await answer)[-1] == Finished("length", 3, 8, "big", "full")

    play(Rig(), what)


def test_the_memory_watch_goes_on_whatever_the_engine_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def what(rig: Rig) -> None:
        sound = rig.engine.observe_memory
        calls: list[float] = []

        def fails(headroom: Headroom, now: float) -> None:
            calls.append(now)
            raise RuntimeError("a bug")

        rig.engine.observe_memory = fails  # type: ignore[method-assign]
        await until(lambda: len(calls) >= 3)
        rig.engine.observe_memory = sound  # type: ignore[method-assign]
        rig.device.room = FULL_CARD
        memory = rig.engine.breakers["memory"]
        await until(lambda: rig.driver.look(lambda: memory.state(time.monotonic())) is BreakerState.OPEN)

    play(Rig(), what)
    assert caplog.text.count("could not be watched") == 1  # not fifty times a second


def test_a_service_that_no_longer_sees_its_cards_says_so_though_it_steps() -> None:
    times = [100.0]

    async def what(rig: Rig) -> None:
        exposition = Exposition(["big", "small"], list(rig.engine.breakers), 16)
        measures = Measures(exposition, lambda: rig.engine)
        service = LocalService(rig.driver, None, measures)  # type: ignore[arg-type]
        assert service.health() == Health(True, 0.0)
        assert service.ready() == (True, "")
        sound = rig.device.headroom
        rig.device.headroom = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        await asyncio.sleep(3 * driver_module.MEMORY_INTERVAL_S)
        times[0] += 7.5
        await until(lambda: rig.driver.step_age_s() == 0)
        assert service.health() == Health(False, 0.0, "the cards' memory is not being watched")
        assert service.ready() == (False, "the cards' memory is not being watched")
        rig.device.headroom = sound  # type: ignore[method-assign]
        await until(lambda: service.health().stepping)

    play(Rig(clock=lambda: times[0]), what)


def test_the_time_of_a_step_is_counted_with_its_batch() -> None:
    async def what(rig: Rig) -> None:
        await rig.answer(a_request(max_tokens=3))
        counts = rig.engine.counts
        await until(lambda: rig.driver.look(lambda: counts.batch_steps) == {1: 3})
        assert 0 < counts.batch_seconds[1] < 5

    play(Rig(), what)


def test_ending_all_ends_those_that_run_and_those_that_wait_and_says_why() -> None:
    async def what(rig: Rig) -> None:
        rig.hold()
        answers = [asyncio.create_task(rig.answer(a_request(name, max_tokens=200))) for name in "ab"]
        await rig.inside()
        await asyncio.sleep(0.01)
        rig.driver.end_all("enough")
        rig.release()
        ends = [outputs[-1] for outputs in await asyncio.gather(*answers)]
        assert [(end.reason, end.message) for end in ends] == [("cancelled", "enough")] * 2  # type: ignore[union-attr]

    play(Rig(EngineConfig(max_running=1)), what)


def test_the_age_of_the_step_grows_while_it_hangs_and_falls_when_it_goes_on() -> None:
    times = [100.0]

    async def what(rig: Rig) -> None:
        rig.hold()
        answer = asyncio.create_task(rig.answer(a_request()))
        await rig.inside()
        times[0] += 7.5
        assert rig.driver.step_age_s() == 7.5
        rig.release()
        await answer
        await until(lambda: rig.driver.step_age_s() == 0)

    play(Rig(clock=lambda: times[0]), what)


def test_lost_cards_fail_what_ran_refuse_what_comes_and_serve_again_when_they_are_back() -> None:
    async def what(rig: Rig) -> None:
        before = await rig.answer(a_request("before", max_tokens=3))
        rig.device.lost = True
        (*_, end) = await rig.answer(a_request("amid", max_tokens=3))
        assert isinstance(end, Finished)
        assert end.reason == "failed"
        assert "GPU 2 is lost" in end.message
        await until(lambda: "GPU 2 is lost" in rig.driver.down)
        (refusal,) = await rig.answer(a_request("while down"))
        assert isinstance(refusal, Rejected)
        assert (refusal.status, refusal.code) == (503, "engine_down")
        await until(lambda: rig.device.reopened >= 2)  # it goes on trying
        rig.device.lost = False
        await until(lambda: not rig.driver.down)
        after = await rig.answer(a_request("after", max_tokens=3))
        assert [type(output) for output in after] == [type(output) for output in before]
        for pool in rig.engine.pools.values():
            pool.check_integrity()

    rig = Rig()
    play(rig, what)
    assert rig.engine.close() == 0


def test_whatever_goes_wrong_on_the_way_back_the_engine_tries_again() -> None:
    async def what(rig: Rig) -> None:
        rig.device.lost = True
        await rig.answer(a_request("amid", max_tokens=3))
        rig.device.lost, rig.device.reopens = False, [FileNotFoundError("no node"), RuntimeError("64 owners")]
        await until(lambda: not rig.driver.down and not rig.device.reopens)
        assert isinstance((await rig.answer(a_request("after")))[-1], Finished)

    play(Rig(), what)


def test_cards_lost_while_a_step_is_planned_are_no_end_either() -> None:
    async def what(rig: Rig) -> None:
        rig.device.lost = True
        asked = [a_request(name, tuple(range(80)) * 2, max_tokens=3) for name in ("a", "b")]
        for *_, end in await asyncio.gather(*map(rig.answer, asked)):
            assert isinstance(end, Finished)
            assert (end.reason, "GPU 2 is lost" in end.message) == ("failed", True)
        rig.device.lost = False
        await until(lambda: not rig.driver.down)
        assert isinstance((await rig.answer(a_request("after")))[-1], Finished)

    play(Rig(), what)


def test_the_loop_goes_round_with_nothing_to_compute() -> None:
    async def what(rig: Rig) -> None:
        seen = rig.driver._beat_s
        await until(lambda: rig.driver._beat_s > seen)

    play(Rig(), what)


def test_a_staged_copy_is_taken_in_though_no_request_is_left() -> None:
    async def what(rig: Rig) -> None:
        rig.device.copy_looks = 3
        for _ in range(4):
            rig.engine.breakers["pcie"].record(False, time.monotonic(), "forced")
        await rig.answer(a_request(prompt=range(64), max_tokens=2))
        await until(lambda: rig.engine.pools["full"].held == 0)
        assert rig.device.staged

    play(Rig(), what)


def test_stopping_ends_every_request_and_gives_everything_back() -> None:
    rig = Rig()

    async def what() -> None:
        rig.driver.start()
        rig.hold()
        started = asyncio.create_task(rig.answer(a_request("started", max_tokens=200)))
        await rig.inside()
        posted = asyncio.create_task(rig.answer(a_request("posted")))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(asyncio.to_thread(rig.driver.stop))
        await until(rig.driver._stop.is_set)
        rig.release()
        assert await stopping == 0
        for answer in (started, posted):
            assert (await asyncio.wait_for(answer, 5))[-1].reason == "cancelled"  # type: ignore[union-attr]
        (late,) = await asyncio.wait_for(rig.answer(a_request("late")), 5)
        assert late == Rejected(503, "stopping", "the service is stopping", None)

    asyncio.run(what())
    assert not rig.device.live
    assert not rig.runner.inner.host
    assert not [t for t in threading.enumerate() if t.name in ("engine", "memory-watch")]


def test_stopping_says_how_many_blocks_had_leaked() -> None:
    rig = Rig()
    rig.driver.start()
    rig.driver.look(lambda: [rig.engine.pools["full"].allocate() for _ in range(2)])
    assert rig.driver.stop() == 2


def test_outputs_for_a_closed_event_loop_are_dropped() -> None:
    rig = Rig()
    with running(rig):
        rig.hold()

        async def asks_and_goes() -> None:
            outputs = rig.driver.submit(a_request())
            asking = asyncio.create_task(first(outputs))
            await rig.inside()
            asking.cancel()

        asyncio.run(asks_and_goes())
        rig.release()
        asyncio.run(asyncio.wait_for(rig.answer(a_request("next")), 5))


def test_the_intervals_are_short_enough_for_the_promises_made() -> None:
    assert driver_module.MEMORY_INTERVAL_S <= 0.05
    assert driver_module.STALLED_S <= 5.0
