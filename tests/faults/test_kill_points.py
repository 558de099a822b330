"""An injector that is killed at any moment: whatever it was about, the node is soon as it was."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from faults.base import Fault
from faults.gpu.sim import SimNode
from tests.faults.node_state import neighbour_processes, state
from tests.faults.proofs import FAULTS

RESTORED_WITHIN_S = 1.0
LONGEST_S = 0.5  # a neighbour takes some 0.2 s to be ready, so half of the moments are before that


def injector(path: Path, fault: Fault) -> int:
    """A process that causes the fault and holds it until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with SimNode.attach(path) as node, fault.inject(node):
            time.sleep(60)
    finally:
        os._exit(1)


def is_restored(node: SimNode, before: object) -> bool:
    return not neighbour_processes(node) and state(node) == before


@pytest.mark.parametrize("points", [10, pytest.param(100, marks=pytest.mark.campaign)])
def test_the_node_is_as_it_was_whenever_the_injector_is_killed(points: int, node: SimNode, elsewhere) -> None:
    chance = random.Random(points)
    elsewhere("held = node.alloc_all(2**20)")
    before = state(node)
    for point in range(points):
        fault = FAULTS[chance.choice(sorted(FAULTS))][0]
        after_s = chance.uniform(0, LONGEST_S)
        pid = injector(node.path, fault)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        until = time.monotonic() + RESTORED_WITHIN_S
        while not (restored := is_restored(node, before)) and time.monotonic() < until:
            time.sleep(0.02)
        assert restored, f"point {point}: {fault!r} of an injector killed after {after_s:.3f} s"
    time.sleep(RESTORED_WITHIN_S)
    assert is_restored(node, before), "a neighbour came late"
