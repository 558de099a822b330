"""Runs a drill: baseline, each fault and its recovery, then the questions asked again. The order lives here only."""

from __future__ import annotations

import platform
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from harness.drill import Drill, Step
from harness.errors import BrownoutError
from harness.fidelity import ask_again
from harness.history import History
from harness.lifecycle import Lifecycle
from harness.load.driver import LoadDriver
from harness.load.plan import Plan
from harness.recorder import Recorder
from harness.screen import Screen
from harness.store import Run
from harness.worlds.stage import Stage, World

LOOK_EVERY_S = 0.05
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """SIGINT or SIGTERM; leaves by the same way as any other end, so that everything is undone."""


def run(
    drill: Drill, world: World, arrivals: Plan, folder: Run, screen: Screen, asked: Mapping[str, Any]
) -> History:
    """Everything that happened. Never raises for what happened in the drill: it is in the history.

    A mistake of our own (any other exception) is in the history as well, and is raised.

    `asked` goes into the history's first event: what was set and steered, so that the run can be repeated.
    """
    with interruptible() as watch:
        recorder = Recorder(folder.history_jsonl)
        complete = False
        try:
            recorder.note("drill", drill=drill.plain(), world=world.name, **asked, **provenance())
            with world.stage(drill, folder, recorder, watch.check) as stage:
                Course(drill, stage, arrivals, folder, recorder, screen, watch).play()
            recorder.check()
            watch.check()
            complete = True
        except Interrupted as interrupted:
            recorder.note("interrupted", signal=str(interrupted))
        except (BrownoutError, OSError) as failure:  # OSError: no space, no process, no file to be had
            recorder.note("failure", reason=str(failure))
            screen.finish()
            screen.say(f"  {failure}")
        except Exception as mistake:
            recorder.note("failure", reason=f"{type(mistake).__name__}: {mistake}")
            raise
        finally:
            recorder.note("end", complete=complete)
            recorder.close()
            screen.finish()
    return recorder.history()


class Course:
    """One run on its stage."""

    def __init__(
        self,
        drill: Drill,
        stage: Stage,
        arrivals: Plan,
        folder: Run,
        recorder: Recorder,
        screen: Screen,
        watch: Watch,
    ) -> None:
        self._drill, self._stage, self._arrivals = drill, stage, arrivals
        self._folder, self._recorder, self._screen, self._watch = folder, recorder, screen, watch
        self._load: LoadDriver | None = None

    def play(self) -> None:
        drill = self._drill
        load = LoadDriver(
            self._stage.url,
            self._arrivals,
            None,
            self._folder.folder,
            drill.load.timeout_s,
            model=self._stage.model,
            on_event=lambda event: self._recorder.absorb(event, kind="request"),
            check=self._watch.check,
        )
        self._screen.phase("starting the load")
        with load:
            self._load = load
            assert load.start_at is not None
            start = load.start_at
            self._recorder.note("load", at=start, state="started", planned=len(self._arrivals))
            self._screen.phase("baseline")
            for step in drill.timeline:
                self._wait(start + step.at_s)
                self._fault(step)
            self._wait(start + drill.load.duration_s)
            self._screen.phase("last answers")
            self._let_finish(load)
            self._recorder.note(
                "load",
                state="finished",
                planned=len(self._arrivals),
                sent=load.progress.sent,
                lateness_p99_ms=round(load.lateness_p99_ms, 3),
            )
        if drill.fidelity_sample:
            self._screen.phase("asking again, alone")
            ask_again(
                self._stage.url, self._recorder.history(), self._arrivals, drill.fidelity_sample, drill.seed,
                self._recorder, self._watch.check,
            )  # fmt: skip
        self._screen.phase("taking everything down")

    def _fault(self, step: Step) -> None:
        assert self._stage.gpu is not None
        self._screen.phase(f"{step.id}: {step.fault.kind} for {step.hold_s:g} s")
        Lifecycle(self._stage.gpu, self._recorder, self._wait).run(step)
        self._screen.phase(f"{step.id}: recovery")

    def _wait(self, until: float) -> None:
        """Until a monotonic time, with the screen alive. Raises as soon as the drill can't go on."""
        while True:
            self._watch.check()
            self._recorder.check()
            self._stage.check()
            if self._load is not None:
                self._screen.status(self._counts(self._load))
                if not self._load.running:
                    self._load.wait()  # raises unless it has played all of its plan
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, LOOK_EVERY_S))

    def _let_finish(self, load: LoadDriver) -> None:
        until = time.monotonic() + self._drill.load.timeout_s
        while load.running and time.monotonic() < until:
            self._wait(time.monotonic() + LOOK_EVERY_S)
        load.wait()

    def _counts(self, load: LoadDriver) -> str:
        progress = load.progress
        ttft = f", TTFT p50 {progress.ttft_p50_ms:.0f} ms" if progress.ttft_p50_ms is not None else ""
        return (
            f"sent {progress.sent}/{progress.planned}, in flight {progress.in_flight}, "
            f"not answered {progress.failed}{ttft}"
        )


class Watch:
    """Remembers a signal until somebody is ready to hear of it: an undo must not be cut in two by one."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signal is not None:
            raise Interrupted(self.signal)


@contextmanager
def interruptible() -> Iterator[Watch]:
    """The signals that end a program are remembered instead of raised, while the block lasts."""
    watch = Watch()
    before = {number: signal.signal(number, watch.hear) for number in ENDING_SIGNALS}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def provenance() -> dict[str, Any]:
    """Which code ran where, so that a run can be repeated."""
    try:
        release = version("brownout")
    except PackageNotFoundError:
        release = "not installed"
    head, dirty = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {
        "brownout": release,
        "python": platform.python_version(),
        "host": f"{platform.system()} {platform.machine()}",
        "git": {"head": head, "dirty": bool(dirty)} if head is not None else None,
        "wall_start": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(*words: str) -> str | None:
    try:
        folder = Path(__file__).resolve().parent
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
