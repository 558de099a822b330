"""Where runs are kept: `runs/<drill>/<time>/`, with a `latest` link beside them.

drill.yaml      what was asked
history.jsonl   all that happened
verdict.json    how it was judged at the time
report.html, report.xml (JUnit), report.json
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml
from pydantic import ValidationError

from harness.drill import Drill
from harness.errors import UsageError
from harness.history import History
from harness.verdict import Verdict

RUNS = Path("runs")
LATEST = "latest"


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def drill_yaml(self) -> Path:
        return self.folder / "drill.yaml"

    @property
    def history_jsonl(self) -> Path:
        return self.folder / "history.jsonl"

    @property
    def verdict_json(self) -> Path:
        return self.folder / "verdict.json"

    @property
    def report_html(self) -> Path:
        return self.folder / "report.html"

    @property
    def report_xml(self) -> Path:
        return self.folder / "report.xml"

    @property
    def report_json(self) -> Path:
        return self.folder / "report.json"

    def keep_drill(self, drill: Drill) -> None:
        """Write drill.yaml: the drill as it was run, overrides and all.

        With its defaults, so that it still means the same when they have changed.
        """
        whole = drill.model_dump(mode="json")
        whole["load"]["trace"] = os.path.relpath(drill.load.trace, self.folder)  # as a drill file names it
        self.drill_yaml.write_text(
            yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )

    def keep_verdict(self, verdict: Verdict) -> None:
        """Write verdict.json."""
        self.verdict_json.write_text(
            json.dumps(verdict.plain(), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )

    def history(self) -> History:
        """The stored history; UsageError if there is none to read."""
        if not self.history_jsonl.is_file():
            raise UsageError(
                f"{self.folder} holds no history.jsonl, so there is nothing to judge or to report"
            )
        history = History.read(self.history_jsonl)
        if not history.events:
            raise UsageError(f"{self.history_jsonl} holds no event that can be read")
        return history

    def drill(self, history: History) -> Drill:
        """The drill that its history says was run; UsageError if it names none that we know how to read."""
        told = next(history.of_kind("drill"), None)
        if told is None:
            raise UsageError(f"{self.history_jsonl} does not say which drill was run")
        try:
            return Drill.model_validate(told["drill"])
        except (KeyError, ValidationError) as error:
            raise UsageError(f"{self.history_jsonl}: its drill can't be read: {error}") from error


def new_run(drill: Drill, *, root: Path = RUNS, at: datetime | None = None) -> Run:
    """Make a fresh folder for a run of this drill and let `latest` point to it; UsageError if none can be made."""
    try:
        return _new_run(drill, root, at)
    except OSError as error:
        raise UsageError(f"can't keep runs in {root}: {error.strerror}: {error.filename}") from error


def _new_run(drill: Drill, root: Path, at: datetime | None) -> Run:
    stem = (at or datetime.now()).strftime("%Y%m%d-%H%M%S")
    home = root / drill.name
    home.mkdir(parents=True, exist_ok=True)
    for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000))):
        try:
            (home / name).mkdir()
        except FileExistsError:
            continue
        _point_latest(home, name)
        run = Run(home / name)
        run.keep_drill(drill)
        return run
    raise UsageError(f"{home}: a thousand runs began within one second; is the clock stuck?")


def open_run(path: Path) -> Run:
    """The run at that path: a run's folder, a `latest` link, or a drill's folder (its latest run)."""
    if (path / LATEST).exists():
        path = path / LATEST
    if not path.exists():
        raise UsageError(f"no run at {path}{_runs_near(path)}")
    if not path.is_dir():
        raise UsageError(f"{path} is a file; give the run's folder, e.g. {path.parent}")
    run = Run(path.parent / path.readlink() if path.is_symlink() else path)
    if not run.history_jsonl.is_file():
        raise UsageError(f"{path} is not a run: it holds no history.jsonl{_runs_near(path)}")
    return run


def _point_latest(home: Path, name: str) -> None:
    """Replace the link in one move, so that a reader never finds it missing."""
    fresh = home / f".{LATEST}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name, target_is_directory=True)
    fresh.replace(home / LATEST)


def _runs_near(path: Path) -> str:
    home = next((p for p in (path, *path.parents) if p.is_dir()), Path())
    found = sorted((p.parent for p in home.glob("*/history.jsonl")), reverse=True)
    return f"; runs there: {', '.join(str(p) for p in found[:3])}" if found else ""
