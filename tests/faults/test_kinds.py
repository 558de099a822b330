"""One test body for every kind of fault: nothing before, the asked dose soon, all of it gone after, however it ends."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from faults.base import Effect, Fault
from faults.gpu.sim import SimNode
from faults.kinds import KINDS
from tests.faults.node_state import neighbour_processes, state
from tests.faults.proofs import FAULTS, NOTICED

VISIBLE_WITHIN_S = 2.0
GONE_WITHIN_S = 1.0
CAUSES = set(KINDS) - {"noop"}


@pytest.fixture
def served(node: SimNode, elsewhere) -> SimNode:
    """A node with a tenant on cards 0 and 2, and another one on 1 and 3."""
    for cards in ((0, 2), (1, 3)):
        elsewhere(f"held = [node.alloc(card, 2**20) for card in {cards}]")
    return node


def within(seconds: float, true: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def is_gone(fault: Fault, node: SimNode) -> bool:
    effect = fault.took_effect(node)
    return not effect.visible and effect.residual == 0


def at_dose(fault: Fault, node: SimNode) -> Effect:
    """The effect of a fault that was injected just now, once it is visible."""
    assert within(VISIBLE_WITHIN_S, lambda: fault.took_effect(node).visible), fault.took_effect(node)
    return fault.took_effect(node)


@pytest.mark.parametrize("kind", sorted(CAUSES))
def test_a_fault_is_there_when_it_is_caused_and_gone_when_it_is_undone(kind: str, served: SimNode) -> None:
    fault, other = FAULTS[kind]
    before = state(served)
    assert is_gone(fault, served)
    assert not NOTICED[kind](served)
    began = time.monotonic()

    with fault.inject(served):
        effect = at_dose(fault, served)
        assert NOTICED[kind](served)
        time.sleep(0.1)  # as between two looks of a drill
        assert fault.took_effect(served).visible, "it does not last"
        assert effect.residual > 0
        assert effect.since_s is not None
        assert began <= effect.since_s <= time.monotonic()
    assert within(GONE_WITHIN_S, lambda: is_gone(fault, served)), fault.took_effect(served)
    within(GONE_WITHIN_S, lambda: state(served) == before)
    assert state(served) == before

    with fault.inject(served):  # again, and by the hand of one that is killed
        (pid,) = neighbour_processes(served)
        if other is None:
            at_dose(fault, served)
            kill_at_a_random_moment(pid)
        else:
            with other.inject(served):
                at_dose(fault, served)
                at_dose(other, served)
                kill_at_a_random_moment(pid)
                assert within(GONE_WITHIN_S, lambda: not fault.took_effect(served).visible)
                assert other.took_effect(served).visible, "undoing one undid the other"
        assert within(GONE_WITHIN_S, lambda: is_gone(fault, served)), fault.took_effect(served)
        assert other is None or within(GONE_WITHIN_S, lambda: is_gone(other, served))
        within(GONE_WITHIN_S, lambda: state(served) == before)
        assert state(served) == before


def kill_at_a_random_moment(pid: int) -> None:
    time.sleep(random.Random(pid).uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)


def test_different_faults_of_one_card_come_and_go_each_for_itself(served: SimNode) -> None:
    kinds = (
        "clock_lock",
        "power_brake",
        "pcie_link_degrade",
        "nvlink_errors",
        "ecc_errors",
        "vram_fragmentation",
    )
    before, faults = state(served), [FAULTS[kind][0] for kind in kinds]
    blocks = [fault.inject(served) for fault in faults]
    for fault, block in zip(faults, blocks, strict=True):
        block.__enter__()
        at_dose(fault, served)
    assert all(fault.took_effect(served).visible for fault in faults)
    for place, block in enumerate(blocks):
        block.__exit__(None, None, None)
        assert within(GONE_WITHIN_S, lambda place=place: is_gone(faults[place], served)), kinds[place]
        assert all(fault.took_effect(served).visible for fault in faults[place + 1 :])
    assert state(served) == before


def test_a_fault_that_flaps_leaves_nothing_behind(served: SimNode) -> None:
    fault, before = FAULTS["nvlink_links_down"][0], state(served)
    for _ in range(5):
        with fault.inject(served):
            assert fault.took_effect(served).visible
        assert is_gone(fault, served)
    assert state(served) == before


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_says_all_that_a_report_tells_of_it(kind: str) -> None:
    fault = KINDS[kind]
    for told in ("certifies", "does_not_certify", "real_method", "privileges", "dose", "undo"):
        assert getattr(fault, told), f"{kind} does not say {told}"
    assert fault.fidelity, f"{kind} has no fidelity label"
    assert set(fault.fidelity) <= {"virtual", "local", "live"}


def test_every_kind_has_its_proof_of_effect_and_of_undo() -> None:
    assert set(FAULTS) == CAUSES
    assert set(NOTICED) == CAUSES
    assert {fault.model_dump()["kind"] for pair in FAULTS.values() for fault in pair if fault} == CAUSES
    assert all(fault.model_dump()["kind"] == kind for kind, (fault, _) in FAULTS.items())
