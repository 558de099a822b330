"""The service's record: each line has its number, and a line that was lost leaves a gap."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from target.journal import Journal


class FullDisk:
    """A file that takes what it is told to take."""

    def __init__(self, takes: list[int | None]) -> None:
        self.takes = takes  # of each write: so many bytes, all (-1), or None for an error
        self.written = b""

    def write(self, line: bytes) -> int:
        count = self.takes.pop(0)
        if count is None:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = line if count < 0 else line[:count]
        self.written += taken
        return len(taken)


def read(raw: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in raw.split(b"\n"):
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def on(disk: FullDisk, tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal")
    journal.close()
    journal._file = disk  # type: ignore[assignment]
    return journal


def test_lines_are_numbered_from_one_in_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for kind in "abc":
        journal({"kind": kind, "t": 0.5})
    journal.close()
    raw = (tmp_path / "journal").read_bytes()
    assert raw.startswith(b'{"n":1,"kind":"a","t":0.5}\n')
    assert [(line["n"], line["kind"]) for line in read(raw)] == [(1, "a"), (2, "b"), (3, "c")]


def test_a_line_that_could_not_be_written_leaves_a_gap_and_stops_nobody(tmp_path: Path) -> None:
    disk = FullDisk([-1, None, -1])
    journal = on(disk, tmp_path)
    for kind in "abc":
        journal({"kind": kind})
    assert [(line["n"], line["kind"]) for line in read(disk.written)] == [(1, "a"), (3, "c")]


@pytest.mark.parametrize("takes", [[-1, 5, -1], [-1, 5, None, -1], [-1, 5, 0, -1]], ids=str)
def test_half_a_line_does_not_spoil_the_next_one(takes: list[int | None], tmp_path: Path) -> None:
    disk = FullDisk(list(takes))
    journal = on(disk, tmp_path)
    for _ in takes:
        journal({"kind": "x"})
    assert [line["n"] for line in read(disk.written)] == [1, len(takes)]


def test_without_a_file_nothing_is_kept() -> None:
    journal = Journal(None)
    journal({"kind": "a"})
    journal.close()
