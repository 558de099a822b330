"""Following a journal that another process writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import journal
from harness.journal import JournalTail
from harness.recorder import Recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "history.jsonl", clock=lambda: 100.0)
    yield recorder
    recorder.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread never looks by itself: a test looks with `_take`."""
    monkeypatch.setattr(journal, "LOOK_EVERY_S", 1000.0)


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as out:
        out.write(text if isinstance(text, bytes) else text.encode())


def line(n: int, **fields: Any) -> str:
    return json.dumps({"t": 100.0 + n, "kind": "service", "n": n} | fields) + "\n"


def told(recorder: Recorder) -> list[tuple[float, int]]:
    return [(event["t"], event["n"]) for event in recorder.history().events]


def test_each_whole_line_is_taken_once_its_time_made_ours(path: Path, recorder: Recorder) -> None:
    with JournalTail(path, recorder) as tail:
        append(path, line(1) + line(2))
        tail._take()
        tail._take()
        assert told(recorder) == [(1.0, 1), (2.0, 2)]


def test_half_a_line_waits_for_its_other_half(path: Path, recorder: Recorder) -> None:
    whole = line(1, text="čeština").encode()
    with JournalTail(path, recorder) as tail:
        for n in range(len(whole) - 1):
            append(path, whole[n : n + 1])
            tail._take()
        assert told(recorder) == []
        append(path, b"\n")
        tail._take()
        assert told(recorder) == [(1.0, 1)]


def test_what_is_written_between_the_last_look_and_the_end_is_taken_at_the_end(
    path: Path, recorder: Recorder
) -> None:
    with JournalTail(path, recorder):
        append(path, line(1) + line(2))
    assert told(recorder) == [(1.0, 1), (2.0, 2)]


def test_half_a_line_of_a_killed_writer_is_left_out_and_costs_nothing_else(
    path: Path, recorder: Recorder
) -> None:
    with JournalTail(path, recorder):
        append(path, line(1) + line(2)[:9])
    assert told(recorder) == [(1.0, 1)]


@pytest.mark.parametrize(
    "garbage", ["{\n", "\n", "3\n", "null\n", '"t kind"\n', '{"kind": "service"}\n', b"\xff\xfe\n"]
)
def test_a_line_that_is_no_event_is_left_out(garbage: str | bytes, path: Path, recorder: Recorder) -> None:
    with JournalTail(path, recorder):
        append(path, line(1))
        append(path, garbage)
        append(path, line(2))
    assert told(recorder) == [(1.0, 1), (2.0, 2)]


def test_the_file_is_there_before_the_writer_is_and_gone_after(path: Path, recorder: Recorder) -> None:
    with JournalTail(path, recorder):
        assert path.read_bytes() == b""
    assert not path.exists()


def test_a_file_that_somebody_else_removed_is_no_trouble(path: Path, recorder: Recorder) -> None:
    with JournalTail(path, recorder):
        append(path, line(1))
        path.unlink()
    assert told(recorder) == [(1.0, 1)]


def test_the_tail_looks_by_itself_while_the_block_lasts(
    path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LOOK_EVERY_S", 0.001)
    taken = threading.Event()
    monkeypatch.setattr(recorder, "absorb", lambda event: taken.set())
    with JournalTail(path, recorder):
        append(path, line(1))
        assert taken.wait(5)
