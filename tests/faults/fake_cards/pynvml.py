"""As much of pynvml as real cards are read and limited by, on the cards of a JSON file.

Constants and errors are the real one's.
"""

# ruff: noqa: N802 (the names are NVML's)

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import state

_here = str(Path(__file__).parent)
_found = PathFinder.find_spec("pynvml", [each for each in sys.path if each != _here])
assert _found is not None
assert _found.origin is not None
_spec = importlib.util.spec_from_file_location("real_pynvml", _found.origin)
assert _spec is not None
assert _spec.loader is not None
sys.modules["real_pynvml"] = _real = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if name.startswith("NVML")})
nvmlMemory_v2 = _real.nvmlMemory_v2  # noqa: N816
NVMLError = _real.NVMLError


def nvmlInit() -> None: ...


def nvmlShutdown() -> None: ...


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(number: int) -> int:
    return number


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    return int(uuid.removeprefix("GPU-"))


def nvmlDeviceGetUUID(card: int) -> str:
    return f"GPU-{card}"


def nvmlDeviceGetName(card: int) -> str:
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetPciInfo(card: int) -> SimpleNamespace:
    return SimpleNamespace(domain=0, bus=card, device=0)


def nvmlDeviceGetMemoryInfo(card: int, version: int) -> SimpleNamespace:
    with state.state() as told:
        total, free = told["cards"][card]["total"], state.free(told["cards"][card])
    return SimpleNamespace(total=total, free=free, used=total - free, reserved=0)


def nvmlDeviceGetComputeRunningProcesses(card: int) -> list[SimpleNamespace]:
    with state.state() as told:
        used = told["cards"][card]["used"]
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=nbytes) for pid, nbytes in used.items()]


def nvmlDeviceGetMaxClockInfo(card: int, clock: int) -> int:
    return 2619 if clock == _real.NVML_CLOCK_MEM else 1980


def nvmlDeviceGetClockInfo(card: int, clock: int) -> int:
    with state.state() as told:
        lock = told["cards"][card]["mem_lock" if clock == _real.NVML_CLOCK_MEM else "sm_lock"]
    return lock or nvmlDeviceGetMaxClockInfo(card, clock)


def nvmlDeviceGetCurrentClocksEventReasons(card: int) -> int:
    with state.state() as told:
        locked = told["cards"][card]["sm_lock"] or told["cards"][card]["mem_lock"]
        return int(told["cards"][card]["reasons"]) | (2 if locked else 0)


def nvmlDeviceGetPowerManagementLimit(card: int) -> int:
    with state.state() as told:
        return int(told["cards"][card]["limit_mw"])


def nvmlDeviceGetPowerManagementDefaultLimit(card: int) -> int:
    return 700_000


def nvmlDeviceGetPowerManagementLimitConstraints(card: int) -> list[int]:
    return [200_000, 700_000]


def _set(card: int, name: str, value: int | None) -> None:
    with state.state() as told:
        if told["forbidden"]:
            raise NVMLError(_real.NVML_ERROR_NO_PERMISSION)
        told["cards"][card][name] = value
        told["log"].append([card, name, value])


def nvmlDeviceSetPowerManagementLimit(card: int, limit_mw: int) -> None:
    _set(card, "limit_mw", limit_mw)


def nvmlDeviceSetGpuLockedClocks(card: int, least: int, most: int) -> None:
    assert least == most
    _set(card, "sm_lock", most)


def nvmlDeviceSetMemoryLockedClocks(card: int, least: int, most: int) -> None:
    assert least == most
    _set(card, "mem_lock", most)


def nvmlDeviceResetGpuLockedClocks(card: int) -> None:
    _set(card, "sm_lock", None)


def nvmlDeviceResetMemoryLockedClocks(card: int) -> None:
    _set(card, "mem_lock", None)


def __getattr__(name: str) -> object:
    """What these cards can't say."""
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def unsupported(*_: object) -> None:
        raise NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)

    return unsupported
