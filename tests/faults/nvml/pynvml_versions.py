"""Run by itself: asks with structs of a version that nobody knows, and says the code of each refusal."""

from __future__ import annotations

import ctypes
import sys

import pynvml as nvml

ASKED = {
    "nvmlDeviceGetMemoryInfo_v2": nvml.c_nvmlMemory_v2_t,
    "nvmlDeviceGetTemperatureV": nvml.c_nvmlTemperature_v1_t,
    "nvmlDeviceGetMarginTemperature": nvml.c_nvmlMarginTemperature_v1_t,
    "nvmlDeviceGetRunningProcessDetailList": nvml.c_nvmlProcessDetailList_v1_t,
    "nvmlDeviceGetProcessesUtilizationInfo": nvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlDeviceGetGpuFabricInfoV": nvml.c_nvmlGpuFabricInfo_v3_t,
    "nvmlDeviceGetSramEccErrorStatus": nvml.c_nvmlEccSramErrorStatus_v1_t,
}


def main() -> None:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for name, struct in ASKED.items():
        told = struct()
        told.version = 0x9000000 | ctypes.sizeof(struct)
        sys.stdout.write(f"{nvml._nvmlGetFunctionPointer(name)(handle, ctypes.byref(told))}\n")


if __name__ == "__main__":
    main()
