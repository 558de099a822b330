"""What neighbours do to a node. Each task is a generator: what it does before its first yield makes it ready.

It yields how many seconds it rests until it goes on; one that ends has nothing more to do, and what it keeps on
the node stays until its process ends. Tasks import little, to be up fast.
"""

from __future__ import annotations

import contextlib
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

from faults.gpu.broken import DeviceLost
from faults.gpu.levers import LeverKind
from faults.gpu.links import ENDLESS
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.sim import SimNode
from faults.gpu.topology import pcie

_CHUNK_PAGES = 16
_LEAST_REST_S = 0.01
_NODE_WIDE = (LeverKind.NVML_DELAY_S, LeverKind.NVML_ERROR, LeverKind.FROZEN)


def hold(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Allocate until no more than `leave_bytes` of a card are free; don't chase what is freed later."""
    page, chunk = node.profile.page_bytes, _CHUNK_PAGES
    while chunk and (excess := node.memory(wish.card).free_bytes - wish.leave_bytes) > 0:
        chunk = min(chunk, -(-excess // page))
        try:
            node.alloc(wish.card, chunk * page, "neighbour")
        except DeviceOutOfMemory:
            chunk //= 2  # what is free lies in small pieces
    yield from ()


def scatter(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Take single pages of a card so that no free run is longer than `largest_bytes`."""
    be_there(node, wish.card)
    node.scatter(wish.card, wish.largest_bytes)
    yield from ()


def leak(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Take `bytes_per_s` of a card, page by page, until there is nothing more to take."""
    page = node.profile.page_bytes
    yield from paced(wish.bytes_per_s / page, lambda: node.alloc(wish.card, page, "leak"))


def refuse(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Have allocations of `at_least_bytes` fail on a card, and try one `per_s` times a second."""
    node.keep(LeverKind.ALLOC_LIMIT_BYTES, [wish.card], wish.at_least_bytes)

    def attempt() -> None:
        node.free(node.alloc(wish.card, wish.at_least_bytes, "attempt"))

    yield from paced(wish.per_s, attempt)


def copy(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Copy over a card's PCIe without pause, `streams` copies at a time in each direction."""
    links = [pcie(wish.card, direction) for direction in wish.directions]
    be_there(node, wish.card)
    node.start([(link, ENDLESS) for link in links for _ in range(wish.streams)])
    yield from ()


def busy(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Run kernels without end, `streams` at a time on each of `shares`."""
    for card in sorted({int(share.partition(":")[2]) for share in wish.shares}):
        be_there(node, card)
    node.start([(share, ENDLESS) for share in wish.shares for _ in range(wish.streams)])
    yield from ()


def degrade(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Keep links at `factor` of their nominal capacity."""
    node.degrade(wish.links, wish.factor)
    yield from ()


def keep(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Keep a card, or the node's monitoring, in conditions; count, report and break what goes with their beginning."""
    for word in wish.levers:
        name, _, value = word.partition("=")
        kind = LeverKind[name]
        node.keep(kind, [0] if kind in _NODE_WIDE else [wish.card], float(value))
    for word in wish.counts:
        name, _, value = word.partition("=")
        node.count(wish.card, **{name: float(value)})
    for xid in wish.xids:
        node.report(wish.card, xid)
    if wish.error is not None:
        for pid in victims(node, wish):  # ourselves last: from then on we can do nothing
            node.break_context(pid, wish.error)
    yield from ()


def noise(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Report Xids of a card in turn, `per_s` a second."""
    xids = list(wish.xids)

    def report() -> None:
        node.report(wish.card, xids[0])
        xids.append(xids.pop(0))

    yield from paced(wish.per_s, report)


def stop(node: SimNode, wish: Namespace) -> Iterator[float]:
    """Stop the biggest tenant of a card; it goes on when we are gone."""
    node.stop_process(biggest_tenant(node, wish.card))
    yield from ()


def be_there(node: SimNode, card: int) -> None:
    """Take a page of a card, as a context would, so that monitoring lists us; a full card has none to give."""
    with contextlib.suppress(DeviceOutOfMemory):
        node.alloc(card, 1, "context")


def paced(per_s: float, act: Callable[[], object]) -> Iterator[float]:
    """Act `per_s` times a second on average, however late we wake up, though the card may give nothing."""
    began, done = time.monotonic(), 0
    while True:
        while done <= (time.monotonic() - began) * per_s:
            with contextlib.suppress(DeviceOutOfMemory, DeviceLost):
                act()
            done += 1
        yield max(_LEAST_REST_S, began + done / per_s - time.monotonic())


def victims(node: SimNode, wish: Namespace) -> list[int]:
    """Whose contexts break. We are on the card as well, with a page, and date what happened by it."""
    ours = os.getpid()
    tenant = [biggest_tenant(node, wish.card)] if wish.victim == "tenant" else []
    all_tenants = sorted(tenants_of(node, wish.card)) if wish.victim == "all" else []
    node.alloc(wish.card, 1, "neighbour")
    return [*tenant, *all_tenants, *([] if wish.victim == "tenant" else [ours])]


def tenants_of(node: SimNode, card: int) -> dict[int, int]:
    """Bytes on a card of each tenant but the process that started us."""
    spared, tenants = os.getppid(), node.tenants()
    used = node.memory(card).used_by
    return {pid: nbytes for pid, nbytes in used.items() if pid in tenants and pid != spared}


def biggest_tenant(node: SimNode, card: int) -> int:
    """The tenant with most memory on a card; ValueError if there is none."""
    if not (used := tenants_of(node, card)):
        raise ValueError(f"no tenant holds memory on card {card}")
    return max(used, key=lambda pid: used[pid])
