"""The closed union of fault kinds: an unknown one is refused with the list of the known."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from faults.alloc_failure import AllocFailure
from faults.base import Fault
from faults.clocks import ClockLock, PowerCap
from faults.collective import CollectiveHang, Straggler
from faults.contention import GpuContention
from faults.context import CudaError
from faults.ecc import EccErrors, EccUncorrectable
from faults.fragmentation import VramFragmentation
from faults.gpu_lost import GpuLost
from faults.gsp import GspTimeout
from faults.leak import VramLeak
from faults.monitoring import DriverMismatch, NvmlSlow, NvmlUnavailable, TelemetryFrozen
from faults.noop import Noop
from faults.nvlink import NvlinkDegrade
from faults.nvlink_down import NvlinkFatal, NvlinkLinksDown
from faults.nvlink_errors import NvlinkErrors
from faults.pcie import PcieSaturation
from faults.pcie_link import PcieLinkDegrade, PcieReplayStorm
from faults.process import EngineStall
from faults.thermal import PowerBrake, ThermalThrottle
from faults.vram import VramOom
from faults.xid_noise import XidNoise

AnyFault = Annotated[
    # memory
    VramOom
    | VramLeak
    | VramFragmentation
    | AllocFailure
    | EccErrors
    | EccUncorrectable
    # PCIe
    | PcieSaturation
    | PcieLinkDegrade
    | PcieReplayStorm
    | GpuLost
    # NVLink and collectives
    | NvlinkDegrade
    | NvlinkLinksDown
    | NvlinkErrors
    | NvlinkFatal
    | CollectiveHang
    | Straggler
    # clocks and power
    | ClockLock
    | PowerCap
    | ThermalThrottle
    | PowerBrake
    | GpuContention
    # process and driver
    | EngineStall
    | CudaError
    | GspTimeout
    | DriverMismatch
    # monitoring
    | NvmlSlow
    | NvmlUnavailable
    | TelemetryFrozen
    | XidNoise
    | Noop,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[Fault]] = {
    "vram_oom": VramOom,
    "vram_leak": VramLeak,
    "vram_fragmentation": VramFragmentation,
    "alloc_failure": AllocFailure,
    "ecc_errors": EccErrors,
    "ecc_uncorrectable": EccUncorrectable,
    "pcie_saturation": PcieSaturation,
    "pcie_link_degrade": PcieLinkDegrade,
    "pcie_replay_storm": PcieReplayStorm,
    "gpu_lost": GpuLost,
    "nvlink_degrade": NvlinkDegrade,
    "nvlink_links_down": NvlinkLinksDown,
    "nvlink_errors": NvlinkErrors,
    "nvlink_fatal": NvlinkFatal,
    "collective_hang": CollectiveHang,
    "straggler": Straggler,
    "clock_lock": ClockLock,
    "power_cap": PowerCap,
    "thermal_throttle": ThermalThrottle,
    "power_brake": PowerBrake,
    "gpu_contention": GpuContention,
    "engine_stall": EngineStall,
    "cuda_error": CudaError,
    "gsp_timeout": GspTimeout,
    "driver_mismatch": DriverMismatch,
    "nvml_slow": NvmlSlow,
    "nvml_unavailable": NvmlUnavailable,
    "telemetry_frozen": TelemetryFrozen,
    "xid_noise": XidNoise,
    "noop": Noop,
}
