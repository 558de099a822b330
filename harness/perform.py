"""One drill from asking to verdict: what the command line, a pytest item and the `drill` fixture all call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.drill import Drill
from harness.drill import World as WorldName
from harness.drill_file import ENVIRONMENT, load_drill, override_drill, steer_by_environment
from harness.errors import UsageError
from harness.history import History
from harness.judge import judge
from harness.load.plan import Plan, describe, plan
from harness.load.trace import read_trace
from harness.run import run
from harness.screen import Screen
from harness.store import RUNS, Run, new_run
from harness.verdict import Verdict
from harness.worlds.live import LiveWorld
from harness.worlds.local import LocalWorld
from harness.worlds.stage import World

WORLDS: dict[str, type[LocalWorld] | type[LiveWorld]] = {"local": LocalWorld, "live": LiveWorld}


@dataclass(frozen=True)
class Asked:
    """A drill as it was asked for: file and overrides, all checked. Nothing has been touched yet."""

    drill: Drill
    world: World
    arrivals: Plan
    file: Path | None = None
    sets: tuple[str, ...] = ()
    steered: tuple[str, ...] = ()  # what the environment changed, in words
    environment: Mapping[str, str] = field(default_factory=dict)  # the variables that did


@dataclass(frozen=True)
class Performance:
    """A drill that was run and judged."""

    asked: Asked
    run: Run
    history: History
    verdict: Verdict


def ask(
    source: Path | str | Drill,
    *,
    world: WorldName | None = None,
    sets: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Asked:
    """Read and check everything that can be checked without starting anything; UsageError says what is wrong."""
    file = None if isinstance(source, Drill) else Path(source)
    drill = override_drill(source, sets) if isinstance(source, Drill) else load_drill(source, sets)
    given = os.environ if environment is None else environment
    variables = {k: v for k, v in given.items() if k in ENVIRONMENT and v}
    drill, steered = steer_by_environment(drill, variables)
    stage = choose_world(drill, world)
    stage.refuse(drill)
    arrivals = plan(drill.load, drill.seed, read_trace(drill.load.trace))
    return Asked(drill, stage, arrivals, file, sets, tuple(steered), variables)


def choose_world(drill: Drill, name: WorldName | None) -> World:
    """The world asked for, or the drill's first; UsageError if it makes no sense in it or is not built yet."""
    chosen = name or ("live" if drill.target.url and "live" in drill.worlds else drill.worlds[0])
    if chosen not in drill.worlds:
        raise UsageError(f"{drill.name} can't run in world {chosen}; its worlds: {', '.join(drill.worlds)}")
    if chosen not in WORLDS:
        raise UsageError(f"world {chosen} is not built yet; there are: {', '.join(WORLDS)}")
    return WORLDS[chosen]()


def announce(asked: Asked, screen: Screen) -> None:
    """Say what is about to happen."""
    drill = asked.drill
    screen.say(f"{drill.name} in the {asked.world.name} world, seed {drill.seed}")
    screen.say(f"  {drill.why}")
    screen.say(f"  load    {describe(asked.arrivals, drill.load)}")
    for step in drill.timeline:
        dose = ", ".join(f"{k} {v}" for k, v in step.fault.model_dump(mode="json").items() if k != "kind")
        screen.say(
            f"  fault   {step.id} at {step.at_s:g} s for {step.hold_s:g} s: {step.fault.kind} ({dose})"
        )
    if asked.world.name == "local" and drill.target.breaker_time_scale != 1:
        scale = drill.target.breaker_time_scale
        screen.say(
            f"  note    breakers stay open {scale:g} × as long as at full size (60 s VRAM, 30 s PCIe, 120 s NVLink)"
        )
    for told in asked.steered:
        screen.say(f"  note    {told}")


def perform(asked: Asked, *, screen: Screen | None = None, root: Path = RUNS) -> Performance:
    """Run it and judge it; the history and the verdict are in the run's folder, however it went."""
    screen = screen or Screen()
    announce(asked, screen)
    folder = new_run(asked.drill, root=root)
    history = run(
        asked.drill,
        asked.world,
        asked.arrivals,
        folder,
        screen,
        {
            "file": str(asked.file) if asked.file else None,
            "sets": asked.sets,
            "environment": dict(asked.environment),
            "overrides": asked.steered,
        },
    )
    verdict = judge(asked.drill, history)
    try:
        folder.keep_verdict(verdict)
    except OSError as error:  # a full disk: what was worked out is shown all the same
        screen.say(f"  the verdict can't be kept: {error}")
    return Performance(asked, folder, history, verdict)
