"""The seam for faults: one class, two methods.

A fault's settings are its fields. Its run state is local to `inject`, so that one value can be used
any number of times. `took_effect` only observes, through the card's own telemetry: calling an injector
and having a fault are different facts, and the harness waits for the second.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from faults.gpu.base import Gpu

Fidelity = Literal["simulated", "emulated", "real"]


@dataclass(frozen=True)
class Effect:
    """How strong a fault is, as the card shows it.

    `asked` and `measured` are doses in `unit`; `visible` says that the measured dose reaches the asked one.
    `since_s` is the moment (CLOCK_MONOTONIC seconds) from which it did, or None while it does not. `residual`
    is what is left of it, at any dose (bytes, copies, links): it is gone only when that is 0.
    """

    visible: bool
    asked: float
    measured: float
    unit: str
    since_s: float | None = None
    detail: str = ""
    residual: float = 0.0


class Fault(BaseModel):
    """One thing that goes wrong with a GPU node, and how it is put right."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    builds_up: ClassVar[bool] = False  # it disturbs before it has reached its dose
    less_is_stronger: ClassVar[bool] = False  # of its dose: what is left, not what is taken

    # Words for the report and for `brownout list faults`; each kind states its own.
    dose: ClassVar[str] = ""  # what its effect is measured in
    undo: ClassVar[str] = "its neighbour ends"  # how it is put right
    fidelity: ClassVar[dict[str, Fidelity]] = {}
    certifies: ClassVar[str] = ""
    does_not_certify: ClassVar[str] = ""
    real_method: ClassVar[str] = ""  # how it is caused on hardware, and taken back
    privileges: ClassVar[str] = ""  # what that takes

    def touches(self) -> frozenset[int]:
        """The cards it acts on."""
        raise NotImplementedError

    def weakens(self) -> tuple[str, ...]:
        """Pairs of cards, e.g. '0-1', whose NVLinks a service can tell to be weak and go around."""
        return ()

    def check_reach(self, *, cards: int, cards_max: int) -> None:
        """ValueError if it names a card that the node lacks, or acts on more cards than `cards_max`."""
        beyond = sorted(card for card in self.touches() if not 0 <= card < cards)
        if beyond:
            raise ValueError(f"card {beyond[0]} is not on the node; it has cards 0 to {cards - 1}")
        if len(self.touches()) > cards_max:
            raise ValueError(f"acts on {len(self.touches())} cards; blast_radius.cards_max is {cards_max}")

    def check_node(self, gpu: Gpu) -> None:
        """ValueError if a node like this one, with nothing on it yet, can't be brought into it at this dose."""

    def inject(self, gpu: Gpu) -> AbstractContextManager[None]:
        """Cause it; leaving the block undoes it, whatever happened inside."""
        raise NotImplementedError

    def took_effect(self, gpu: Gpu) -> Effect:
        """Is it visible in the card's own telemetry, and how strong is it? Observes only."""
        raise NotImplementedError
