"""Several owners do as they like on one node, which must do as its model does, step by step."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from faults.gpu import sanity
from faults.gpu.broken import DeviceLost
from faults.gpu.levers import Lever, LeverKind
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.sim import SimNode
from faults.gpu.simmemory import Allocation
from faults.gpu.telemetry import Throttle
from faults.gpu.transfer import Transfer
from tests.faults.node_model import CARDS, LINKS, NAMES, PAGE, PAGES, Copy, Kept, Model, Run

OWNERS = 3
picks = st.integers(0, 10**6)
LEVERS = {
    LeverKind.SM_CLOCK_MHZ: st.sampled_from([210.0, 990.0, 1500.0]),
    LeverKind.MEM_CLOCK_MHZ: st.sampled_from([810.0, 1593.0]),
    LeverKind.POWER_CAP_W: st.sampled_from([200.0, 450.0]),
    LeverKind.POWER_BRAKE: st.just(1.0),
    LeverKind.SLOW_FACTOR: st.floats(0.1, 1),
    LeverKind.PCIE_GEN: st.sampled_from([1.0, 3.0, 4.0]),
    LeverKind.PCIE_WIDTH: st.sampled_from([1.0, 8.0]),
    LeverKind.PCIE_LOSS: st.floats(0, 0.9),
    LeverKind.NVLINKS_DOWN: st.integers(0, 18).map(float),
    LeverKind.NVLINK_LOSS: st.floats(0, 0.9),
    LeverKind.ABSENT: st.just(1.0),
    LeverKind.LOST: st.just(1.0),
    LeverKind.ALLOC_LIMIT_BYTES: st.integers(PAGE, 100 * PAGE).map(float),
}
sizes = {  # what takes less than the clock can tell is over at once, and no model need know
    True: st.one_of(*[st.integers(1, 100_000).map(float)] * 5, st.sampled_from([0.0, math.inf])),  # bytes
    False: st.one_of(
        *[st.integers(1, 10_000).map(lambda us: us / 1e6)] * 5, st.sampled_from([0.0, math.inf])
    ),
}


class Clock:
    """Stands still until told, or until somebody sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


class TwoCards(RuleBasedStateMachine):
    """A node, its model, and what its owners hold of both."""

    steps = 0  # of all examples so far

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.clock = Path(tempfile.mkdtemp()), Clock()
        self.path = self.folder / "node"
        self.node = SimNode.create(self.path, cards=CARDS, clock=self.clock, sleep=self.clock.sleep)
        self.model = Model(self.clock.now)
        self.owners = {number: self._attached() for number in range(OWNERS)}
        self.next_owner = OWNERS
        self.held: list[tuple[int, Allocation, Run]] = []
        self.copies: list[tuple[int, Transfer, list[Copy]]] = []
        self.levers: list[tuple[int, Lever, Kept]] = []
        self.taken = self.since_gone = 0
        self.before: sanity.Reading | None = None

    def teardown(self) -> None:
        for owner in self.owners.values():
            owner.close()
        for card in range(CARDS):
            assert self.node.memory(card).free_bytes == PAGES * PAGE
        for name in self.node.links():
            link = self.node.link(name)
            assert (link.flows, link.capacity_bytes_per_s) == (0, LINKS[name][0])
        self.node.close()
        shutil.rmtree(self.folder)

    @initialize(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    def choose(self, names: list[str]) -> None:
        """Only some links are used, so that flows meet."""
        self.busy = names

    @rule(pick=picks, card=st.integers(0, CARDS - 1), nbytes=st.integers(1, 300 * PAGE))
    def alloc(self, pick: int, card: int, nbytes: int) -> None:
        number, owner = self._owner(pick)
        if self.model.is_on(LeverKind.LOST, card):
            with pytest.raises(DeviceLost):
                owner.alloc(card, nbytes)
        elif self.model.refuses(card, nbytes) or self.model.place(card, nbytes) is None:
            with pytest.raises(DeviceOutOfMemory) as raised:
                owner.alloc(card, nbytes)
            assert raised.value.free_bytes == self.model.free(card)
        else:
            allocation = owner.alloc(card, nbytes)
            run = self.model.take(number, card, nbytes)
            assert (allocation.first_page, allocation.pages) == (run.first, run.pages)
            self.held.append((number, allocation, run))

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def free(self, pick: int) -> None:
        number, allocation, run = self.held.pop(pick % len(self.held))
        self.owners[number].free(allocation)
        self.model.runs.remove(run)

    @precondition(lambda self: len(self.copies) < 20)
    @rule(pick=picks, places=st.lists(picks, min_size=1, max_size=3), data=st.data())
    def start(self, pick: int, places: list[int], data: st.DataObject) -> None:
        number, owner = self._owner(pick)
        names = [self.busy[place % len(self.busy)] for place in places]
        flows = [(name, data.draw(sizes[name.startswith(("pcie", "nvlink"))])) for name in names]
        if any(self.model.is_on(LeverKind.LOST, card) for name in names for card in LINKS[name][2]):
            with pytest.raises(DeviceLost):
                owner.start(flows)
        else:
            transfer = owner.start(flows)
            self.copies.append((number, transfer, [self.model.start(number, *flow) for flow in flows]))

    @precondition(lambda self: self.copies)
    @rule(pick=picks)
    def look(self, pick: int) -> None:
        """Whether a transfer is done, and how long it took if it is."""
        place = pick % len(self.copies)
        _, transfer, copies = self.copies[place]
        self.model.pass_time(self.clock.now)
        arrives = max(copy.arrives for copy in copies)
        if math.isclose(arrives, self.clock.now, abs_tol=1e-9):
            return  # too close to say
        try:
            done = transfer.done()
        except DeviceLost:
            assert any(self.model.is_on(LeverKind.LOST, card) for card in range(CARDS))
            return
        assert done == (arrives <= self.clock.now)
        if done:
            took = [copy.arrives - copy.began for copy in copies]
            assert [timing.elapsed_s for timing in transfer.timings] == pytest.approx(
                took, rel=1e-6, abs=1e-9
            )
            self._forget(place)

    @precondition(lambda self: self.copies)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        place = pick % len(self.copies)
        number, transfer, _ = self.copies[place]
        self.owners[number].cancel(transfer)
        self._forget(place)

    @precondition(lambda self: len(self.levers) < 12)
    @rule(pick=picks, kind=st.sampled_from(list(LEVERS)), card=st.integers(0, CARDS - 1), data=st.data())
    def keep(self, pick: int, kind: LeverKind, card: int, data: st.DataObject) -> None:
        number, owner = self._owner(pick)
        value = data.draw(LEVERS[kind])
        self._kept(number, owner.keep(kind, [card], value))

    @precondition(lambda self: len(self.levers) < 12)
    @rule(
        pick=picks, names=st.sets(st.sampled_from(NAMES), min_size=1, max_size=4), factor=st.floats(0.05, 1)
    )
    def degrade(self, pick: int, names: set[str], factor: float) -> None:
        number, owner = self._owner(pick)
        self._kept(number, owner.degrade(sorted(names), factor))

    @precondition(lambda self: self.levers)
    @rule(pick=picks, twice=st.booleans())
    def let_go(self, pick: int, twice: bool) -> None:
        number, lever, kept = self.levers.pop(pick % len(self.levers))
        for _ in range(1 + twice):
            self.owners[number].let_go(lever)
        self.model.kept.remove(kept)

    @rule(us=st.integers(0, 5_000))
    def a_moment_passes(self, us: int) -> None:
        self._pass(us / 1e6)

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @precondition(lambda self: self.since_gone > 8)  # or nobody ever holds much
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """An owner lets go of all it has; another comes."""
        number, owner = self._owner(pick)
        owner.close()
        self._is_gone(number)

    @precondition(lambda self: self.since_gone > 8)
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        """An owner is gone without a word. (Its slot is made to look like a dead process's.)"""
        number, owner = self._owner(pick)
        if slot := owner._owners.mine:
            self.node._file.q[self.node._file.layout.owner_starts + slot - 1] -= 1
            assert self.node.reclaim() == 1
        owner._file.close()
        self._is_gone(number)

    @invariant()
    def a_writer_that_is_cut_off_changes_nothing(self) -> None:
        """One is interrupted, every other step, before it has written anything; the next one mends."""
        self.taken += 1
        if self.taken % 2:
            with suppress(KeyboardInterrupt), self.node._file.writing:
                raise KeyboardInterrupt
            assert self.node.reclaim() == 0

    @invariant()
    def memory_is_as_modelled(self) -> None:
        for card in range(CARDS):
            memory = self.node.memory(card)
            assert memory.free_bytes == self.model.free(card)
            assert memory.largest_free_bytes == self.model.largest(card)
            assert sum(memory.used_by.values()) == PAGES * PAGE - self.model.free(card)

    @invariant()
    def links_are_as_modelled(self) -> None:
        for name in NAMES:
            link = self.node.link(name)
            assert link.capacity_bytes_per_s == pytest.approx(self.model.capacity(name), rel=1e-9, abs=1e-12)
            assert link.bytes_total == pytest.approx(self.model.total[name], rel=1e-6, abs=1e-6)
            ours = sum(moved for (link_, _), moved in self.model.moved.items() if link_ == name)
            assert link.bytes_by.get(os.getpid(), 0.0) == pytest.approx(ours, rel=1e-6, abs=1e-6)

    @invariant()
    def cards_are_as_modelled(self) -> None:
        for card in range(CARDS):
            info = self.node.card(card)
            assert info.sm_clock_mhz == pytest.approx(self.model.sm_mhz(card))
            assert info.mem_clock_mhz == self.model.mem_mhz(card)
            assert bool(info.lost) == self.model.is_on(LeverKind.LOST, card)
            capped = bool(int(info.throttle) & Throttle.SW_POWER_CAP)
            assert not capped or self.model.is_on(LeverKind.POWER_CAP_W, card)

    @invariant()
    def readings_make_sense(self) -> None:
        type(self).steps += 1
        self.since_gone += 1
        reading = sanity.take(self.node)
        before, self.before = self.before, reading
        assert sanity.findings([reading] if before is None else [before, reading]) == []

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        self.model.pass_time(self.clock.now)

    def _attached(self) -> SimNode:
        return SimNode.attach(self.path, clock=self.clock, sleep=self.clock.sleep)

    def _owner(self, pick: int) -> tuple[int, SimNode]:
        number = sorted(self.owners)[pick % len(self.owners)]
        return number, self.owners[number]

    def _kept(self, number: int, lever: Lever) -> None:
        kept = Kept(number, lever.kind, lever.targets, lever.value)
        self.model.kept.append(kept)
        self.levers.append((number, lever, kept))

    def _forget(self, place: int) -> None:
        for copy in self.copies.pop(place)[2]:
            self.model.copies.remove(copy)

    def _is_gone(self, number: int) -> None:
        self.model.gone(number)
        self.held = [each for each in self.held if each[0] != number]
        self.copies = [each for each in self.copies if each[0] != number]
        self.levers = [each for each in self.levers if each[0] != number]
        del self.owners[number]
        self.owners[self.next_owner] = self._attached()
        self.next_owner += 1
        self.since_gone = 0
        self.before = None  # what this process moved counts by its handles, and one of them went


def walk(examples: int, steps: int, number: int) -> int:
    """Let owners loose with a seed; how many steps they took."""

    class Walk(TwoCards):
        pass

    run_state_machine_as_test(
        seed(number)(Walk),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    return Walk.steps


def test_owners_that_do_as_they_like_get_what_the_model_says() -> None:
    assert walk(examples=8, steps=40, number=0) > 100


@pytest.mark.campaign
def test_ten_thousand_steps_with_several_seeds_break_nothing() -> None:
    taken = {number: walk(examples=60, steps=50, number=number) for number in range(1, 7)}
    sys.stdout.write(f"\nsteps by seed: {taken}\n")
    assert sum(taken.values()) >= 10_000
