"""What a simulated node's cards are doing, once or for as long as somebody watches."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.gpu.nodefile import NodeFileError
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import CardInfo, Throttle
from harness.errors import UsageError


def show(file: Path, as_json: bool) -> None:
    """Print once."""
    from rich.console import Console

    from harness.gpu.table import screen

    with attached(file) as node:
        look = read(node)
    if as_json:
        sys.stdout.write(json.dumps(look) + "\n")
    else:
        Console().print(screen(look))


def watch(file: Path, every_s: float) -> None:
    """Print anew until interrupted, or the node is gone."""
    from rich.live import Live

    from harness.gpu.table import screen

    with attached(file) as node, Live(screen(read(node)), auto_refresh=False) as live:
        try:
            while file.exists():
                time.sleep(every_s)
                live.update(screen(read(node)), refresh=True)
        except KeyboardInterrupt:
            return  # that is how one leaves
    raise UsageError(f"{file} is gone: the node has ended")


def attached(file: Path) -> SimNode:
    """The node at a file; UsageError if there is none."""
    try:
        return SimNode.attach(file)
    except FileNotFoundError as error:
        raise UsageError(f"there is no node at {file}: `brownout gpu start` makes one") from error
    except NodeFileError as error:
        raise UsageError(str(error)) from error


def read(node: SimNode) -> dict[str, Any]:
    """Everything that is shown, as plain values: bytes, seconds, MHz, W, degrees C, percent."""
    monitoring = node.monitoring()
    return {
        "node": str(node.path),
        "profile": node.profile.name,
        "product": node.profile.product,
        "topology": node.topology,
        "monitoring": asdict(monitoring),
        "cards": [_card(node, card) for card in range(node.cards)],
        "events": [asdict(event) for event in node.events()],
        "neighbours": sorted(node.neighbours()),
    }


def _card(node: SimNode, card: int) -> dict[str, Any]:
    memory, info = node.memory(card), node.card(card)
    return {
        "card": card,
        "total_bytes": memory.total_bytes,
        "free_bytes": memory.free_bytes,
        "largest_free_bytes": memory.largest_free_bytes,
        "used_by": {str(pid): held for pid, held in sorted(memory.used_by.items())},
        "reasons": reasons(info),
        **asdict(info),
    }


def reasons(info: CardInfo) -> list[str]:
    """Why a card's clocks are low, by name."""
    return [(bit.name or "").lower() for bit in Throttle if int(info.throttle) & bit]
