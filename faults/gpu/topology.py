"""Which links a node has: PCIe both ways for each card, and a full mesh of directed NVLinks."""

from __future__ import annotations

from faults.gpu.profiles import CardProfile

DIRECTIONS = ("h2d", "d2h")


def pcie(card: int, direction: str) -> str:
    """The name of a card's PCIe link; `direction` is `h2d` or `d2h`."""
    return f"pcie:{card}:{direction}"


def nvlink(source: int, to: int) -> str:
    """The name of the directed NVLink from one card to another."""
    return f"nvlink:{source}>{to}"


def link_names(cards: int) -> tuple[str, ...]:
    """Every directed link of a node, PCIe first."""
    host = [pcie(card, direction) for card in range(cards) for direction in DIRECTIONS]
    mesh = [nvlink(a, b) for a in range(cards) for b in range(cards) if a != b]
    return (*host, *mesh)


def nominal(name: str, profile: CardProfile) -> tuple[float, float]:
    """A link's undisturbed bytes per second and its latency in seconds."""
    if name.startswith("pcie:"):
        return profile.pcie_bytes_per_s, profile.pcie_latency_s
    return profile.nvlink_bytes_per_s, profile.nvlink_latency_s
