"""Two cards that are a JSON file, for the fake pynvml and the fake torch beside it.

Named by FAKE_CARDS. Memory belongs to processes, and is free again when they are dead, as a driver has it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 2**20


def new(path: Path) -> None:
    """Write two cards that nothing is wrong with."""
    card = {
        "total": 8192 * MIB,
        "used": {},
        "limit_mw": 650_000,  # somebody set it: the default is higher
        "default_mw": 700_000,
        "least_mw": 200_000,
        "sm_lock": None,
        "mem_lock": None,
        "reasons": 0,
    }
    cards = [{**card, "uuid": f"GPU-{number}"} for number in range(2)]
    path.write_text(json.dumps({"cards": cards, "log": [], "forbidden": False, "peers": True}))


@contextmanager
def state() -> Iterator[dict[str, Any]]:
    """What is in the file, to be read or changed."""
    with Path(os.environ["FAKE_CARDS"]).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told = json.load(file)
        for card in told["cards"]:
            card["used"] = {pid: n for pid, n in card["used"].items() if is_alive(int(pid))}
        yield told
        file.seek(0)
        file.truncate()
        json.dump(told, file)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def free(card: dict[str, Any]) -> int:
    return int(card["total"] - sum(card["used"].values()))


def visible() -> list[int]:
    """The cards that this process may see, in its own order."""
    wanted = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [int(uuid.removeprefix("GPU-")) for uuid in wanted]
