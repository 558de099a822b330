"""What a report says in words, worked out once: all renderings show it and calculate nothing themselves."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.drill import Drill, Step
from harness.history import History
from harness.verdict import Finding, Verdict
from reports.recovery import Recovery, recovery_of


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


def summarise(drill: Drill, history: History, verdict: Verdict, *, kept: Path | None = None) -> Summary:
    """Work out what to say of a run. `kept` is its own drill.yaml, which repeats it if it came from no file."""
    told = next(history.of_kind("drill"), {})
    world = str(told.get("world") or drill.worlds[0])
    return Summary(
        drill=drill.name,
        why=drill.why,
        world=world,
        status=verdict.status,
        counted=verdict.count(),
        findings=verdict.findings,
        recoveries=tuple(recovery_of(step, history, verdict) for step in drill.timeline),
        scopes=tuple(_scope(step, world) for step in drill.timeline),
        facts=_facts(told, drill),
        repeat=_repeat(told, drill, world, kept),
    )


def _scope(step: Step, world: str) -> Scope:
    fault = step.fault
    fidelity = fault.fidelity.get(world, "not said")
    return Scope(step.id, fault.kind, str(fidelity), fault.certifies, fault.does_not_certify)


def _facts(told: dict[str, Any], drill: Drill) -> dict[str, str]:
    facts = {
        "started": told.get("wall_start"),
        "seed": drill.seed,
        "brownout": told.get("brownout"),
        "python": told.get("python"),
        "host": told.get("host"),
        "git": _commit(told.get("git")),
        "overrides": ", ".join([*(told.get("sets") or ()), *(told.get("overrides") or ())]),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _commit(git: Any) -> str:
    """Short, and honest about changes that are in no commit."""
    if not isinstance(git, dict):
        return str(git or "")
    changes = " and uncommitted changes" if git.get("dirty") else ""
    return f"{str(git.get('head'))[:12]}{changes}"


def _repeat(told: dict[str, Any], drill: Drill, world: str, kept: Path | None) -> tuple[str, ...]:
    """The commands that run it again as it was run: by name, and as a pytest item."""
    file = told.get("file")
    if file is None:
        return (
            (f"brownout run {kept} --world {world}", f"pytest {kept} --drill-world {world}") if kept else ()
        )
    variables = [f"{name}={shlex.quote(value)}" for name, value in (told.get("environment") or {}).items()]
    sets = told.get("sets") or ()
    run = [*variables, "brownout", "run", file, "--world", world, "--seed", str(drill.seed)]
    run += [word for text in sets if not text.startswith("seed=") for word in ("--set", shlex.quote(text))]
    test = [*variables, "pytest", file]
    test += [word for text in sets for word in ("--drill-set", shlex.quote(text))]
    return " ".join(run), " ".join(test)
