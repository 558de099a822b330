"""Who owns what on a node: a process, told apart from a later one with the same id by its start time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Role = Literal["tenant", "neighbour"]
ROLES: tuple[Role, ...] = ("tenant", "neighbour")


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or dead (a zombie is dead)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; what follows it is split by spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in b"ZXx":
        return None
    return int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started then is still there."""
    return start_ticks(pid) == started
