"""Who owns what on a node: a process, told apart from a later one with the same id by its start time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Role = Literal["tenant", "neighbour"]
ROLES: tuple[Role, ...] = ("tenant", "neighbour")


_EXITING = 0x4  # PF_EXITING: set before the kernel lets go of the process's locks


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone, dying, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; what follows it is split by spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in b"ZXx" or int(fields[6]) & _EXITING:
        return None
    return int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started then is still there."""
    return start_ticks(pid) == started


def is_stopped(pid: int) -> bool:
    """Whether a process stands still on SIGSTOP."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(b")") + 2 :][:1] == b"T"
