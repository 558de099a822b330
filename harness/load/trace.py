"""Reading a trace: when requests came, and how long they and their answers were.

The format is that of the Azure LLM inference traces: CSV with the columns TIMESTAMP, ContextTokens and
GeneratedTokens (any other column is ignored), the rows in the order of their time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadTrace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SHOWN = 5  # problems told at once; a file of another format has one on every line

_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?")


@dataclass(frozen=True)
class Row:
    """One request of a trace: seconds since the first one, and lengths in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> tuple[Row, ...]:
    """All rows of a trace, the first at 0 s. BadTrace if it can't be read, naming each bad line and value."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return tuple(_rows(path, csv.DictReader(lines)))
    except OSError as error:
        raise BadTrace(f"{path}: can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path}: not a CSV file: {error}") from error


def _rows(path: Path, table: csv.DictReader[str]) -> Iterator[Row]:
    header = table.fieldnames
    if not header:
        raise BadTrace(f"{path}: empty; its first line must name the columns {', '.join(COLUMNS)}")
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise BadTrace(f"{path}:1: no column {', '.join(missing)}; it has {', '.join(header)}")
    problems: list[str] = []
    first = last = None
    for record in table:
        try:
            stamp = _stamp(record["TIMESTAMP"])
            prompt, output = (_tokens(column, record[column]) for column in COLUMNS[1:])
            if last is not None and stamp < last:
                raise ValueError(
                    f"TIMESTAMP {record['TIMESTAMP']!r} is before the line ahead of it; rows go forward"
                )
        except ValueError as error:
            problems.append(f"{path}:{table.line_num}: {error}")
            continue
        first, last = first or stamp, stamp
        if not problems:
            yield Row((stamp - first).total_seconds(), prompt, output)
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise BadTrace("\n".join(problems[:SHOWN] + more))
    if first is None:
        raise BadTrace(f"{path}: no rows under its header; a trace has at least one")


def _stamp(text: str | None) -> datetime:
    """The time in a TIMESTAMP, to the microsecond; without a zone it is taken as UTC."""
    allowed = "allowed: YYYY-MM-DD HH:MM:SS[.fraction][zone]"
    if text is None or not _STAMP.fullmatch(text.strip()):
        raise ValueError(f"TIMESTAMP {text!r} is not a time; {allowed}")
    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {text!r} is not a time ({error}); {allowed}") from None
    return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)


def _tokens(column: str, text: str | None) -> int:
    if text is None or not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ValueError(f"{column} {text!r} is not a count; allowed: a whole number from 0 to 999999999")
    return int(text)
