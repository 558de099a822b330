"""The service's cards, when they are simulated: a node's memory and links behind the `Device` protocol.

A full card raises the real `torch.OutOfMemoryError`, so that what handles it here handles it on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from target.device import AsyncCopy, Direction, Headroom, LinkReading


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
    def cards(self) -> int: ...
    def alloc_all(self, nbytes: int, label: str = "") -> Sequence[Any]: ...
    def free(self, allocation: Any) -> None: ...
    def memory(self, card: int) -> Any: ...
    def start(self, flows: Sequence[tuple[str, float]]) -> Any: ...
    def wait(self, transfer: Any) -> Sequence[Timing]: ...


class SimulatedCards:
    """All cards of one node."""

    out_of_memory: type[Exception] = torch.OutOfMemoryError

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def cards(self) -> int:
        return self._node.cards

    def alloc(self, nbytes: int, label: str) -> object:
        try:
            return self._node.alloc_all(nbytes, label)
        except MemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from error

    def free(self, handle: object) -> None:
        for allocation in handle:  # type: ignore[attr-defined]
            self._node.free(allocation)

    def headroom(self) -> Headroom:
        fullest = min((self._node.memory(card) for card in range(self.cards)), key=lambda m: m.free_bytes)
        return Headroom(fullest.free_bytes, fullest.total_bytes)

    def copy(self, direction: Direction, nbytes: int) -> Sequence[LinkReading]:
        return readings(self._node.wait(self._node.start(self._pcie(direction, nbytes))))

    def start_copy(self, direction: Direction, nbytes: int) -> AsyncCopy:
        return NodeCopy(self._node, self._pcie(direction, nbytes))

    def exchange(self, flows: Sequence[tuple[int, int, float]]) -> Sequence[LinkReading]:
        named = [(f"nvlink:{a}>{b}", nbytes) for a, b, nbytes in flows]
        return readings(self._node.wait(self._node.start(named)))

    def _pcie(self, direction: Direction, nbytes: int) -> list[tuple[str, float]]:
        return [(f"pcie:{card}:{direction}", float(nbytes)) for card in range(self.cards)]


class NodeCopy:
    """A copy under way on the node."""

    def __init__(self, node: Node, flows: Sequence[tuple[str, float]]) -> None:
        self._node = node
        self._transfer = node.start(flows)

    def readings(self) -> Sequence[LinkReading] | None:
        return readings(self._transfer.timings) if self._transfer.done() else None


def readings(timings: Sequence[Timing]) -> list[LinkReading]:
    """The node's timings in the service's words."""
    return [LinkReading(t.link, t.nbytes, t.elapsed_s, t.nominal_s) for t in timings]
