"""One fault from off to on to off. The harness, not the fault, waits for the effect to appear and to be gone.

injecting ──► active ──(held, and looked at)──► rolling_back ──► gone
    │           └──► lost ──(held on)──────────────▲
    └──(no effect in time)─────────────────────────┘           broken: a step raised, or the effect stayed

A fault can end by itself while it is held, so it is looked at until the undo: the first look that does not
show it at its dose is the edge `lost`, and `rolling_back` says how it was at the last look and at its weakest.
Gone is a fault of which nothing is left, not one that fell below its dose.

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
HELD_LOOK_EVERY_S = 0.1

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
                held: dict[str, Any] = {}
                try:
                    self._hold(step, held)
                finally:
                    self._edge(step, "rolling_back", **held)
        except Exception as error:
            self._edge(step, "broken", reason=f"{type(error).__name__}: {error}")
            if not self._happened(step, "rolling_back"):
                self._edge(step, "rolling_back")
        self._confirm_gone(step)
        if self._stop is not None:
            raise self._stop

    def _hold(self, step: Step, held: dict[str, Any]) -> None:
        """Until the step's time is up; `held` is filled with what was seen, also if a look fails."""
        effect = self._await(step, lambda effect: effect.visible, may_stop=True)
        if not effect.visible:
            if self._stop is None:  # else nobody waited long enough to say so
                self._edge(step, "no_effect", **_dose(effect))
            return
        began = effect.since_s if effect.since_s is not None else self._clock()
        self._edge(step, "active", effect_t=round(began - self._recorder.start, 6), **_dose(effect))
        self._keep_looking(step, effect, held)

    def _keep_looking(self, step: Step, effect: Effect, held: dict[str, Any]) -> None:
        until = self._clock() + step.hold_s
        seen = [effect.measured]
        weakest = max if step.fault.less_is_stronger else min
        lost = False
        while self._stop is None and (left := until - self._clock()) > 0:
            self._pause(min(HELD_LOOK_EVERY_S, left))
            held |= {"held": False, "looks": len(seen)}  # stays so if the look fails
            effect = step.fault.took_effect(self._gpu)
            seen.append(effect.measured)
            if not effect.visible and not lost:
                lost = True
                after_s = self._clock() - (until - step.hold_s)
                reason = f"no longer visible at the asked dose {after_s:.1f} s after it was noticed"
                self._edge(step, "lost", reason=reason, **_dose(effect))
            known = [measured for measured in seen if math.isfinite(measured)]
            held |= {
                "held": effect.visible,
                "looks": len(seen),
                "weakest": weakest(known) if known else None,
                "unit": effect.unit,
            }

    def _confirm_gone(self, step: Step) -> None:
        try:
            effect = self._await(step, _is_gone)
        except Exception as error:
            self._edge(
                step, "broken", reason=f"can't see whether it is gone: {type(error).__name__}: {error}"
            )
            return
        if _is_gone(effect):
            self._edge(step, "gone", **_dose(effect))
            return
        what = "still there" if effect.visible else f"some of it is left ({effect.residual:g})"
        self._edge(
            step, "broken", reason=f"{what} {step.effect_within_s:g} s after the undo", **_dose(effect)
        )

    def _await(self, step: Step, reached: Callable[[Effect], bool], *, may_stop: bool = False) -> Effect:
        """Look until that is reached, at most `effect_within_s`; the last look.

        A drill that is to stop does not wait for an effect to appear, but it does wait for it to be gone.
        """
        until = self._clock() + step.effect_within_s
        while True:
            effect = step.fault.took_effect(self._gpu)
            if reached(effect) or self._clock() >= until or (may_stop and self._stop is not None):
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


def _is_gone(effect: Effect) -> bool:
    return not effect.visible and effect.residual == 0


def _dose(effect: Effect) -> dict[str, Any]:
    numbers = {"asked": effect.asked, "measured": effect.measured, "residual": effect.residual}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}  # as JSON
    return {**finite, "unit": effect.unit, "detail": effect.detail}
