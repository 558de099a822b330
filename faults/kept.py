"""Faults that are a condition of a card: a neighbour keeps it, and the card shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import Field

from faults.base import Fault
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind


class OnCard(Fault):
    """A fault of one card."""

    card: int = Field(default=0, ge=0, description="The card it happens to.")

    def touches(self) -> frozenset[int]:
        """The one card."""
        return frozenset({self.card})


class KeptCard(OnCard):
    """A condition that a neighbour keeps one card in; what the card makes of it is the node's physics.

    A kind says which levers it pulls, and reads what came of it from the card. It never reads the levers.
    """

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """What the neighbour keeps; ValueError if this card can't be brought into it."""
        raise NotImplementedError

    def check_node(self, gpu: Gpu) -> None:
        """The levers know."""
        self.levers(gpu)

    def xids(self) -> tuple[int, ...]:
        """What the driver reports as it begins."""
        return ()

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that keeps the levers."""
        with gpu.neighbour("keep", card=self.card, levers=spelled(self.levers(gpu)), xids=self.xids()):
            yield


class KeptMonitoring(Fault):
    """A condition that a neighbour keeps the node's monitoring in; the cards themselves are well."""

    def levers(self) -> Mapping[LeverKind, float]:
        """What the neighbour keeps."""
        raise NotImplementedError

    def touches(self) -> frozenset[int]:
        """No card."""
        return frozenset()

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that keeps the levers."""
        with gpu.neighbour("keep", levers=spelled(self.levers())):
            yield


def spelled(levers: Mapping[LeverKind, float]) -> list[str]:
    """Levers as words of a neighbour's command line."""
    return [f"{kind.name}={value!r}" for kind, value in levers.items()]
