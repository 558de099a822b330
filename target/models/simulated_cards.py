"""The service's cards, when they are simulated: a node's memory and links behind the `Device` protocol.

A full card raises the real `torch.OutOfMemoryError`, and a lost one `torch.AcceleratorError`, so that what handles
them here handles them on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from target.device import AsyncCopy, Bound, Direction, Headroom, LinkReading

NEGLIGIBLE_S = 1e-6  # of work that a card owes: less than it takes to ask for it
RESOURCE: dict[Bound, str] = {"compute": "sm", "memory": "hbm"}


class Timing(Protocol):
    """One flow's device-side timing."""

    @property
    def link(self) -> str: ...
    @property
    def nbytes(self) -> float: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def nominal_s(self) -> float: ...


class Node(Protocol):
    """The data side of a simulated node."""

    @property
    def broken(self) -> tuple[type[Exception], ...]: ...
    @property
    def cards(self) -> int: ...
    def alloc_all(self, nbytes: int, label: str = "") -> Sequence[Any]: ...
    def free(self, allocation: Any) -> None: ...
    def memory(self, card: int) -> Any: ...
    def route(self, source: int, to: int) -> Sequence[str]: ...
    def start(self, flows: Sequence[tuple[str, float]]) -> Any: ...
    def wait(self, transfer: Any) -> Sequence[Timing]: ...
    def cancel(self, transfer: Any) -> Sequence[Timing]: ...
    def close(self) -> None: ...


class SimulatedCards:
    """All cards of one node, which `attach` opens."""

    out_of_memory: type[Exception] = torch.OutOfMemoryError
    broken: type[Exception] = torch.AcceleratorError

    def __init__(self, attach: Callable[[], Node]) -> None:
        self._attach = attach
        self._node = attach()

    @property
    def cards(self) -> int:
        return self._node.cards

    def close(self) -> None:
        """Give everything back."""
        self._node.close()

    def reopen(self) -> None:
        old, self._node = self._node, self._attach()
        old.close()

    def alloc(self, nbytes: int, label: str) -> object:
        with as_cuda(self._node):
            return self._node.alloc_all(nbytes, label)

    def free(self, handle: object) -> None:
        for allocation in handle:  # type: ignore[attr-defined]
            self._node.free(allocation)

    def headroom(self) -> Headroom:
        node = self._node  # which another thread may be about to replace
        fullest = min((node.memory(card) for card in range(node.cards)), key=lambda m: m.free_bytes)
        return Headroom(fullest.free_bytes, fullest.total_bytes)

    def start_kernel(self, bound: Bound) -> NodeKernel:
        return NodeKernel(self._node, [f"{RESOURCE[bound]}:{card}" for card in range(self.cards)])

    def copy(self, direction: Direction, nbytes: int) -> Sequence[LinkReading]:
        return self._move(self._pcie(direction, nbytes))

    def start_copy(self, direction: Direction, nbytes: int) -> AsyncCopy:
        return NodeCopy(self._node, self._pcie(direction, nbytes))

    def exchange(self, flows: Sequence[tuple[int, int, float]]) -> Sequence[LinkReading]:
        # What goes over one link at the same time is one flow: its own parts are no neighbours of each other.
        together: dict[str, float] = {}
        for a, b, nbytes in flows:
            for link in self._node.route(a, b):
                together[link] = together.get(link, 0.0) + nbytes
        return self._move(list(together.items()))

    def _move(self, flows: Sequence[tuple[str, float]]) -> Sequence[LinkReading]:
        with as_cuda(self._node):
            return readings(self._node.wait(self._node.start(flows)))

    def _pcie(self, direction: Direction, nbytes: int) -> list[tuple[str, float]]:
        return [(f"pcie:{card}:{direction}", float(nbytes)) for card in range(self.cards)]


class NodeCopy:
    """A copy under way on the node."""

    def __init__(self, node: Node, flows: Sequence[tuple[str, float]]) -> None:
        self._node = node
        with as_cuda(node):
            self._transfer = node.start(flows)

    def readings(self) -> Sequence[LinkReading] | None:
        with as_cuda(self._node):
            return readings(self._transfer.timings) if self._transfer.done() else None


class NodeKernel:
    """One kernel on every card, for as long as the host computes."""

    def __init__(self, node: Node, resources: Sequence[str]) -> None:
        self._node = node
        with as_cuda(node):
            self._running = node.start([(resource, math.inf) for resource in resources])

    def finish(self, worked_s: float) -> None:
        """A card that got a share s of its full speed has done s of the work: the rest is waited for."""
        owed = [
            (timing.link, worked_s * (1 - min(1.0, timing.nbytes / timing.elapsed_s)))
            for timing in self._node.cancel(self._running)
            if timing.elapsed_s > 0
        ]
        late = [(link, owed_s) for link, owed_s in owed if owed_s > NEGLIGIBLE_S]
        if late:
            with as_cuda(self._node):
                self._node.wait(self._node.start(late))

    def cancel(self) -> None:
        self._node.cancel(self._running)


@contextmanager
def as_cuda(node: Node) -> Iterator[None]:
    """The node's errors as torch raises them."""
    try:
        yield
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error)) from error
    except node.broken as error:
        raise torch.AcceleratorError(str(error)) from error


def readings(timings: Sequence[Timing]) -> list[LinkReading]:
    """The node's timings in the service's words."""
    return [LinkReading(t.link, t.nbytes, t.elapsed_s, t.nominal_s) for t in timings]
