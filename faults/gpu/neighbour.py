"""A neighbour: another process on the node, which disturbs it until its standard input ends.

Run as `python -m faults.gpu.neighbour --node PATH TASK …`; says `ready` once it disturbs. Whoever started
it holds the other end of its standard input, so that it goes when they do, even by SIGKILL. It imports
little, to be up fast.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Sequence

from faults.gpu.links import ENDLESS
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.sim import SimNode
from faults.gpu.topology import DIRECTIONS, pcie

_CHUNK_PAGES = 16
_ORPHANED_CHECK_S = 1.0


def hold(node: SimNode, wish: argparse.Namespace) -> None:
    """Allocate until no more than `leave_bytes` of a card are free; don't chase what is freed later."""
    page, chunk = node.profile.page_bytes, _CHUNK_PAGES
    while chunk and (excess := node.memory(wish.card).free_bytes - wish.leave_bytes) > 0:
        chunk = min(chunk, -(-excess // page))
        try:
            node.alloc(wish.card, chunk * page, "neighbour")
        except DeviceOutOfMemory:
            chunk //= 2  # what is free lies in small pieces


def copy(node: SimNode, wish: argparse.Namespace) -> None:
    """Copy over a card's PCIe without pause, `streams` copies at a time in each direction."""
    links = [pcie(wish.card, direction) for direction in wish.directions]
    node.start([(link, ENDLESS) for link in links for _ in range(wish.streams)])


def degrade(node: SimNode, wish: argparse.Namespace) -> None:
    """Keep links at `factor` of their nominal capacity."""
    node.degrade(wish.links, wish.factor)


def main(words: Sequence[str] | None = None) -> None:
    """Do the task, say so, and stay until standard input ends."""
    parent = os.getppid()
    wish = _parser().parse_args(words)
    task: Callable[[SimNode, argparse.Namespace], None] = wish.act
    try:
        with SimNode.attach(wish.node, role="neighbour") as node:
            task(node, wish)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            _stay(parent)
    except (OSError, ValueError) as error:
        sys.exit(str(error))  # whoever started us reads it; a traceback would only bury it


def _stay(parent: int) -> None:
    """Until standard input ends, or the parent is gone (a fork of it may still hold the other end)."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], _ORPHANED_CHECK_S)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults.gpu.neighbour", description=__doc__)
    parser.add_argument("--node", required=True, help="the node's file")
    tasks = parser.add_subparsers(required=True, metavar="TASK")
    one = tasks.add_parser("hold", help=hold.__doc__)
    one.add_argument("--card", type=int, required=True)
    one.add_argument("--leave-bytes", type=int, required=True)
    one.set_defaults(act=hold)
    one = tasks.add_parser("copy", help=copy.__doc__)
    one.add_argument("--card", type=int, required=True)
    one.add_argument("--streams", type=int, default=1)
    one.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    one.set_defaults(act=copy)
    one = tasks.add_parser("degrade", help=degrade.__doc__)
    one.add_argument("--links", nargs="+", required=True)
    one.add_argument("--factor", type=float, required=True)
    one.set_defaults(act=degrade)
    return parser


if __name__ == "__main__":
    main()
