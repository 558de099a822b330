"""Copies between host and card, which share the card's PCIe with whoever else copies."""

from __future__ import annotations

from faults.gpu.cost.condition import HEALTHY, Condition
from faults.gpu.cost.fit import Fit
from faults.gpu.cost.hardware import Card


def host_copy_s(nbytes: float, card: Card, fit: Fit, condition: Condition = HEALTHY) -> float:
    """Seconds for so many bytes of pinned memory, in one direction, on one card."""
    return nbytes / (fit.copy_efficiency * card.pcie_bytes_per_s * condition.pcie)
