"""A history while it is written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.errors import OwnFailure
from harness.history import History
from harness.recorder import Recorder

ROOT = Path(__file__).parents[2]


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(5000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def test_an_event_is_told_in_seconds_since_the_start(path: Path, clock: Clock) -> None:
    recorder = Recorder(path, clock)
    clock.now = 5001.25
    assert recorder.note("load", state="started") == {"t": 1.25, "kind": "load", "state": "started"}
    assert recorder.note("load", at=5003.0, state="finished")["t"] == 3.0
    assert recorder.now() == 1.25
    recorder.close()


def test_the_times_of_another_process_become_ours_and_a_time_that_never_came_stays_none(
    path: Path, clock: Clock
) -> None:
    recorder = Recorder(path, clock)
    recorder.absorb(
        {
            "id": "r-0",
            "due": 5001.0,
            "sent": 5001.0015,
            "first": None,
            "t": 5002.5,
            "tokens_t": [5002.0, 5002.5],
            "status": 200,
        },
        kind="request",
    )
    recorder.close()
    assert recorder.history().events == [
        {
            "id": "r-0",
            "due": 1.0,
            "sent": 1.0015,
            "first": None,
            "t": 2.5,
            "tokens_t": [2.0, 2.5],
            "status": 200,
            "kind": "request",
        }
    ]


def test_each_event_is_a_line_on_disk_before_the_next_is_told(path: Path, clock: Clock) -> None:
    recorder = Recorder(path, clock)
    for n in range(3):
        recorder.note("sample", n=n)
        assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == list(range(n + 1))
    recorder.close()


def test_a_killed_writer_loses_nothing_that_it_was_told_of(path: Path) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from harness.recorder import Recorder
        recorder = Recorder(Path({str(path)!r}))
        for n in range(100):
            recorder.note("sample", n=n)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=False)
    assert [event["n"] for event in History.read(path).events] == list(range(100))


def test_events_from_many_threads_are_whole_lines_and_none_is_lost(path: Path, clock: Clock) -> None:
    recorder = Recorder(path, clock)
    threads = [
        threading.Thread(target=lambda who=who: [recorder.note("sample", who=who, n=n) for n in range(200)])
        for who in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    told = sorted((event["who"], event["n"]) for event in History.read(path).events)
    assert told == [(who, n) for who in range(8) for n in range(200)]
    assert len(recorder.history().events) == 1600


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_and_leaves_no_trace(
    number: float, path: Path, clock: Clock
) -> None:
    recorder = Recorder(path, clock)
    with pytest.raises(ValueError, match="not JSON compliant"):
        recorder.note("sample", values={"x": number})
    recorder.close()
    assert (path.read_text(), recorder.history().events) == ("", [])


def test_what_comes_after_the_end_is_dropped(path: Path, clock: Clock) -> None:
    recorder = Recorder(path, clock)
    recorder.note("end", complete=True)
    recorder.close()
    recorder.note("sample", values={})
    recorder.close()
    assert [event["kind"] for event in History.read(path).events] == ["end"]
    assert [event["kind"] for event in recorder.history().events] == ["end"]


class Disk:
    """Takes `room` bytes, then is full until somebody makes room."""

    closed = False

    def __init__(self, room: int) -> None:
        self.room = room
        self.data = b""

    def write(self, line: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = line[: self.room]
        self.data += taken
        self.room -= len(taken)
        return len(taken)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def on_disk(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A recorder on a disk with some room."""

    def make(room: int) -> tuple[Recorder, Disk]:
        disk, recorder = Disk(room), Recorder(path, clock)
        recorder._file.close()
        monkeypatch.setattr(recorder, "_file", disk)
        return recorder, disk

    return make


def test_a_full_disk_stops_no_undo_but_whoever_asks_is_told(on_disk: Any, path: Path) -> None:
    recorder, _ = on_disk(room=0)
    recorder.note("fault", step="one", edge="rolling_back")
    with pytest.raises(OwnFailure, match=rf"the history can't be written to {path}: No space left on device"):
        recorder.check()
    assert recorder.history().edge("one", "rolling_back") is not None, "the verdict must see it all the same"


def test_after_half_a_line_nothing_more_is_written_so_that_what_was_can_still_be_read(
    on_disk: Any, path: Path
) -> None:
    recorder, disk = on_disk(room=70)
    recorder.note("sample", n=0)
    recorder.check()
    recorder.note("sample", n=1, padding="x" * 60)
    disk.room = 1000
    recorder.note("sample", n=2)
    with pytest.raises(OwnFailure, match="only half a line was taken"):
        recorder.check()
    assert disk.data.count(b"\n") == 1, "something was written after the half line"
    path.write_bytes(disk.data)
    assert [event["n"] for event in History.read(path).events] == [0]
    assert [event["n"] for event in recorder.history().events] == [0, 1, 2]


def test_a_disk_with_room_is_no_failure(path: Path, clock: Clock) -> None:
    recorder = Recorder(path, clock)
    recorder.note("sample")
    recorder.check()
    recorder.close()
    recorder.check()
