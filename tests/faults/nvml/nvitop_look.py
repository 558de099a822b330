"""Run by itself: says in JSON what nvitop's interface sees of every card."""

from __future__ import annotations

import json
import sys
from typing import Any

from nvitop import NA, Device


def plain(value: Any) -> Any:
    return None if value is NA else value


def main() -> None:
    seen = []
    for device in Device.all():
        look = {
            "name": device.name(),
            "uuid": device.uuid(),
            "used": device.memory_used(),
            "total": device.memory_total(),
            "util": device.gpu_utilization(),
            "celsius": device.temperature(),
            "power_mw": device.power_usage(),
            "limit_mw": device.power_limit(),
            "sm_mhz": device.sm_clock(),
            "ecc": device.total_volatile_uncorrected_ecc_errors(),
            "links": device.nvlink_link_count(),
            "nvlink_tx_kib_s": device.nvlink_mean_tx_throughput(),
            "pcie_tx_kib_s": device.pcie_tx_throughput(),
            "processes": {pid: each.gpu_memory() for pid, each in device.processes().items()},
            "busy": {pid: each.gpu_sm_utilization() for pid, each in device.processes().items()},
        }
        seen.append({name: plain(value) for name, value in look.items()})
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
