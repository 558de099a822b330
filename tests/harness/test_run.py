"""A whole run against a service that is a script: what is in its history, however it ends."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.drill import Drill
from harness.errors import OwnFailure
from harness.history import History
from harness.judge import judge
from harness.recorder import Recorder
from harness.run import Interrupted, interruptible, run
from harness.screen import Screen
from harness.store import Run, new_run
from harness.verdict import Verdict
from tests.harness.fake_stage import AlsoPlain, FakeWorld, short_drill, short_plan

Play = Callable[..., tuple[History, Verdict]]


@pytest.fixture
def folder(tmp_path: Path) -> Run:
    return new_run(short_drill(), root=tmp_path)


@pytest.fixture
def play(folder: Run) -> Iterator[Play]:
    """Runs and judges the short drill; then looks for what must never be left."""

    def play_it(
        world: FakeWorld | None = None, drill: Drill | None = None, plan: Any = None
    ) -> tuple[History, Verdict]:
        drill, screen = drill or short_drill(), Screen(io.StringIO())
        history = run(drill, world or FakeWorld(), plan or short_plan(), folder, screen, {"sets": ["seed=0"]})
        return history, judge(drill, history)

    yield play_it
    assert psutil.Process().children(recursive=True) == []
    assert sorted(path.name for path in folder.folder.iterdir()) == ["drill.yaml", "history.jsonl"]


def edges(history: History) -> list[str]:
    return [event["edge"] for event in history.of_kind("fault")]


def once(moment: Callable[[], bool], do: Callable[[], object], within_s: float = 30.0) -> threading.Thread:
    """Does something, on a thread, as soon as the moment has come."""

    def wait() -> None:
        until = time.monotonic() + within_s
        while not moment():
            if time.monotonic() > until:
                return
            time.sleep(0.005)
        do()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def written(folder: Run) -> str:
    return folder.history_jsonl.read_text() if folder.history_jsonl.exists() else ""


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_history_has_the_drill_the_load_each_request_the_fault_and_the_end(play: Play, folder: Run) -> None:
    history, verdict = play()
    told = list(dict.fromkeys(event["kind"] for event in history.events))
    assert told == ["drill", "load", "request", "fault", "fidelity", "leftover", "end"]
    first = history.events[0]
    assert (first["drill"], first["world"], first["sets"]) == (short_drill().plain(), "local", ["seed=0"])
    assert {"brownout", "python", "host", "git", "wall_start"} <= first.keys()
    finished = history.load("finished")
    assert finished is not None
    assert (finished["planned"], finished["sent"]) == (19, 19)
    assert sorted(event["index"] for event in history.of_kind("request")) == list(range(19))
    assert edges(history) == ["injecting", "active", "rolling_back", "gone"]
    assert [event["equal"] for event in history.of_kind("fidelity")] == [True] * 4
    assert history.complete
    assert verdict.of_outcome("BROKEN") == []
    assert History.read(folder.history_jsonl) == history


def test_a_text_that_differs_when_asked_again_is_told_with_both_and_broken(play: Play) -> None:
    history, verdict = play(FakeWorld(server=AlsoPlain(again=lambda: "t0 t2 ")))
    told = list(history.of_kind("fidelity"))
    assert {(event["equal"], event["expected"], event["got"]) for event in told} == {
        (False, "t0 t2 ", "t0 t1 ")
    }
    assert verdict.finding("invariant.token-fidelity").outcome == "BROKEN"


MOMENTS = {
    "setting the stage": ("", []),
    "starting the load": ('"kind":"drill"', []),
    "baseline": ('"kind":"request"', []),
    "fault": ('"edge":"active"', ["injecting", "active", "rolling_back", "gone"]),
    "recovery": ('"edge":"gone"', ["injecting", "active", "rolling_back", "gone"]),
    "asking again": ('"kind":"fidelity"', ["injecting", "active", "rolling_back", "gone"]),
}


def slowly() -> str:
    time.sleep(0.05)
    return "t0 t1 "


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_undoes_what_is_on_leaves_nothing_and_the_verdict_is_unknown(
    moment: str, play: Play, folder: Run
) -> None:
    mark, expected = MOMENTS[moment]
    world = FakeWorld()
    if moment == "setting the stage":
        world.setting_up = ctrl_c
    elif moment == "asking again":
        world.server = AlsoPlain(again=slowly)
    if mark:
        once(lambda: mark in written(folder), ctrl_c)
    drill = short_drill(fidelity_sample=19)
    history, verdict = play(world, drill)
    assert [event["signal"] for event in history.of_kind("interrupted")] == ["SIGINT"]
    assert not history.complete
    assert edges(history) == expected
    assert len(list(history.of_kind("fidelity"))) < 19
    assert verdict.status == "UNKNOWN"
    assert verdict.of_outcome("BROKEN") == []
    assert verdict.finding("run.complete").reason == "the run was cut short by SIGINT"


def test_sigterm_is_heard_as_well(play: Play, folder: Run) -> None:
    once(lambda: '"edge":"active"' in written(folder), lambda: os.kill(os.getpid(), signal.SIGTERM))
    history, _ = play()
    assert [event["signal"] for event in history.of_kind("interrupted")] == ["SIGTERM"]
    assert edges(history)[-1] == "gone"


def test_a_signal_is_remembered_until_somebody_asks_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    heard: list[str | None] = []

    def work() -> None:
        with interruptible() as watch:
            watch.check()
            ctrl_c()
            heard.append(watch.signal)
            watch.check()

    with pytest.raises(Interrupted, match="SIGINT"):
        work()
    assert heard == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is before


def locusts() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "locust" in child.cmdline()]


def test_a_load_generator_that_is_killed_ends_the_drill_at_once_as_our_failure(
    play: Play, folder: Run
) -> None:
    killed_at: list[float] = []

    def kill() -> None:
        locusts()[0].send_signal(signal.SIGKILL)
        killed_at.append(time.monotonic())

    once(lambda: '"edge":"active"' in written(folder), kill)
    long = short_drill(load={**short_drill().plain()["load"], "span_s": 60})
    history, verdict = play(drill=long, plan=short_plan(until_s=50, every_s=0.5))
    (failure,) = history.of_kind("failure")
    assert "requests over, then killed by signal 9" in failure["reason"]
    assert not history.complete
    assert edges(history) == ["injecting", "active", "rolling_back", "gone"]
    assert time.monotonic() - killed_at[0] < 10
    assert (verdict.status, verdict.of_outcome("BROKEN")) == ("UNKNOWN", [])


class DiesOnce(AlsoPlain):
    """May be ended before its block is left."""

    def __exit__(self, *_: object) -> None:
        if not self._loop.is_closed():
            super().__exit__()


def test_a_service_that_dies_is_a_finding_and_never_a_pass(play: Play, folder: Run) -> None:
    world = FakeWorld(server=DiesOnce())
    once(lambda: '"edge":"active"' in written(folder), lambda: world.server.__exit__())
    history, verdict = play(world)
    late = [event["outcome"] for event in history.of_kind("request") if event["due"] > 1.5]
    assert set(late) == {"failed"}
    assert list(history.of_kind("failure")) == []
    assert edges(history)[-1] == "gone"
    assert not verdict.passed


def test_a_stage_that_falls_apart_is_our_failure_after_the_undo(play: Play) -> None:
    began: list[float] = []

    def fall_apart() -> None:
        began.append(time.monotonic())
        if began[-1] - began[0] > 0.8:
            raise OwnFailure("the node is gone")

    history, verdict = play(FakeWorld(check=fall_apart))
    assert [event["reason"] for event in history.of_kind("failure")] == ["the node is gone"]
    assert edges(history)[-2:] == ["rolling_back", "gone"]
    assert verdict.status == "UNKNOWN"


FULL = {
    "intent": ('"edge":"injecting"', ["injecting", "gone"]),
    "fault": ('"edge":"active"', ["injecting", "active", "rolling_back", "gone"]),
    "very end": ('"state":"finished"', ["injecting", "active", "rolling_back", "gone"]),
}


@pytest.mark.parametrize("moment", FULL)
def test_a_disk_that_fills_up_ends_the_drill_at_once_undone_and_unknown(
    moment: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mark, expected), write = FULL[moment], Recorder._write

    def write_until(self: Recorder, line: bytes) -> None:
        if mark.encode() in line:
            self._problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            write(self, line)

    monkeypatch.setattr(Recorder, "_write", write_until)
    history, verdict = play()
    (failure,) = history.of_kind("failure")
    assert failure["reason"].endswith("history.jsonl: No space left on device")
    assert edges(history) == expected
    assert (history.load("finished") is not None) == (moment == "very end"), "it went on"
    assert not history.complete
    assert (verdict.status, verdict.of_outcome("BROKEN")) == ("UNKNOWN", [])


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), OwnFailure("no port")])
def test_a_stage_that_cannot_be_set_is_our_failure(problem: Exception, play: Play) -> None:
    def fail() -> None:
        raise problem

    history, verdict = play(FakeWorld(setting_up=fail))
    assert [event["reason"] for event in history.of_kind("failure")] == [str(problem)]
    assert verdict.status == "UNKNOWN"


def test_a_mistake_of_our_own_is_raised_and_in_the_history_too(play: Play, folder: Run) -> None:
    def fail() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        play(FakeWorld(setting_up=fail))
    history = History.read(folder.history_jsonl)
    assert [event["reason"] for event in history.of_kind("failure")] == ["LookupError: a bug"]
    assert [event["complete"] for event in history.of_kind("end")] == [False]


def test_a_history_says_which_commit_ran_and_whether_it_had_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.run import provenance

    answers = {"rev-parse": "abc123\n", "status": " M x.py\n"}

    def git(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 0, answers[words[1]], "")

    monkeypatch.setattr(subprocess, "run", git)
    assert provenance()["git"] == {"head": "abc123", "dirty": True}
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 128, "", ""))
    assert provenance()["git"] is None
