"""Xids that are somebody's bug: the driver reports errors of applications, and the card is well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.telemetry import EventType
from faults.kept import OnCard
from faults.pace import REACHED, WINDOW_S, node_now

_AMPLE = 1.25  # times as fast, so that it is as fast as asked though the neighbour be kept waiting
XIDS = (13, 31, 43, 45)  # of applications: graphics engine exception, page fault, stopped, cleaned up early


class XidNoise(OnCard):
    """A card reports Xids of other applications (13, 31, 43, 45 in turn), `per_s` a second. Nothing is wrong."""

    kind: Literal["xid_noise"] = "xid_noise"
    per_s: float = Field(default=20, ge=10, le=100, description="Events a second.")

    dose: ClassVar[str] = "Xid events per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That nobody takes a healthy card out of service, or slows down, because other applications crash on it. "
        "A healthy node was seen with 11,760 Xids 45 (NVSentinel, issue 1748)."
    )
    does_not_certify: ClassVar[str] = (
        "What a cordoning controller does with them, unless it watches this node."
    )
    real_method: ClassVar[str] = (
        "An application of one's own that reads a bad address in a kernel and ends, again and again: Xid 31, then 43 "
        "or 45. Taken back by ending it. For what reads the kernel's log, lines there."
    )
    privileges: ClassVar[str] = "none: any user who may use the card; the kernel's log: root"

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that has them reported."""
        with gpu.neighbour("noise", card=self.card, xids=XIDS, per_s=_AMPLE * self.per_s):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while events with such Xids come at the asked rate. What is left: those of the last half second."""
        now_us = time.time_ns() // 1000
        ages_s = [
            (now_us - event.at_us) / 1e6
            for event in gpu.events()
            if event.card == self.card and event.type == EventType.XID and event.data in XIDS
        ]
        recent = [age_s for age_s in ages_s if age_s <= WINDOW_S]
        measured = len(recent) / WINDOW_S
        visible = measured >= REACHED * self.per_s
        since_s = node_now(gpu) - max(recent) if visible else None
        detail = f"{len(ages_s)} such events are kept; the last one of any kind was {gpu.card(self.card).last_xid:.0f}"
        return Effect(visible, self.per_s, measured, "Xids/s", since_s, detail, len(recent))
