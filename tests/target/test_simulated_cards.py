"""The service's side of a simulated node: kernels that slow down with the card, and errors as torch raises them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from faults.gpu.levers import LeverKind
from faults.gpu.links import ENDLESS
from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode
from target.device import Bound
from target.models.simulated_cards import SimulatedCards


class Clock:
    """Time passes only when somebody sleeps, or a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(tmp_path: Path, clock: Clock) -> Iterator[SimNode]:
    with SimNode.create(tmp_path / "node", cards=2, clock=clock, sleep=clock.sleep) as node:
        yield node


@pytest.fixture
def cards(node: SimNode, clock: Clock) -> Iterator[SimulatedCards]:
    cards = SimulatedCards(partial(SimNode.attach, node.path, clock=clock, sleep=clock.sleep))
    yield cards
    cards.close()


def took(cards: SimulatedCards, clock: Clock, bound: Bound, host_s: float = 0.1) -> float:
    """Seconds from the start of a kernel that keeps the host busy for `host_s` to its end on the slowest card."""
    began = clock.now
    kernel = cards.start_kernel(bound)
    clock.now += host_s
    kernel.finish(host_s)
    return clock.now - began


def test_on_whole_cards_a_kernel_takes_as_long_as_the_host(cards: SimulatedCards, clock: Clock) -> None:
    assert took(cards, clock, "compute") == pytest.approx(0.1, abs=1e-9)
    assert took(cards, clock, "memory") == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("share", [0.8, 0.5, 0.25])
def test_compute_slows_down_with_the_sm_clock_and_memory_bound_work_does_not(
    node: SimNode, cards: SimulatedCards, clock: Clock, share: float
) -> None:
    node.keep(LeverKind.SM_CLOCK_MHZ, [1], share * node.profile.sm_clock_mhz)
    assert took(cards, clock, "compute") == pytest.approx(0.1 / share, rel=1e-3)
    assert took(cards, clock, "memory") == pytest.approx(0.1, rel=1e-3)


def test_memory_bound_work_slows_down_with_the_memory_clock(
    node: SimNode, cards: SimulatedCards, clock: Clock
) -> None:
    node.keep(LeverKind.MEM_CLOCK_MHZ, [0], node.profile.mem_clock_mhz / 2)
    assert took(cards, clock, "memory") == pytest.approx(0.2, rel=1e-3)
    assert took(cards, clock, "compute") == pytest.approx(0.1, rel=1e-3)


def test_a_neighbour_that_computes_takes_its_share(
    node: SimNode, cards: SimulatedCards, clock: Clock
) -> None:
    node.start([("sm:0", ENDLESS)] * 3)
    assert took(cards, clock, "compute") == pytest.approx(0.4, rel=1e-3)


def test_one_straggler_is_waited_for(node: SimNode, cards: SimulatedCards, clock: Clock) -> None:
    node.keep(LeverKind.SLOW_FACTOR, [1], 0.2)
    assert node.card(1).sm_clock_mhz == node.card(1).sm_clock_max_mhz
    assert took(cards, clock, "compute") == pytest.approx(0.5, rel=1e-3)


def test_what_the_cards_do_shows_in_their_use_and_power(
    node: SimNode, cards: SimulatedCards, clock: Clock
) -> None:
    node.tick()
    took(cards, clock, "memory", 0.6)
    clock.now += 0.4
    node.tick()
    shown = node.card(0)
    assert shown.gpu_util_percent == pytest.approx(60, abs=1)
    assert shown.mem_util_percent == pytest.approx(60, abs=1)
    assert shown.power_w == pytest.approx(70 + 0.6 * 630, rel=0.02)


CALLS: dict[str, Callable[[SimulatedCards], object]] = {
    "alloc": lambda cards: cards.alloc(MIB, "kv"),
    "copy": lambda cards: cards.copy("h2d", 100),
    "start_copy": lambda cards: cards.start_copy("d2h", 100),
    "exchange": lambda cards: cards.exchange([(0, 1, 100.0)]),
    "start_kernel": lambda cards: cards.start_kernel("compute"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lost_card_fails_every_call_as_torch_does_until_it_is_back(
    node: SimNode, cards: SimulatedCards, call: str
) -> None:
    lost = node.keep(LeverKind.LOST, [1], 1)
    with pytest.raises(torch.AcceleratorError, match="GPU 1 is lost"):
        CALLS[call](cards)
    node.let_go(lost)
    CALLS[call](cards)


def test_a_copy_under_way_to_a_card_that_is_lost_fails(
    node: SimNode, cards: SimulatedCards, clock: Clock
) -> None:
    copy = cards.start_copy("h2d", MIB)
    node.keep(LeverKind.LOST, [0], 1)
    clock.now += 1
    with pytest.raises(torch.AcceleratorError, match="GPU 0 is lost"):
        copy.readings()


def test_a_broken_context_fails_every_call_until_it_is_opened_anew(
    node: SimNode, cards: SimulatedCards, clock: Clock
) -> None:
    held = cards.alloc(MIB, "kv")
    with SimNode.attach(node.path, clock=clock, sleep=clock.sleep) as other:
        other.break_context(next(iter(other.memory(0).used_by)), 700)
    for call in CALLS.values():
        with pytest.raises(torch.AcceleratorError, match="700: an illegal memory access was encountered"):
            call(cards)
    cards.free(held)
    cards.reopen()
    for call in CALLS.values():
        call(cards)


def test_opened_anew_nothing_of_before_is_held(node: SimNode, cards: SimulatedCards) -> None:
    cards.alloc(5 * MIB, "weights")
    cards.reopen()
    assert node.memory(0).free_bytes == node.memory(0).total_bytes


def test_a_refused_allocation_is_torchs_out_of_memory(node: SimNode, cards: SimulatedCards) -> None:
    node.keep(LeverKind.ALLOC_LIMIT_BYTES, [0], 2 * MIB)
    cards.alloc(MIB, "small")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2.00 MiB. GPU 0"):
        cards.alloc(2 * MIB, "large")
    assert (node.card(0).refused_allocs, node.card(1).refused_allocs) == (1, 0)


def test_a_thread_that_waits_for_a_handle_which_is_then_closed_touches_nobody_elses_lock(
    node: SimNode,
) -> None:
    with SimNode.attach(node.path) as old:
        old._file.writing._threads.acquire()  # another thread is writing
        late = threading.Thread(target=lambda: outcome.append(raised(old.tick)))
        outcome: list[str] = []
        late.start()
        time.sleep(0.05)
        old._file.writing._ended = True  # and closes the handle
        old._file.writing._threads.release()
        late.join(5)
    assert outcome == ["NodeClosed"]


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def test_cards_may_be_looked_at_while_they_are_opened_anew(node: SimNode, cards: SimulatedCards) -> None:
    over, failures = threading.Event(), []

    def look() -> None:
        while not over.is_set():
            if (what := raised(cards.headroom)) not in ("nothing", "NodeClosed", "ValueError"):
                failures.append(what)

    watch = threading.Thread(target=look)
    watch.start()
    for _ in range(200):
        cards.reopen()
        cards.alloc(MIB, "weights")
    over.set()
    watch.join(5)
    assert failures == []
    assert node.memory(0).used_by == {os.getpid(): MIB}


def test_over_a_switch_the_parts_of_an_exchange_are_no_neighbours_of_each_other(tmp_path: Path) -> None:
    """Three peers want a card's part: its way up carries three times as much, and is no less healthy for it."""
    clock = Clock()
    path = tmp_path / "switched"
    with SimNode.create(path, cards=4, topology="nvswitch", clock=clock, sleep=clock.sleep) as node:
        cards = SimulatedCards(partial(SimNode.attach, path, clock=clock, sleep=clock.sleep))
        everybody = [(a, b, 960.0) for a in range(4) for b in range(4) if a != b]
        readings = cards.exchange(everybody)
        cards.close()
        assert len(readings) == 8
        assert [reading.health for reading in readings] == pytest.approx([1.0] * 8)
        assert sum(reading.nbytes for reading in readings) == 2 * 12 * 960
        assert node.link("nvlink:0>switch").bytes_total == pytest.approx(3 * 960)
