"""What NVML tells of real cards, in the terms that simulated ones are told in.

Untested on hardware. NVML has no counter of a card's compute or of its memory's: `sm_busy_s` and `hbm_busy_s` stay 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from faults.gpu.base import AllocMark, MemoryInfo
from faults.gpu.broken import DeviceLost
from faults.gpu.nvidia_library import Library
from faults.gpu.profiles import MIB, PROFILES, CardProfile
from faults.gpu.telemetry import CardInfo

PAGE_BYTES = 2 * MIB  # what cudaMalloc hands out
_SETTINGS = (
    "power_limit_w",
    "sm_clock_max_mhz",
    "throttle",
    "pcie_gen",
    "pcie_width",
    "nvlinks_active",
    "lost",
)
_NANO, _MILLI = 1e-9, 1e-3


class NvidiaCards:
    """All cards of this machine that the driver shows, or those with these numbers."""

    def __init__(self, library: Library, numbers: Sequence[int] | None = None) -> None:
        self.library = library
        nvml = library.nvml
        self.handles = [
            nvml.nvmlDeviceGetHandleByIndex(number)
            for number in (range(nvml.nvmlDeviceGetCount()) if numbers is None else numbers)
        ]
        self.uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in self.handles]
        self._changed: dict[int, tuple[tuple[float, ...], float]] = {}
        self._memory_changed: dict[int, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self.handles)

    def profile(self) -> CardProfile:
        """The profile of such cards if it is known; else one that says what NVML says of the first."""
        product = _text(self.library.nvml.nvmlDeviceGetName(self.handles[0]))
        total_bytes = self._total_bytes(0)
        known = [each for each in PROFILES.values() if each.product == product]
        base = known[0] if known else PROFILES["a100-sxm-80"]
        info = self.info(0)
        return replace(
            base,
            name="nvidia",
            product=product,
            compute_capability=(int(info.compute_major), int(info.compute_minor)),
            memory_bytes=total_bytes,
            stands_for_bytes=total_bytes,
            page_bytes=PAGE_BYTES,
            pcie_gen=int(info.pcie_gen_max) or base.pcie_gen,
            pcie_width=int(info.pcie_width_max) or base.pcie_width,
            nvlinks=int(info.nvlinks),
            sm_clock_mhz=info.sm_clock_max_mhz or base.sm_clock_mhz,
            mem_clock_mhz=info.mem_clock_max_mhz or base.mem_clock_mhz,
            power_w=info.power_default_w or base.power_w,
            power_min_w=info.power_min_w or base.power_min_w,
            source=f"Read through NVML; rates and idle power of {base.name}, {'as it is' if known else 'a guess'}.",
        )

    def info(self, card: int) -> CardInfo:
        """One card; all that is known of one that is lost is that it is."""
        try:
            told = dict(self._told(card, self.handles[card]))
        except DeviceLost:
            told = {"lost": 1.0}
        info = CardInfo(**told)
        settings = tuple(getattr(info, name) for name in _SETTINGS)
        before, since_s = self._changed.get(card, (settings, 0.0))
        self._changed[card] = settings, since_s if settings == before else time.monotonic()
        return replace(info, changed_s=self._changed[card][1])

    def memory(self, card: int, held: Mapping[int, int], marks: Mapping[int, AllocMark]) -> MemoryInfo:
        """One card's memory. `held` is what neighbours say of themselves, as NVML may not know their process ids.

        How long the longest free run is no driver tells, and virtual memory makes it no matter: it is all that is free.
        """
        nvml = self.library.nvml
        told = nvml.nvmlDeviceGetMemoryInfo(self.handles[card], version=nvml.nvmlMemory_v2)
        total_bytes, free_bytes = int(told.total - told.reserved), int(told.free)
        before, since_s = self._memory_changed.get(card, (free_bytes, 0.0))
        self._memory_changed[card] = free_bytes, since_s if free_bytes == before else time.monotonic()
        return MemoryInfo(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            largest_free_bytes=free_bytes,
            used_by={**held, **self.holders(card)},
            changed_s=self._memory_changed[card][1],
            marks=marks,
        )

    def holders(self, card: int) -> dict[int, int]:
        """Bytes of each process on a card, as far as the driver tells."""
        nvml, handle, held = self.library.nvml, self.handles[card], dict[int, int]()
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            found: list[Any] = self.library.ask(card, partial(ask, handle), [])
            for each in found:
                if each.usedGpuMemory:
                    held[int(each.pid)] = max(held.get(int(each.pid), 0), int(each.usedGpuMemory))
        return held

    def _total_bytes(self, card: int) -> int:
        nvml = self.library.nvml
        told = nvml.nvmlDeviceGetMemoryInfo(self.handles[card], version=nvml.nvmlMemory_v2)
        return int(told.total - told.reserved)

    def _told(self, card: int, handle: Any) -> Iterator[tuple[str, float]]:
        nvml, ask = self.library.nvml, self.library.ask

        def one(name: str, *words: Any) -> float:
            return float(ask(card, lambda: getattr(nvml, f"nvmlDeviceGet{name}")(handle, *words), 0))

        yield "sm_clock_mhz", one("ClockInfo", nvml.NVML_CLOCK_SM)
        yield "sm_clock_max_mhz", one("MaxClockInfo", nvml.NVML_CLOCK_SM)
        yield "mem_clock_mhz", one("ClockInfo", nvml.NVML_CLOCK_MEM)
        yield "mem_clock_max_mhz", one("MaxClockInfo", nvml.NVML_CLOCK_MEM)
        yield "throttle", one("CurrentClocksEventReasons")
        yield "power_w", one("PowerUsage") * _MILLI
        yield "power_limit_w", one("PowerManagementLimit") * _MILLI
        yield "power_default_w", one("PowerManagementDefaultLimit") * _MILLI
        limits = ask(card, lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle), [0, 0])
        yield "power_min_w", limits[0] * _MILLI
        yield "energy_j", one("TotalEnergyConsumption") * _MILLI
        yield "temperature_c", one("Temperature", nvml.NVML_TEMPERATURE_GPU)
        yield "slowdown_c", one("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        yield "shutdown_c", one("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
        rates = ask(card, lambda: nvml.nvmlDeviceGetUtilizationRates(handle), None)
        if rates is not None:
            yield "gpu_util_percent", float(rates.gpu)
            yield "mem_util_percent", float(rates.memory)
        for name, policy in (
            ("power", nvml.NVML_PERF_POLICY_POWER),
            ("thermal", nvml.NVML_PERF_POLICY_THERMAL),
        ):
            spent = ask(card, partial(nvml.nvmlDeviceGetViolationStatus, handle, policy), None)
            yield f"throttled_{name}_s", spent.violationTime * _NANO if spent is not None else 0.0
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        yield "used_bytes", float(memory.used)
        yield from self._errors(card, handle)
        yield from self._links(card, handle)

    def _errors(self, card: int, handle: Any) -> Iterator[tuple[str, float]]:
        nvml, ask, field = self.library.nvml, self.library.ask, self.library.field
        kinds = {
            "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        spans = {"_volatile": nvml.NVML_VOLATILE_ECC, "": nvml.NVML_AGGREGATE_ECC}
        for kind, number in kinds.items():
            for suffix, span in spans.items():
                count = ask(card, partial(nvml.nvmlDeviceGetTotalEccErrors, handle, number, span), 0)
                yield f"ecc_{kind}{suffix}", float(count)
        rows = ask(card, lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
        names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
        yield from zip(names, map(float, rows), strict=True)
        yield "recovery_action", field(card, handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) or 0.0
        major, minor = ask(card, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), (0, 0))
        yield "compute_major", float(major)
        yield "compute_minor", float(minor)

    def _links(self, card: int, handle: Any) -> Iterator[tuple[str, float]]:
        nvml, ask, field = self.library.nvml, self.library.ask, self.library.field
        for name, question in (
            ("pcie_gen", nvml.nvmlDeviceGetCurrPcieLinkGeneration),
            ("pcie_gen_max", nvml.nvmlDeviceGetMaxPcieLinkGeneration),
            ("pcie_width", nvml.nvmlDeviceGetCurrPcieLinkWidth),
            ("pcie_width_max", nvml.nvmlDeviceGetMaxPcieLinkWidth),
            ("pcie_replays", nvml.nvmlDeviceGetPcieReplayCounter),
        ):
            yield name, float(ask(card, partial(question, handle), 0))
        yield "pcie_tx_bytes", field(card, handle, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES) or 0.0
        yield "pcie_rx_bytes", field(card, handle, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES) or 0.0
        links = int(field(card, handle, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT) or 0)
        up = [ask(card, partial(nvml.nvmlDeviceGetNvLinkState, handle, n), 0) == 1 for n in range(links)]
        yield "nvlinks", float(links)
        yield "nvlinks_active", float(sum(1 << place for place, is_up in enumerate(up) if is_up))
        leads = [
            ask(card, partial(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, n), None) is not None
            for n in range(links)
        ]
        wired = [is_up or leads_on for is_up, leads_on in zip(up, leads, strict=True)]
        yield "nvlinks_wired", float(sum(1 << place for place, is_wired in enumerate(wired) if is_wired))
        yield "nvlink_share", sum(up) / sum(wired) if any(wired) else 1.0
        yield (
            "nvlink_bytes_per_s",
            (field(card, handle, nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) or 0.0) * 1e6,
        )
        for name, number in (
            ("nvlink_crc_errors", nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
            ("nvlink_replays", nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
            ("nvlink_recoveries", nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
        ):
            yield name, field(card, handle, number) or 0.0


def _text(told: bytes | str) -> str:
    return told.decode() if isinstance(told, bytes) else told
