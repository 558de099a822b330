"""The folder of runs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from harness.drill_file import load_drill
from harness.errors import UsageError
from harness.judge import judge
from harness.store import new_run, open_run
from tests.builders import a_drill, a_history

DRILL = a_drill()
NOON = datetime(2026, 5, 4, 12, 0, 0)


def test_a_run_is_kept_under_its_drill_and_time(tmp_path: Path) -> None:
    run = new_run(DRILL, root=tmp_path, at=NOON)
    assert run.folder == tmp_path / "burst-survives-vram" / "20260504-120000"
    assert "name: burst-survives-vram" in run.drill_yaml.read_text()


def test_a_time_that_is_taken_gets_a_suffix_and_latest_follows(tmp_path: Path) -> None:
    first, second = (new_run(DRILL, root=tmp_path, at=NOON) for _ in range(2))
    assert (first.folder.name, second.folder.name) == ("20260504-120000", "20260504-120000-2")
    assert (tmp_path / DRILL.name / "latest").resolve() == second.folder.resolve()


@pytest.mark.parametrize("path", ["burst-survives-vram", "burst-survives-vram/latest"])
def test_a_stored_run_is_judged_again_to_the_same_verdict(tmp_path: Path, path: str) -> None:
    run = new_run(DRILL, root=tmp_path, at=NOON)
    history = a_history(drill=DRILL)
    history.write(run.history_jsonl)
    verdict = judge(DRILL, history)
    run.keep_verdict(verdict)

    again = open_run(tmp_path / path)
    assert again.folder.resolve() == run.folder.resolve()
    assert again.drill(again.history()) == DRILL
    assert judge(again.drill(again.history()), again.history()) == verdict
    assert json.loads(again.verdict_json.read_text())["status"] == "PASS"


def test_a_path_without_a_run_names_the_runs_that_are_near(tmp_path: Path) -> None:
    a_history().write(new_run(DRILL, root=tmp_path, at=NOON).history_jsonl)
    with pytest.raises(UsageError, match=r"no run at .*/nope; runs there: .*/20260504-120000"):
        open_run(tmp_path / DRILL.name / "nope")


def test_a_folder_without_a_history_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run: it holds no history\.jsonl"):
        open_run(tmp_path)


def test_a_file_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").touch()
    with pytest.raises(UsageError, match="is a file; give the run's folder"):
        open_run(tmp_path / "history.jsonl")


def test_a_history_that_names_no_drill_or_one_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    run = new_run(DRILL, root=tmp_path, at=NOON)
    run.history_jsonl.write_text('{"t": 0, "kind": "drill", "drill": {"name": "x"}}\n')
    with pytest.raises(UsageError, match="its drill can't be read"):
        run.drill(run.history())
    run.history_jsonl.write_text("not json\n")
    with pytest.raises(UsageError, match="no event that can be read"):
        run.history()


def test_the_drill_that_a_run_kept_can_be_read_and_run_again(tmp_path: Path) -> None:
    drill = load_drill("scenarios/burst-survives-vram-pcie-nvlink.yaml")
    run = new_run(drill, root=tmp_path)
    again = load_drill(run.drill_yaml)
    assert again.load.trace.resolve() == drill.load.trace.resolve()
    assert again.timeline == drill.timeline
