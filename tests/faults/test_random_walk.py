"""Whatever its users do, a node stays whole."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from faults.gpu import sanity
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.profiles import KIB, MIB
from faults.gpu.sim import SimNode


def most(link: str) -> float:
    """Bytes of a copy, or seconds of a kernel, that are over soon."""
    return 200 * KIB if link.startswith(("pcie", "nvlink")) else 0.01


@pytest.mark.parametrize("seed", range(5))
def test_a_random_walk_of_three_owners_leaves_nothing_behind(still: SimNode, path, clock, seed: int) -> None:
    dice = random.Random(seed)
    owners = [SimNode.attach(path, clock=clock, sleep=clock.sleep) for _ in range(3)]
    held, copies, slow = [], [], []
    moved = dict.fromkeys(still.links(), 0.0)
    readings = [sanity.take(still)]
    for step in range(400):
        clock.now += dice.expovariate(1000)
        owner, deed = dice.choice(owners), dice.randrange(7)
        if deed == 0:
            with suppress(DeviceOutOfMemory):
                held.append((owner, owner.alloc(dice.randrange(2), dice.randrange(1, 4 * MIB))))
        elif deed == 1 and held:
            owner, allocation = held.pop(dice.randrange(len(held)))
            owner.free(allocation)
        elif deed == 2:
            names = dice.sample(still.links(), dice.randrange(1, 4))
            copies.append((owner, owner.start([(name, dice.uniform(0, most(name))) for name in names])))
        elif deed == 3 and copies:
            owner, copy = copies.pop(dice.randrange(len(copies)))
            timings = owner.wait(copy)
            assert all(timing.slowdown >= 1 - 1e-9 for timing in timings)
        elif deed == 4 and len(slow) < 4:
            slow.append((owner, owner.degrade([dice.choice(still.links())], dice.uniform(0.1, 1))))
        elif deed == 5 and slow:
            owner, degradation = slow.pop(dice.randrange(len(slow)))
            owner.let_go(degradation)
        elif deed == 6 and copies and dice.random() < 0.3:
            owner, copy = copies.pop(dice.randrange(len(copies)))
            owner.cancel(copy)
        for card in range(2):
            memory = still.memory(card)
            assert memory.free_bytes + sum(memory.used_by.values()) == memory.total_bytes
            assert memory.largest_free_bytes <= memory.free_bytes
        for name, before in moved.items():
            link = still.link(name)
            assert link.bytes_total >= before - 1e-6
            assert sum(link.bytes_by.values()) == pytest.approx(link.bytes_total)
            moved[name] = link.bytes_total
        if step % 20 == 0:
            readings.append(sanity.take(still))
    assert sanity.findings(readings) == []
    for owner in owners:
        owner.close()
    assert sanity.findings([sanity.take(still)]) == []
    assert [still.memory(card).free_bytes for card in range(2)] == [48 * MIB] * 2
    for name in still.links():
        link = still.link(name)
        assert (link.flows, link.capacity_bytes_per_s) == (0, link.nominal_bytes_per_s)
        assert link.bytes_total <= (clock.now - 100.0) * link.nominal_bytes_per_s
