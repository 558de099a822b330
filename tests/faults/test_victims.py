"""Faults that are aimed at a tenant: the right one is hit, no other, and never whoever aims."""

from __future__ import annotations

import select
import subprocess
import time

import pytest

from faults.contention import GpuContention
from faults.context import REPORTED_BEFORE_S, CudaError
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


@pytest.fixture
def working(elsewhere):
    """A tenant of card 0 that computes until a call fails, and then says how."""
    return elsewhere(
        "held = node.alloc(0, 2**22)\n"
        "def work():\n"
        "    try:\n"
        "        while True: node.transfer([('sm:0', 0.002)])\n"
        "    except Exception as error: print(type(error).__name__, *error.args, flush=True)\n"
        "import threading; threading.Thread(target=work, daemon=True).start()"
    )


def said(tenant: subprocess.Popen[bytes]) -> bytes:
    """A line of its output, or nothing if it says none within 5 s."""
    ready, _, _ = select.select([tenant.stdout], [], [], 5)
    return tenant.stdout.readline() if ready and tenant.stdout else b""


@pytest.mark.parametrize(
    ("fault", "code"),
    [(CudaError(code=719, victim="tenant"), 719), (EccUncorrectable(victim="tenant"), UNCORRECTABLE)],
    ids=lambda each: getattr(each, "kind", None),
)
def test_the_next_call_of_the_victim_fails(node: SimNode, working, fault, code) -> None:
    with fault.inject(node):
        assert said(working) == f"ContextBroken {code}\n".encode()


def test_a_stalled_tenant_gets_nothing_done(node: SimNode, working, soon) -> None:
    def done() -> float:
        return node.link("sm:0").bytes_by.get(working.pid, 0.0)

    with EngineStall().inject(node):
        time.sleep(0.02)  # what it had under way is over by then
        before = done()
        time.sleep(0.2)
        assert done() == before > 0
    soon(lambda: done() > before)


def test_a_neighbour_that_computes_does_not_hide_when_a_context_broke(node: SimNode, big, soon) -> None:
    fault = CudaError(card=0, victim="tenant")
    with fault.inject(node):
        big.kill()
        soon(lambda: not node.context_errors())
        since_s = fault.took_effect(node).since_s
        time.sleep(REPORTED_BEFORE_S)
        with GpuContention().inject(node):
            assert fault.took_effect(node).since_s == since_s is not None
    assert not fault.took_effect(node).visible


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
