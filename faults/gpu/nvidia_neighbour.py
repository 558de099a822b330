"""A neighbour on real cards: disturbs them until its standard input ends, its parent dies, or its time is up.

Run as `python -m faults.gpu.nvidia_neighbour --within-s S … TASK …`; says `ready` once it disturbs. Its death is the
undo; limits that it set it takes back on its way out, and notes them first, for the case that it is killed.
Untested on hardware.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from faults.gpu import nvidia_limits, nvidia_tasks
from faults.gpu.levers import LeverKind
from faults.gpu.nvidia_library import Library, opened
from faults.gpu.nvidia_report import Report
from faults.gpu.refused import Refused
from faults.gpu.topology import DIRECTIONS

EXIT_REFUSED = 3
_ORPHANED_CHECK_S = 1.0
_REPORT_EVERY_S = 0.02

Undo = contextlib.ExitStack
Task = Callable[[argparse.Namespace, Report, Undo], Iterator[float]]


def main(words: Sequence[str] | None = None) -> None:
    """Do the task until it rests, say so, and go on with it for as long as it may."""
    parent, wish = os.getppid(), _parser().parse_args(words)
    until = time.monotonic() + wish.within_s
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # a polite end takes limits back as well
    try:
        with contextlib.ExitStack() as undo:
            report = Report()
            going = wish.act(wish, report, undo)
            rest_s = next(going, math.inf)
            _tell(wish, report)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            _stay(parent, until, going, rest_s, lambda: _tell(wish, report))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        sys.exit(EXIT_REFUSED)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        sys.exit(str(error))  # whoever started us reads it; a traceback would only bury it


def keep(wish: argparse.Namespace, report: Report, undo: Undo) -> Iterator[float]:
    """Keep a card's clocks or power limited."""
    library = Library(opened())
    handle = library.nvml.nvmlDeviceGetHandleByUUID(wish.uuid)
    for word in wish.levers:
        name, _, value = word.partition("=")
        undo.callback(nvidia_limits.keep(library, handle, LeverKind[name], float(value), wish.notes))
    yield from ()


def with_torch(task: Callable[[Any, argparse.Namespace, Report], Iterator[float]]) -> Task:
    """A task that works by torch, which is loaded once it is known that it is wanted."""
    return lambda wish, report, undo: task(nvidia_tasks.cuda(), wish, report)


def _stay(parent: int, until: float, going: Iterator[float], rest_s: float, tell: Callable[[], None]) -> None:
    """Until standard input ends, or the parent is gone, or the time is up."""
    due, tell_at = time.monotonic() + rest_s, 0.0
    while os.getppid() == parent and (now := time.monotonic()) < until:
        if _ended(min(_ORPHANED_CHECK_S, max(0.0, min(due, until) - now))):
            return
        if time.monotonic() >= due:
            due = time.monotonic() + next(going, math.inf)
        if time.monotonic() >= tell_at:
            tell()
            tell_at = time.monotonic() + _REPORT_EVERY_S


def _ended(wait_s: float) -> bool:
    """Whether standard input has ended, now or before that time is over."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def _tell(wish: argparse.Namespace, report: Report) -> None:
    if wish.report_fd >= 0:
        report.write(wish.report_fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.gpu.nvidia_neighbour", description=__doc__)
    parser.add_argument("--within-s", type=float, required=True, help="it ends by itself after that")
    parser.add_argument("--floor-bytes", type=int, required=True, help="what it always leaves free")
    parser.add_argument(
        "--cards", type=int, nargs="+", required=True, help="the node's numbers of visible cards"
    )
    parser.add_argument("--uuid", default="", help="the first of them")
    parser.add_argument("--notes", type=Path, default=nvidia_limits.NOTES, help="where limits are noted")
    parser.add_argument("--report-fd", type=int, default=-1, help="where it says what it does")
    subparsers = parser.add_subparsers(required=True, metavar="TASK")

    def add(name: str, act: Task) -> argparse.ArgumentParser:
        one = subparsers.add_parser(name)
        one.set_defaults(act=act)
        return one

    add("hold", with_torch(nvidia_tasks.hold)).add_argument("--leave-bytes", type=int, required=True)
    add("leak", with_torch(nvidia_tasks.leak)).add_argument("--bytes-per-s", type=float, required=True)
    one = add("copy", with_torch(nvidia_tasks.copy))
    one.add_argument("--streams", type=int, default=1)
    one.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    add("peer_copy", with_torch(nvidia_tasks.peer_copy)).add_argument("--streams", type=int, default=1)
    one = add("busy", with_torch(nvidia_tasks.busy))
    one.add_argument("--shares", nargs="+", required=True)
    one.add_argument("--streams", type=int, default=1)
    add("keep", keep).add_argument("--levers", nargs="+", required=True)
    return parser


if __name__ == "__main__":
    main()
