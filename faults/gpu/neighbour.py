"""A neighbour: another process on the node, which disturbs it until its standard input ends.

Run as `python -m faults.gpu.neighbour --node PATH TASK …`; says `ready` once it disturbs. Whoever started
it holds the other end of its standard input, so that it goes when they do, even by SIGKILL.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from faults.gpu import tasks
from faults.gpu.sim import SimNode
from faults.gpu.topology import DIRECTIONS

_ORPHANED_CHECK_S = 1.0

Task = Callable[[SimNode, argparse.Namespace], Iterator[float]]


def main(words: Sequence[str] | None = None) -> None:
    """Do the task until it rests, say so, and go on with it until standard input ends."""
    parent = os.getppid()
    wish = _parser().parse_args(words)
    task: Task = wish.act
    if _ended(0.0):
        return  # whoever wanted it was gone before it began
    try:
        with SimNode.attach(wish.node, role="neighbour") as node:
            going = task(node, wish)
            rest_s = next(going, math.inf)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            _stay(parent, going, rest_s)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        sys.exit(str(error))  # whoever started us reads it; a traceback would only bury it


def _stay(parent: int, going: Iterator[float], rest_s: float) -> None:
    """Until standard input ends, or the parent is gone (a fork of it may still hold the other end)."""
    due = time.monotonic() + rest_s
    while os.getppid() == parent:
        if _ended(min(_ORPHANED_CHECK_S, max(0.0, due - time.monotonic()))):
            return
        if time.monotonic() >= due:
            due = time.monotonic() + next(going, math.inf)


def _ended(wait_s: float) -> bool:
    """Whether standard input has ended, now or before that time is over."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.gpu.neighbour", description=__doc__)
    parser.add_argument("--node", required=True, help="the node's file")
    subparsers = parser.add_subparsers(required=True, metavar="TASK")

    def on_card(task: Task, *, card: bool = True) -> argparse.ArgumentParser:
        one = subparsers.add_parser(task.__name__, help=task.__doc__)
        one.set_defaults(act=task)
        one.add_argument("--card", type=int, required=card, default=0)
        return one

    on_card(tasks.hold).add_argument("--leave-bytes", type=int, required=True)
    on_card(tasks.scatter).add_argument("--largest-bytes", type=int, required=True)
    on_card(tasks.leak).add_argument("--bytes-per-s", type=float, required=True)
    one = on_card(tasks.refuse)
    one.add_argument("--at-least-bytes", type=int, required=True)
    one.add_argument("--per-s", type=float, default=10.0)
    one = on_card(tasks.copy)
    one.add_argument("--streams", type=int, default=1)
    one.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    one = on_card(tasks.busy, card=False)
    one.add_argument("--shares", nargs="+", required=True, help="sm:CARD, hbm:CARD")
    one.add_argument("--streams", type=int, default=1)
    one = on_card(tasks.degrade, card=False)
    one.add_argument("--links", nargs="+", required=True)
    one.add_argument("--factor", type=float, required=True)
    one = on_card(tasks.keep, card=False)
    one.add_argument("--levers", nargs="*", default=(), help="LEVER=VALUE, by the names of LeverKind")
    one.add_argument("--counts", nargs="*", default=(), help="COUNTER=MORE, by the names of CardInfo")
    one.add_argument("--xids", nargs="*", type=int, default=())
    one.add_argument("--error", type=int, help="a CUDA error that a context gets stuck in")
    one.add_argument("--victim", choices=("neighbour", "tenant", "all"), default="neighbour")
    one = on_card(tasks.noise)
    one.add_argument("--xids", nargs="+", type=int, required=True)
    one.add_argument("--per-s", type=float, required=True)
    on_card(tasks.stop)
    return parser


if __name__ == "__main__":
    main()
