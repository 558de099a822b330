"""What a world sets up for a drill, and what a drill may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from faults.gpu.base import Gpu
from harness.drill import Drill
from harness.recorder import Recorder
from harness.store import Run


@dataclass(frozen=True)
class Stage:
    """A target that serves, and the node to disturb (None where there is none)."""

    url: str
    gpu: Gpu | None
    model: str | None  # what requests ask for; None leaves it out
    check: Callable[[], None] = lambda: None  # raises OwnFailure when the stage has fallen apart


class World(Protocol):
    """Where a drill runs."""

    name: str

    def refuse(self, drill: Drill) -> None:
        """UsageError, before anything is touched, if the drill can't run here."""

    def stage(
        self, drill: Drill, run: Run, recorder: Recorder, check: Callable[[], None]
    ) -> AbstractContextManager[Stage]:
        """Set up; leaving the block takes everything down and records what was left.

        `check` is called while something is waited for, and raises when the drill is to stop.
        """
