"""Run by itself: says in JSON what pynvml sees of every card, an error as its code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml as nvml


def told(ask: Callable[[], Any]) -> Any:
    """An answer, or the code of the error instead."""
    try:
        answer = ask()
    except nvml.NVMLError as error:
        return {"error": error.value}
    return answer.decode() if isinstance(answer, bytes) else answer


def processes(handle: Any) -> dict[str, int]:
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {str(each.pid): each.usedGpuMemory for each in found}


def fields(handle: Any, *wanted: Any) -> list[Any]:
    values = nvml.nvmlDeviceGetFieldValues(handle, list(wanted))
    return [each.value.ullVal if each.nvmlReturn == 0 else {"error": each.nvmlReturn} for each in values]


def card(index: int) -> Any:
    handle = told(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if isinstance(handle, dict):
        return handle
    links = range(nvml.NVML_NVLINK_MAX_LINKS)
    states = [told(lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link)) for link in links]
    asked = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "bus": lambda: nvml.nvmlDeviceGetPciInfo(handle).busId,
        "capability": lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "total": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "used": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "used_v2": lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used,
        "processes": lambda: processes(handle),
        "busy": lambda: {str(each.pid): each.smUtil for each in nvml.nvmlDeviceGetProcessUtilization(handle, 0)},
        "util": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "mem_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "limits_mw": lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle),
        "energy_mj": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "celsius": lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
        "tx_kib_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
        "rx_kib_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
        "pcie": lambda: [nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle), nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)],
        "replays": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
        "ecc": lambda: [nvml.nvmlDeviceGetTotalEccErrors(handle, kind, 0) for kind in (0, 1)],
        "remapped": lambda: nvml.nvmlDeviceGetRemappedRows(handle),
        "power_violation_ns": lambda: nvml.nvmlDeviceGetViolationStatus(handle, 0).violationTime,
        "links_up": lambda: sum(state == 1 for state in states),
        "crc": lambda: sum(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, n, 2) for n in range(18)),
        "fields": lambda: fields(handle, 91, 94, 230, (165, 0), (165, 17), (138, 99), 9999),
        "fan": lambda: nvml.nvmlDeviceGetFanSpeed(handle),
        "set_limit": lambda: nvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000),
    }  # fmt: skip
    return {name: told(ask) for name, ask in asked.items()}


def main() -> None:
    since = time.monotonic()
    begun = told(nvml.nvmlInit)
    took_s = time.monotonic() - since
    if begun is not None:
        sys.stdout.write(json.dumps({"init": begun}))
        return
    count = told(nvml.nvmlDeviceGetCount)
    seen = {
        "init": None,
        "took_s": took_s,
        "driver": told(nvml.nvmlSystemGetDriverVersion),
        "cuda": told(nvml.nvmlSystemGetCudaDriverVersion),
        "count": count,
        "cards": [card(index) for index in range(count)] if isinstance(count, int) else [],
    }
    nvml.nvmlShutdown()
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
