"""Faults that are aimed at a tenant: the right one is hit, no other, and never whoever aims."""

from __future__ import annotations

import time

import pytest

from faults.context import CudaError
from faults.ecc import UNCORRECTABLE, EccUncorrectable
from faults.gpu.owners import is_stopped
from faults.gpu.sim import SimNode
from faults.gpu.spawn import NeighbourError
from faults.process import EngineStall


@pytest.fixture
def big(elsewhere):
    """A tenant with 4 MiB on cards 0 and 1."""
    return elsewhere("held = [node.alloc(card, 2**22) for card in (0, 1)]")


@pytest.fixture
def small(elsewhere):
    """A tenant with 1 MiB on cards 0 and 2."""
    return elsewhere("held = [node.alloc(card, 2**20) for card in (0, 2)]")


def test_a_cuda_error_of_a_tenant_lasts_until_it_is_started_again(node: SimNode, big, small, soon) -> None:
    fault = CudaError(card=0, code=719, victim="tenant")
    with fault.inject(node):
        assert fault.took_effect(node).visible
        assert node.context_errors() == {big.pid: 719}
    left = fault.took_effect(node)
    assert (left.visible, left.residual) == (True, 1)
    big.kill()
    soon(lambda: not fault.took_effect(node).visible)
    assert fault.took_effect(node).residual == 0


@pytest.mark.parametrize("code", [700, 710, 719])
def test_a_tenant_that_starts_anew_at_once_has_felt_the_fault_all_the_same(
    node: SimNode, big, soon, code
) -> None:
    fault = CudaError(card=0, code=code, victim="tenant")
    with fault.inject(node):
        big.kill()
        soon(lambda: not node.context_errors())
        felt = fault.took_effect(node)
        assert (felt.visible, felt.measured, felt.residual) == (True, 1, 0)
        assert not CudaError(card=1, code=code).took_effect(node).visible
    left = fault.took_effect(node)
    assert (left.visible, left.residual) == (False, 0)


@pytest.mark.parametrize("xid", [48, 95])
def test_an_error_that_is_not_contained_hits_all_on_the_card_and_nobody_else(
    node: SimNode, big, small, soon, xid
) -> None:
    fault = EccUncorrectable(card=1, xid=xid)
    with fault.inject(node):
        (neighbour,) = node.neighbours()
        assert node.context_errors() == {big.pid: UNCORRECTABLE, neighbour: UNCORRECTABLE}
    assert node.context_errors() == {big.pid: UNCORRECTABLE}
    left = fault.took_effect(node)
    assert (left.visible, left.residual) == (False, 1)
    big.kill()
    soon(lambda: fault.took_effect(node).residual == 0)


def test_a_contained_error_hits_the_one_it_is_aimed_at(node: SimNode, big, small) -> None:
    with EccUncorrectable(card=0, xid=94, victim="tenant").inject(node):
        assert node.context_errors() == {big.pid: UNCORRECTABLE}
    with EccUncorrectable(card=2, xid=94, victim="tenant").inject(node):
        assert node.context_errors() == {big.pid: UNCORRECTABLE, small.pid: UNCORRECTABLE}


def test_a_stalled_tenant_goes_on_and_the_others_never_stopped(node: SimNode, big, small) -> None:
    with EngineStall(card=0).inject(node):
        assert [is_stopped(pid) for pid in (big.pid, small.pid)] == [True, False]
        node.free(node.alloc(0, 2**20))  # a stopped process doesn't hold the node up
    assert not is_stopped(big.pid)


def test_one_tenant_stopped_twice_goes_on_when_nobody_stops_it_any_more(node: SimNode, big) -> None:
    with EngineStall(card=0).inject(node):
        with EngineStall(card=1).inject(node):
            assert is_stopped(big.pid)
        time.sleep(0.02)
        assert is_stopped(big.pid)
    assert not is_stopped(big.pid)


@pytest.mark.parametrize(
    "fault",
    [
        EngineStall(card=0),
        CudaError(card=0, victim="tenant"),
        EccUncorrectable(card=0, xid=94, victim="tenant"),
    ],
    ids=lambda fault: fault.kind,
)
def test_whoever_aims_is_no_target(node: SimNode, fault) -> None:
    node.alloc(0, 2**20)
    with pytest.raises(NeighbourError, match="no tenant holds memory on card 0"), fault.inject(node):
        pass
    assert not node.context_errors()
