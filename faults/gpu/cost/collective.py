"""The all-reduce of a tensor-parallel group: a latency and a bandwidth, and only the bandwidth feels narrow links.

Small messages are all latency, so a weak NVLink is felt by prefills and large batches long before a small decode.
"""

from __future__ import annotations

from faults.gpu.cost.condition import HEALTHY, Condition
from faults.gpu.cost.fit import Fit
from faults.gpu.cost.hardware import H100, Card

DEGREES = (1, 2, 4, 8)


def link_fraction(card: Card, condition: Condition) -> float:
    """What is left of a card's NVLink bandwidth; 0 if it has to go over PCIe."""
    if condition.nvlinks_lost >= card.nvlinks:
        return 0.0
    return condition.nvlink * (1 - condition.nvlinks_lost / card.nvlinks)


def custom_all_reduce_s(
    nbytes: float, degree: int, card: Card, fit: Fit, condition: Condition = HEALTHY
) -> float:
    """vLLM's own kernel, as an engine uses it in a step. Without NVLink there is only NCCL over PCIe."""
    if degree == 1:
        return 0.0
    latency = fit.reduce_s[degree]
    if degree == DEGREES[-1] and nbytes >= fit.two_stage_from_bytes:
        latency += fit.two_stage_s
    fraction = link_fraction(card, condition)
    if not fraction:
        # The latency of this way is not known to us; that of the other one is too little, if anything.
        return latency + _on_the_bus(nbytes, degree) / _pcie_busbw(card, fit, condition)
    speed = fit.reduce_bytes_per_s[degree] * fraction * card.nvlink_bytes_per_s / H100.nvlink_bytes_per_s
    return latency + nbytes / speed


def nccl_all_reduce_s(
    nbytes: float, degree: int, card: Card, fit: Fit, condition: Condition = HEALTHY
) -> float:
    """NCCL's ring at large sizes, where its latency does not count."""
    busbw = fit.nccl_efficiency * card.nvlink_bytes_per_s * link_fraction(card, condition)
    return _on_the_bus(nbytes, degree) / (busbw or _pcie_busbw(card, fit, condition))


def _on_the_bus(nbytes: float, degree: int) -> float:
    """Bytes that cross a card's links in one direction for an all-reduce of `nbytes`."""
    return 2 * (degree - 1) / degree * nbytes


def _pcie_busbw(card: Card, fit: Fit, condition: Condition) -> float:
    return fit.pcie_busbw_bytes_per_s * card.pcie_bytes_per_s / H100.pcie_bytes_per_s * condition.pcie
