"""Reading traces, and refusing what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadTrace, UsageError
from harness.load.trace import Row, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
BUNDLED = Path(__file__).parents[2] / "traces" / "azure_llm_2023_code.csv"


def trace(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "trace.csv"
    path.write_text("\r\n".join([header, *rows]), newline="")
    return path


def test_times_count_from_the_first_row(tmp_path: Path) -> None:
    rows = read_trace(
        trace(tmp_path, "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8")
    )
    assert rows == (Row(0.0, 4808, 10), Row(0.052, 3180, 8))


def test_rows_of_equal_time_other_columns_and_zones_are_fine(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        "2024-05-10 00:00:00.5+00:00,1,2,a",
        "2024-05-10T02:00:00.5+02:00,3,0,b",
        header=HEADER + ",Model",
    )
    assert read_trace(path) == (Row(0.0, 1, 2), Row(0.0, 3, 0))


def test_the_bundled_trace_is_the_published_one() -> None:
    rows = read_trace(BUNDLED)
    assert len(rows) == 8819
    assert rows[-1].at_s == pytest.approx(3435.9, abs=0.1)
    assert max(row.prompt_tokens for row in rows) == 7437


BAD_ROWS = {
    "no time": ("yesterday,1,2", "TIMESTAMP 'yesterday' is not a time; allowed: YYYY-MM-DD HH:MM:SS"),
    "a 13th month": (
        "2023-13-16 18:17:03,1,2",
        "TIMESTAMP '2023-13-16 18:17:03' is not a time (month must be",
    ),
    "a negative count": (
        "2023-11-16 18:17:03,-1,2",
        "ContextTokens '-1' is not a count; allowed: a whole number",
    ),
    "half a token": ("2023-11-16 18:17:03,1,2.5", "GeneratedTokens '2.5' is not a count"),
    "a missing value": ("2023-11-16 18:17:03,1", "GeneratedTokens None is not a count"),
    "digits of another script": ("2023-11-16 18:17:03,1,٣", "GeneratedTokens '٣' is not a count"),
    "a step back": (
        "2022-11-16 18:17:03,1,2",
        "TIMESTAMP '2022-11-16 18:17:03' is before the line ahead of it",
    ),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_line_its_value_and_what_is_allowed(what: str, tmp_path: Path) -> None:
    row, message = BAD_ROWS[what]
    path = trace(tmp_path, "2023-11-16 18:17:01,1,2", row, "2023-11-16 18:17:09,1,2")
    with pytest.raises(BadTrace) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:3: {message}")


def test_only_the_first_bad_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadTrace) as caught:
        read_trace(trace(tmp_path, *["x,1,2"] * 12))
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "and 7 more"


def test_a_file_that_is_no_trace_is_refused_as_a_usage_error(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    empty = tmp_path / "empty"
    empty.touch()
    for path, message in [
        (tmp_path / "nowhere.csv", "can't be read: No such file"),
        (tmp_path, "can't be read: Is a directory"),
        (binary, "not a CSV file"),
        (empty, "empty; its first line must name the columns TIMESTAMP, ContextTokens, GeneratedTokens"),
        (trace(tmp_path), "no rows under its header"),
    ]:
        with pytest.raises(UsageError, match=message):
            read_trace(path)


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path: Path) -> None:
    path = trace(tmp_path, "1,2", header="TIMESTAMP,tokens")
    with pytest.raises(BadTrace, match="no column ContextTokens, GeneratedTokens; it has TIMESTAMP, tokens"):
        read_trace(path)
