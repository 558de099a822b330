"""What a report says, worked out once: all renderings show these values and calculate nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.drill import Drill, Step
from harness.history import ANSWERED, History, Window
from harness.slo import requests_due, sample_quantile, value_ms
from harness.verdict import Finding, Verdict

SLICE_S = 1.0  # the recovery of a latency is told to this resolution


@dataclass(frozen=True)
class Recovery:
    """How one step went, in seconds after the fault was gone where nothing else is said.

    `recovered_s` is the last of what is known: breaker closed, last lower-rung answer, last slice over an
    SLO's bound. None: not recovered before the next step or the end, or the fault's end is not known.
    """

    step: str
    fault: str
    on_s: float | None  # how long it was on at its full dose
    detected_ms: float | None
    breaker_closed_s: float | None
    last_downgraded_s: float | None
    last_slow_s: float | None
    recovered_s: float | None
    slow_bound: str = ""

    def __str__(self) -> str:
        if self.on_s is None:
            return f"{self.step}: the fault never took effect"
        told = (
            f"recovered {self.recovered_s:.1f} s after it was gone"
            if self.recovered_s is not None
            else "not recovered"
        )
        return f"{self.step}: {self.on_s:.1f} s of {self.fault}, {told}" + (
            f" ({self.details})" if self.details else ""
        )

    @property
    def details(self) -> str:
        parts = [
            (self.detected_ms, "breaker open after {:.0f} ms"),
            (self.breaker_closed_s, "closed after {:.1f} s"),
            (self.last_downgraded_s or None, "last lower-rung answer due at {:.1f} s"),
            (self.last_slow_s, self.slow_bound + (" from {:.0f} s on" if self.last_slow_s else " throughout")),
        ]
        return ", ".join(words.format(value) for value, words in parts if value is not None)


@dataclass(frozen=True)
class Scope:
    """What a step of this run stands for, in its world, and what it does not."""

    step: str
    fault: str
    fidelity: str
    certifies: str
    does_not_certify: str


@dataclass(frozen=True)
class Summary:
    """Everything a report says in words."""

    drill: str
    why: str
    world: str
    status: str
    counted: str
    findings: tuple[Finding, ...]
    recoveries: tuple[Recovery, ...]
    scopes: tuple[Scope, ...]
    facts: dict[str, str]
    repeat: tuple[str, ...]


def summarise(drill: Drill, history: History, verdict: Verdict, *, drill_file: Path | None = None) -> Summary:
    """Work out what to say of a run. `drill_file` is named in the commands that repeat it."""
    told = next(history.of_kind("drill"), {})
    world = str(told.get("world") or drill.worlds[0])
    file = drill_file or Path("scenarios") / f"{drill.name}.yaml"
    return Summary(
        drill=drill.name,
        why=drill.why,
        world=world,
        status=verdict.status,
        counted=verdict.count(),
        findings=verdict.findings,
        recoveries=tuple(_recovery(step, history, verdict) for step in drill.timeline),
        scopes=tuple(_scope(step, world) for step in drill.timeline),
        facts=_facts(told, drill),
        repeat=(_run_again(file, told, drill, world), f"pytest {file}"),
    )


def _recovery(step: Step, history: History, verdict: Verdict) -> Recovery:
    active, undo, gone = (history.edge(step.id, edge) for edge in ("active", "rolling_back", "gone"))
    on_s = float((undo or history.events[-1])["t"] - active["t"]) if active else None
    numbers = {
        f.id.rsplit(".", 1)[-1]: f.numbers
        for f in verdict.findings
        if f.id.startswith(f"response.{step.id}.")
    }
    detected = numbers.get("detected", {}).get("latency_ms")
    closed = numbers.get("closed-again", {}).get("took_s")
    still_open = "watched_s" in numbers.get("closed-again", {})
    window = history.window("recovery", step.id)
    downgraded, slow, bound, slow_at_end = None, None, "", False
    if window is not None:
        downgraded = _last_downgraded(history, window)
        slow, bound, slow_at_end = _last_slow(history, window, step.id, verdict)
    known = [s for s in (closed, downgraded, slow) if s is not None]
    recovered = None if gone is None or still_open or slow_at_end else max(known, default=None)
    return Recovery(step.id, step.fault.kind, on_s, detected, closed, downgraded, slow, recovered, bound)


def _last_downgraded(history: History, window: Window) -> float | None:
    """When the last lower-rung answer of the recovery was due; 0 if there was none, None without labels."""
    labelled = [r for r in requests_due(history, window) if r["outcome"] in ANSWERED and r.get("rung")]
    if not labelled:
        return None
    return max((r["due"] - window.start for r in labelled if r["rung"] != "full"), default=0.0)


def _last_slow(
    history: History, window: Window, step: str, verdict: Verdict
) -> tuple[float | None, str, bool]:
    """The end of the last slice over the first latency bound that recovery has, and whether it is the last slice."""
    prefix = f"slo.recovery.{step}."
    bounds = [
        f for f in verdict.findings if f.id.startswith(prefix) and "_ms.p" in f.id and "bound" in f.numbers
    ]
    if not bounds:
        return None, "", False
    metric, quantile = bounds[0].id.removeprefix(prefix).split(".p")[0], 1 - bounds[0].numbers["allowed"]
    limit, last, seen = bounds[0].numbers["bound"], 0.0, 0.0
    slices: dict[int, list[float]] = {}
    for request in requests_due(history, window):
        if (value := value_ms(metric, request)) is not None:
            slices.setdefault(int((request["due"] - window.start) / SLICE_S), []).append(value)
    for index, values in sorted(slices.items()):
        seen = (index + 1) * SLICE_S
        if sample_quantile(values, quantile) > limit:
            last = seen
    return last, f"{metric} p{quantile * 100:.4g} ≤ {limit:.0f} ms", bool(seen and last == seen)


def _scope(step: Step, world: str) -> Scope:
    fault = step.fault
    fidelity = fault.fidelity.get(world, "not said")
    return Scope(step.id, fault.kind, str(fidelity), fault.certifies, fault.does_not_certify)


def _facts(told: dict[str, Any], drill: Drill) -> dict[str, str]:
    facts = {name: told.get(name) for name in ("wall_start", "seed", "brownout", "python", "git")}
    facts["seed"] = drill.seed if facts["seed"] is None else facts["seed"]
    overrides = told.get("overrides") or ()
    if overrides:
        facts["overrides"] = (
            ", ".join(map(str, overrides)) if not isinstance(overrides, dict) else str(overrides)
        )
    return {name.replace("_", " "): str(value) for name, value in facts.items() if value not in (None, "")}


def _run_again(file: Path, told: dict[str, Any], drill: Drill, world: str) -> str:
    seed = told.get("seed", drill.seed)
    return f"brownout run {file} --world {world} --seed {seed}"
