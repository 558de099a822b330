"""Stands in for running a drill: remembers what was asked, and gives endings that were made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reports.files  # noqa: F401 - once, not in each pytest that runs inside pytest
from harness.history import History
from harness.judge import judge
from harness.perform import Asked, Performance
from harness.store import new_run
from harness.verdict import Verdict
from tests.builders import a_drill, a_history, an_slo, requests

DRILL = a_drill(slos=[an_slo(quantile=0.9, max=500)])
SLOW_UNDER_FAULT = [*requests(105), *requests(100, start=10.5, ttft_ms=900), *requests(195, start=20.5)]
ENDINGS: Mapping[str, dict[str, Any]] = {
    "PASS": {},
    "FAIL": {"requests": SLOW_UNDER_FAULT},
    "UNKNOWN": {"end": {"complete": False}},
    "interrupted": {"more": [{"kind": "interrupted", "t": 30.0, "signal": "SIGINT"}]},
}


class FakePerform:
    """Called in place of `harness.perform.perform`; an ending that is an exception is raised."""

    def __init__(self, home: Path, *endings: str | BaseException) -> None:
        self.home = home
        self.endings = [made_up(ending) if isinstance(ending, str) else ending for ending in endings]
        self.asked: list[Asked] = []
        self.roots: list[Path] = []

    def __call__(self, asked: Asked, *, root: Path, **_: Any) -> Performance:
        self.asked.append(asked)
        self.roots.append(root)
        ending = self.endings.pop(0)
        if isinstance(ending, BaseException):
            raise ending
        return Performance(asked, new_run(DRILL, root=self.home), *ending)


def made_up(ending: str) -> tuple[History, Verdict]:
    """How a run of `DRILL` ends."""
    history = a_history(drill=DRILL, **ENDINGS[ending])
    return history, judge(DRILL, history)
