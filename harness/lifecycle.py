"""One fault from off to on to off. The harness, not the fault, waits for the effect to appear and to be gone.

injecting ──► active ──(held)──► rolling_back ──► gone
    │                                 ▲
    └──(no effect in time)────────────┘           broken: a step raised, or the effect stayed

What `wait` raises stops the drill, not the undo: it is kept until the fault is gone, and raised then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from faults.base import Effect
from faults.gpu.base import Gpu
from harness.drill import Step
from harness.errors import OwnFailure
from harness.recorder import Recorder

LOOK_EVERY_S = 0.01

Wait = Callable[[float], None]  # until a monotonic time; may raise to interrupt


class Lifecycle:
    """Runs steps; `wait` keeps the screen alive and raises when the drill is to stop."""

    def __init__(
        self,
        gpu: Gpu,
        recorder: Recorder,
        wait: Wait,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gpu = gpu
        self._recorder = recorder
        self._wait = wait
        self._clock = clock
        self._sleep = sleep
        self._stop: Exception | None = None

    def run(self, step: Step) -> None:
        """Inject, wait for the effect, hold, undo, wait for its end. A fault that fails is recorded, not raised."""
        self._stop = None
        self._edge(step, "injecting", fault=step.fault.model_dump(mode="json"))
        try:
            self._recorder.check()
        except OwnFailure:
            self._edge(step, "gone", reason="it was not injected: its intent is not on disk")
            raise
        try:
            with step.fault.inject(self._gpu):
                try:
                    self._hold(step)
                finally:
                    self._edge(step, "rolling_back")
        except Exception as error:
            self._edge(step, "broken", reason=f"{type(error).__name__}: {error}")
            if not self._happened(step, "rolling_back"):
                self._edge(step, "rolling_back")
        self._confirm_gone(step)
        if self._stop is not None:
            raise self._stop

    def _hold(self, step: Step) -> None:
        effect = self._await(step, visible=True)
        if not effect.visible:
            if self._stop is None:  # else nobody waited long enough to say so
                self._edge(step, "no_effect", **_dose(effect))
            return
        began = effect.since_s if effect.since_s is not None else self._clock()
        self._edge(step, "active", effect_t=round(began - self._recorder.start, 6), **_dose(effect))
        if self._stop is None:
            self._pause(step.hold_s)

    def _confirm_gone(self, step: Step) -> None:
        try:
            effect = self._await(step, visible=False)
        except Exception as error:
            self._edge(
                step, "broken", reason=f"can't see whether it is gone: {type(error).__name__}: {error}"
            )
            return
        if effect.visible:
            self._edge(
                step,
                "broken",
                reason=f"still there {step.effect_within_s:g} s after the undo",
                **_dose(effect),
            )
        else:
            self._edge(step, "gone", **_dose(effect))

    def _await(self, step: Step, *, visible: bool) -> Effect:
        """Look until the effect is (or is no longer) visible, at most `effect_within_s`; the last look.

        A drill that is to stop does not wait for an effect to appear, but it does wait for it to be gone.
        """
        until = self._clock() + step.effect_within_s
        while True:
            effect = step.fault.took_effect(self._gpu)
            if effect.visible == visible or self._clock() >= until or (visible and self._stop is not None):
                return effect
            self._pause(LOOK_EVERY_S)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the drill is to stop: then sleep only as long as it takes to look again."""
        if self._stop is None:
            try:
                self._wait(self._clock() + seconds)
            except Exception as stop:
                self._stop = stop
        else:
            self._sleep(LOOK_EVERY_S)

    def _edge(self, step: Step, edge: str, **fields: Any) -> None:
        self._recorder.note("fault", step=step.id, edge=edge, **fields)

    def _happened(self, step: Step, edge: str) -> bool:
        return self._recorder.history().edge(step.id, edge) is not None


def _dose(effect: Effect) -> dict[str, Any]:
    measured = effect.measured if math.isfinite(effect.measured) else None  # JSON has no other
    return {"asked": effect.asked, "measured": measured, "unit": effect.unit, "detail": effect.detail}
