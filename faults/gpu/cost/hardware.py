"""Cards by name: what their datasheets promise. Bytes, bytes per second and operations per second of one card.

Only the H100 has been fitted (`fit.py`): there are published kernel tables for it. The others are the H100's fit
scaled by the ratio of the datasheets, and nothing has checked them.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """One card. Links are per direction; dense tensor-core rates, without sparsity; 0 where there is none."""

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float
    nvlink_bytes_per_s: float
    nvlinks: int
    pcie_bytes_per_s: float
    fitted: bool
    source: str

    def flops(self, bytes_per_weight: float) -> float:
        """The dense rate for weights of that size; where there is no FP8 unit, FP8 is computed as BF16."""
        return self.fp8_flops if bytes_per_weight < 2 and self.fp8_flops else self.bf16_flops


H100 = Card(
    name="h100-sxm-80",
    memory_bytes=80 * GIB,
    hbm_bytes_per_s=3.35e12,
    bf16_flops=989e12,
    fp8_flops=1978e12,
    nvlink_bytes_per_s=450e9,
    nvlinks=18,
    pcie_bytes_per_s=64e9,
    fitted=True,
    source="NVIDIA H100 datasheet; AIConfigurator systems/h100_sxm.yaml has the same",
)

A100 = Card(
    name="a100-sxm-80",
    memory_bytes=80 * GIB,
    hbm_bytes_per_s=2.039e12,
    bf16_flops=312e12,
    fp8_flops=0.0,
    nvlink_bytes_per_s=300e9,
    nvlinks=12,
    pcie_bytes_per_s=32e9,
    fitted=False,
    source="NVIDIA A100 datasheet; efficiencies are the H100's",
)

H200 = Card(
    name="h200-sxm-141",
    memory_bytes=141 * GIB,
    hbm_bytes_per_s=4.8e12,
    bf16_flops=989e12,
    fp8_flops=1978e12,
    nvlink_bytes_per_s=450e9,
    nvlinks=18,
    pcie_bytes_per_s=64e9,
    fitted=False,
    source="NVIDIA H200 datasheet; efficiencies are the H100's",
)

L40S = Card(
    name="l40s",
    memory_bytes=48 * GIB,
    hbm_bytes_per_s=864e9,
    bf16_flops=362e12,
    fp8_flops=733e12,
    nvlink_bytes_per_s=0.0,
    nvlinks=0,
    pcie_bytes_per_s=32e9,
    fitted=False,
    source="NVIDIA L40S datasheet; efficiencies are the H100's, and collectives go over PCIe",
)

CARDS: dict[str, Card] = {card.name: card for card in (H100, A100, H200, L40S)}


def card(name: str) -> Card:
    """The card of that name; ValueError, listing the known ones, if there is none."""
    if name not in CARDS:
        raise ValueError(f"unknown card {name!r}; known: {', '.join(sorted(CARDS))}")
    return CARDS[name]
