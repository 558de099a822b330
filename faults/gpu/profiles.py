"""Cards by name: how big, how fast, and which real card they stand for."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class CardProfile:
    """A card's memory and links. Rates are per direction (PCIe) and per directed link (NVLink)."""

    name: str
    memory_bytes: int
    page_bytes: int
    pcie_bytes_per_s: float
    pcie_latency_s: float
    nvlink_bytes_per_s: float
    nvlink_latency_s: float
    stands_for_bytes: int  # memory of the card it stands for
    source: str  # where the numbers come from

    @property
    def scale(self) -> float:
        """Bytes of the card it stands for per byte of this one."""
        return self.stands_for_bytes / self.memory_bytes

    @property
    def pages(self) -> int:
        """How many pages its memory has."""
        return self.memory_bytes // self.page_bytes


POCKET = CardProfile(
    name="pocket",
    memory_bytes=48 * MIB,
    page_bytes=64 * KIB,
    pcie_bytes_per_s=16e6,
    pcie_latency_s=20e-6,
    nvlink_bytes_per_s=96e6,
    nvlink_latency_s=5e-6,
    stands_for_bytes=80 * GIB,
    source=(
        "Chosen, not measured: a 25M-parameter fp32 model, tensor-parallel over 4 of these cards (23.6 MiB "
        "of weights a card, 4 KiB of KV cache a token a card), feels memory and links as a 70B-class model "
        "feels an 80 GiB card."
    ),
)

PROFILES: dict[str, CardProfile] = {POCKET.name: POCKET}


def profile(name: str) -> CardProfile:
    """The profile of that name; ValueError, listing the known ones, if there is none."""
    if name not in PROFILES:
        raise ValueError(f"unknown card profile {name!r}; known: {', '.join(sorted(PROFILES))}")
    return PROFILES[name]
