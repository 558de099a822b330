"""All of a node that a fault may change and must put right: what is held, what is kept, and how fast things are."""

from __future__ import annotations

import os
from typing import Any

import psutil

from faults.gpu.sim import SimNode

KEPT = (
    *("lost", "sm_clock_mhz", "mem_clock_mhz", "throttle", "power_limit_w", "pcie_gen", "pcie_width"),
    *("remap_pending", "recovery_action", "nvlinks_active", "nvlink_share"),
)


def state(node: SimNode) -> dict[str, Any]:
    """Counters, temperatures and power go their own way, so they are not in it; nor are we."""
    tenants = node.tenants() - {os.getpid()}
    memory = {card: node.memory(card) for card in range(node.cards)}
    links = {name: node.link(name) for name in node.links()}
    monitoring = node.monitoring()
    return {
        "memory": {card: (m.free_bytes, m.largest_free_bytes, dict(m.used_by)) for card, m in memory.items()},
        "links": {name: (link.capacity_bytes_per_s, link.flows) for name, link in links.items()},
        "cards": {card: {name: getattr(node.card(card), name) for name in KEPT} for card in memory},
        "monitoring": (monitoring.delay_s, monitoring.error, monitoring.frozen),
        "contexts": dict(node.context_errors()),
        "tenants": tenants,
        "stopped": [pid for pid in tenants if psutil.Process(pid).status() == psutil.STATUS_STOPPED],
        "neighbours": node.neighbours(),
    }


def neighbour_processes(node: SimNode) -> list[int]:
    """Process ids of neighbours on that node, also of those that hold nothing yet."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "faults.gpu.neighbour" in words and str(node.path) in words:
            found.append(process.pid)
    return found
