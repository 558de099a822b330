"""Two processes hammer one node and are killed at random moments; then the node is looked at. Run as a script.

    python tests/faults/hammer.py NODE SECONDS SEED

Prints one JSON object: how often they were killed, how often amid a write, and everything that was wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from faults.gpu import sanity
from faults.gpu.broken import DeviceLost
from faults.gpu.layout import SEQUENCE
from faults.gpu.levers import LeverKind
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode

LEVERS = {
    LeverKind.SM_CLOCK_MHZ: 900.0,
    LeverKind.PCIE_GEN: 3.0,
    LeverKind.NVLINKS_DOWN: 4.0,
    LeverKind.HEAT_C: 10.0,
    LeverKind.ECC_CORRECTED_PER_S: 5.0,
    LeverKind.NVLINK_LOSS: 0.2,
    LeverKind.POWER_CAP_W: 300.0,
    LeverKind.ALLOC_LIMIT_BYTES: 6.0 * MIB,
    LeverKind.ABSENT: 1.0,
    LeverKind.LOST: 1.0,
    LeverKind.FROZEN: 1.0,
}
MEAN_LIFE_S = 0.08


def hammer(path: Path, seed: int) -> None:
    """Everything that an owner can do to a node, as fast as it goes, until it is killed."""
    dice, node = random.Random(seed), SimNode.attach(path, role=("tenant", "neighbour")[seed % 2])
    held, copies, levers = [], [], []

    def card() -> int:
        return dice.randrange(node.cards)

    def alloc() -> None:
        held.append(node.alloc(card(), dice.randrange(1, 8 * MIB)))

    def start() -> None:
        names = dice.sample(node.links(), 3)
        copies.append(node.start([(name, dice.choice((1e3, 0.01, float("inf")))) for name in names]))

    def keep() -> None:
        kind = dice.choice(list(LEVERS))
        levers.append(node.keep(kind, [card()], LEVERS[kind]))

    def give_back() -> None:
        if held:
            node.free(held.pop(dice.randrange(len(held))))
        if copies:
            node.cancel(copies.pop(0))
        if levers:
            node.let_go(levers.pop(dice.randrange(len(levers))))

    deeds: list[Callable[[], object]] = [
        *(alloc, start, keep, give_back, give_back, node.tick),
        lambda: levers.append(node.degrade(dice.sample(node.links(), 2), dice.uniform(0.1, 1))),
        lambda: node.report(card(), 31),
        lambda: node.count(card(), ecc_corrected=1),
        lambda: [node.free(each) for each in node.alloc_all(MIB)],
    ]
    while True:
        with suppress(DeviceOutOfMemory, DeviceLost):
            dice.choice(deeds)()
        while len(held) > 8 or len(copies) > 8 or len(levers) > 8:
            give_back()


def forked(path: Path, seed: int) -> int:
    """A hammering process's id."""
    pid = os.fork()
    if not pid:
        try:
            hammer(path, seed)
        except BaseException as error:
            os.write(2, f"a hammering process failed: {error!r}\n".encode())
        os._exit(1)
    return pid


class Round:
    """One node under two hammers, and what was wrong with it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._dice = path, random.Random(seed)
        self._fd = os.open(path, os.O_RDWR)
        self.kills = self.amid_a_write = self.readings = 0
        self.wrong: list[str] = []

    def run(self, seconds: float) -> None:
        """Hammer and kill for so long; look at the node now and then, and at the end of it."""
        until = time.monotonic() + seconds
        pids = [self._another() for _ in range(2)]
        with SimNode.attach(self._path) as node:
            before = sanity.take(node)
            while time.monotonic() < until:
                time.sleep(self._dice.expovariate(1 / MEAN_LIFE_S))
                place = self._dice.randrange(2)
                self._kill(node, pids[place])
                pids[place] = self._another()
                after = sanity.take(node)
                self._find(before, after)
                before = after
            for pid in pids:
                self._kill(node, pid)
            node.reclaim()
            self._find(before, sanity.take(node))
            self._must_be_empty(node)

    def _another(self) -> int:
        return forked(self._path, self._dice.randrange(2**32))

    def _kill(self, node: SimNode, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # whoever comes first sees whether it was writing
        self.amid_a_write += node._file.q[SEQUENCE] % 2
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        _, status = os.waitpid(pid, 0)
        self.kills += 1
        if not os.WIFSIGNALED(status):
            self.wrong.append(f"process {pid} ended by itself, with status {status}")

    def _find(self, before: sanity.Reading, after: sanity.Reading) -> None:
        self.readings += 1
        self.wrong += map(str, sanity.findings([before, after]))

    def _must_be_empty(self, node: SimNode) -> None:
        for card in range(node.cards):
            memory = node.memory(card)
            if memory.free_bytes != memory.total_bytes or memory.used_by:
                self.wrong.append(f"card {card} is not free: {memory}")
        for name in node.links():
            link = node.link(name)
            if link.flows or link.capacity_bytes_per_s != link.nominal_bytes_per_s:
                self.wrong.append(f"{name} is not as it was: {link}")
        if kept := node._cards.levers.rows():
            self.wrong.append(f"kept by nobody: {kept}")
        if node.tenants() or node.neighbours():
            self.wrong.append(f"owners: {node.tenants()} {node.neighbours()}")
        whole = node.alloc_all(node.profile.memory_bytes)
        timing = node.transfer([("pcie:0:h2d", node.profile.pcie_bytes_per_s / 100)])[0]
        if not 0.999 < timing.slowdown < 1.001:
            self.wrong.append(f"a copy on the empty node took {timing}")
        for each in whole:
            node.free(each)


def main() -> None:
    path, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    SimNode.create(path, cards=2).close()
    round_ = Round(path, seed)
    round_.run(seconds)
    told = {name: getattr(round_, name) for name in ("kills", "amid_a_write", "readings", "wrong")}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
