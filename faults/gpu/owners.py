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
        fields = _fields(Path(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in b"ZXx" or int(fields[6]) & _EXITING:
        return None
    return int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started then is still there."""
    return start_ticks(pid) == started


def is_stopped(pid: int) -> bool:
    """Whether a process stands still on SIGSTOP, with all of its threads."""
    try:
        states = [_fields(task / "stat")[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return set(states) == {b"T"}


def _fields(stat: Path) -> list[bytes]:
    """What follows the name, which stands in parentheses and may hold anything."""
    content = stat.read_bytes()
    return content[content.rindex(b")") + 2 :].split()
