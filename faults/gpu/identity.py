"""What a card is called by those who watch it: its UUID and its place on the bus.

The NVML library works out the same in C, so that one card has one name wherever it is seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

from faults.gpu.layout import CELL, NODE_ID

DRIVER_VERSION = "580.00.00"  # of no driver there ever was; clients want numbers here
_WORD = 2**64 - 1


def node_id(path: Path) -> int:
    """The random number of the node in a file."""
    with path.open("rb") as file:
        file.seek(NODE_ID * CELL)
        return int.from_bytes(file.read(CELL), sys.byteorder)


def uuid(node_id: int, card: int) -> str:
    """A card's UUID, made of its node's random number."""
    high = _mixed(node_id + card)
    low = _mixed(high)
    digits = f"{high:016x}{low:016x}"
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def pci_bus_id(card: int) -> str:
    """A card's place on the bus, as domain:bus:device.function."""
    return f"00000000:{bus(card):02X}:00.0"


def bus(card: int) -> int:
    """The number of the bus that a card is on."""
    return 0x07 + 0x10 * card


def _mixed(seed: int) -> int:
    """SplitMix64: a node's cards have nothing in common that one could see."""
    seed = (seed + 0x9E3779B97F4A7C15) & _WORD
    seed = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    seed = ((seed ^ seed >> 27) * 0x94D049BB133111EB) & _WORD
    return seed ^ seed >> 31
