"""A tenant of a simulated node, told what to do line by line: `python tests/faults/sim_tenant.py NODE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from faults.gpu.links import ENDLESS
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.sim import SimNode
from faults.gpu.simmemory import Allocation
from faults.gpu.topology import bandwidth, compute, pcie
from faults.gpu.transfer import Transfer
from tests.faults.tenant import serve


class SimTenant:
    """What `tests.faults.tenant.Tenant` asks for, on a simulated node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._held: dict[int, Allocation] = {}
        self._endless: Transfer | None = None

    def alloc(self, card: int, nbytes: int) -> int:
        allocation = self._node.alloc(card, nbytes)
        self._held[id(allocation)] = allocation
        return id(allocation)

    def free(self, key: int) -> None:
        self._node.free(self._held.pop(key))

    def host_copies(self, card: int, way: str, nbytes: int, count: int) -> list[float]:
        return self._together([pcie(card, way)], nbytes, count)

    def peer_copies(self, source: int, to: int, nbytes: int, count: int) -> list[float]:
        return self._together(self._node.route(source, to), nbytes, count)

    def kernel(self, card: int, bound: str, work_s: float) -> float:
        name = {"sm": compute, "hbm": bandwidth}[bound](card)
        return self._node.transfer([(name, work_s)])[0].elapsed_s

    def keep_copying(self, card: int, way: str) -> None:
        self._endless = self._node.start([(pcie(card, way), ENDLESS)])

    def stop_copying(self) -> None:
        assert self._endless is not None
        self._node.cancel(self._endless)

    def _together(self, links: Sequence[str], nbytes: int, count: int) -> list[float]:
        """Bytes go over all links of a route at once; they have arrived when the slowest has moved them."""
        timings = self._node.transfer([(link, nbytes) for _ in range(count) for link in links])
        steps = range(0, len(timings), len(links))
        return [max(timing.elapsed_s for timing in timings[at : at + len(links)]) for at in steps]


if __name__ == "__main__":
    with SimNode.attach(sys.argv[1]) as node:
        serve(SimTenant(node), DeviceOutOfMemory)
