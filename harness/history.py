"""A history: all that happened in one run, on one clock, as JSON lines.

Every event has `t` (seconds since the drill's start, CLOCK_MONOTONIC) and `kind`:

| kind        | fields                                                                                             |
|-------------|----------------------------------------------------------------------------------------------------|
| drill       | drill (plain), world, sets, environment, overrides, brownout, python, host, git, wall_start        |
| load        | state: started, finished, failed; planned, and at the end sent, lateness_p99_ms                    |
| fault       | step, edge: injecting, active (or no_effect), lost, rolling_back, gone (or broken);                |
|             | asked, measured, unit, residual, effect_t, reason; on rolling_back: held, weakest, looks           |
| request     | id, index, due, sent, first, t (end), outcome, status, finish, model, rung, tokens_t, text, ...    |
| sample      | source: target, node; values: {name: number}                                                       |
| sample_failure | source, reason, transient: the first read of that source that gave no sample                    |
| breaker     | name, was, now, reason                                                                             |
| service     | event: admitted, terminal, preempted, ..., stopped (the last), died; id, rung, reason              |
| fidelity    | id, equal (null: could not be asked again), rung, expected, got, reason                            |
| leftover    | kv_blocks, memory_bytes, flows, processes, ports, files: what was still there at the end           |
| failure     | reason: a part of brownout itself broke                                                            |
| interrupted | signal                                                                                             |
| end         | complete: whether the run got to its end                                                           |

A request's `outcome` is completed (a stop reason of the model's), length, rejected (429, 503), failed,
timeout or cancelled; its times are seconds since the drill's start, `due` being the intended send time.
Events of the service's own record (breaker, service) have `n`: 1 for its first line, 2 for the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
ANSWERED = ("completed", "length")


def effect_time(active: Event) -> float:
    """When a fault's effect was there: as the card dates it, else when we noticed."""
    seen = active.get("effect_t")
    return float(active["t"] if seen is None else seen)


@dataclass(frozen=True)
class Window:
    """A stretch of one phase, in seconds since the drill's start; `end` is not part of it."""

    phase: str
    step: str | None
    start: float
    end: float

    def __contains__(self, t: float) -> bool:
        return self.start <= t < self.end

    def after(self, seconds: float) -> Window:
        """The window without its first seconds; empty if it is shorter."""
        return Window(self.phase, self.step, min(self.start + seconds, self.end), self.end)


@dataclass
class History:
    """Events in the order of their time."""

    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """A history of these events, sorted by time (equal times keep their order)."""
        return cls(sorted(events, key=lambda event: float(event["t"])))

    @classmethod
    def read(cls, path: Path) -> History:
        """Read JSON lines; a last line that was cut off is left out, so a crash of ours loses one event at most."""
        events: list[Event] = []
        with path.open("rb") as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    break
                if isinstance(event, dict) and "t" in event and "kind" in event:
                    events.append(event)
        return cls.of(events)

    def write(self, path: Path) -> None:
        """Write JSON lines."""
        with path.open("w") as out:
            for event in self.events:
                out.write(json.dumps(event, separators=(",", ":")) + "\n")

    def of_kind(self, kind: str) -> Iterator[Event]:
        return (event for event in self.events if event["kind"] == kind)

    def edge(self, step: str, edge: str) -> Event | None:
        """The fault event of this step and edge, if it happened."""
        for event in self.of_kind("fault"):
            if event["step"] == step and event["edge"] == edge:
                return event
        return None

    def steps(self) -> list[str]:
        """Ids of the steps that were begun, in order."""
        return list(dict.fromkeys(str(event["step"]) for event in self.of_kind("fault")))

    @property
    def world(self) -> str | None:
        """The world that it was recorded in."""
        return next((event.get("world") for event in self.of_kind("drill")), None)

    @property
    def complete(self) -> bool:
        """Whether the run got to its end."""
        return any(event.get("complete") for event in self.of_kind("end"))

    def load_window(self) -> Window | None:
        """From the first intended send time to the end of the load."""
        marks = {str(event["state"]): float(event["t"]) for event in self.of_kind("load")}
        if "started" not in marks:
            return None
        return Window("load", None, marks["started"], marks.get("finished", float(self.events[-1]["t"])))

    def windows(self) -> list[Window]:
        """baseline, then for each step its fault and its recovery.

        The fault's window is from the moment it had taken effect (as the card dates it, not when that was
        noticed) until it was seen to be gone, so the undo is part of it; the recovery's is from then to the
        next step. What is due between an injection and its effect meets no known dose and is in no window;
        everything else that is due during the load is in exactly one.
        """
        load = self.load_window()
        if load is None:
            return []
        starts = [float(e["t"]) for e in self.of_kind("fault") if e["edge"] == "injecting"]
        windows = [Window("baseline", None, load.start, min(starts, default=load.end))]
        for step in self.steps():
            injecting, active, gone = (self.edge(step, edge) for edge in ("injecting", "active", "gone"))
            began = float((injecting or active or gone or {"t": load.end})["t"])
            next_step = min((t for t in starts if t > began), default=load.end)
            if active is not None:
                start = max(effect_time(active), began)
                end = max(float(gone["t"]) if gone else next_step, start)
                windows.append(Window("fault", step, start, end))
            if gone is not None:
                after = float(gone["t"])
                windows.append(Window("recovery", step, after, max(next_step, after)))
        return windows

    def window(self, phase: str, step: str | None) -> Window | None:
        """The window of that phase and step (None for the baseline), if the run had it."""
        for window in self.windows():
            if window.phase == phase and window.step == step:
                return window
        return None

    def load(self, state: str) -> Event | None:
        """The load event of that state, if it happened."""
        return next((event for event in self.of_kind("load") if event["state"] == state), None)

    def counter(self, name: str, t: float, *, source: str) -> float:
        """The last sample of a counter at or before `t`; NaN if there is none."""
        value = math.nan
        for event in self.of_kind("sample"):
            if event["t"] > t:
                break
            if event["source"] == source and name in event["values"]:
                value = float(event["values"][name])
        return value
