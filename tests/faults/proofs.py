"""For each kind: two faults of it on different cards, and what somebody else on the node notices of the first.

What is noticed is asked of the node by other means than the fault's own `took_effect`: an allocation, a copy or a
kernel of a tenant, counters and events as monitoring reads them, and what a client of NVML hears.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from faults.alloc_failure import AllocFailure
from faults.base import Fault
from faults.clocks import ClockLock, PowerCap
from faults.collective import CollectiveHang, Straggler
from faults.contention import GpuContention
from faults.context import CudaError
from faults.ecc import EccErrors, EccUncorrectable
from faults.fragmentation import VramFragmentation
from faults.gpu.broken import DeviceLost
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.owners import is_stopped
from faults.gpu.profiles import KIB, MIB
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import Throttle
from faults.gpu_lost import GpuLost
from faults.gsp import GspTimeout
from faults.leak import VramLeak
from faults.monitoring import DriverMismatch, NvmlSlow, NvmlUnavailable, TelemetryFrozen
from faults.nvlink import NvlinkDegrade
from faults.nvlink_down import NvlinkFatal, NvlinkLinksDown
from faults.nvlink_errors import NvlinkErrors
from faults.pcie import PcieSaturation
from faults.pcie_link import PcieLinkDegrade, PcieReplayStorm
from faults.process import EngineStall
from faults.thermal import PowerBrake, ThermalThrottle
from faults.vram import VramOom
from faults.xid_noise import XIDS, XidNoise
from tests.faults.nvml_client import heard

# On cards 0 and 1, or on links that share no card; None where there is only one monitoring to disturb.
FAULTS: dict[str, tuple[Fault, Fault | None]] = {
    "vram_oom": (VramOom(), VramOom(card=1)),
    "vram_leak": (VramLeak(), VramLeak(card=1)),
    "vram_fragmentation": (VramFragmentation(), VramFragmentation(card=1)),
    "alloc_failure": (AllocFailure(), AllocFailure(card=1)),
    "ecc_errors": (EccErrors(), EccErrors(card=1)),
    "ecc_uncorrectable": (EccUncorrectable(), EccUncorrectable(card=1)),
    "pcie_saturation": (PcieSaturation(), PcieSaturation(card=1)),
    "pcie_link_degrade": (PcieLinkDegrade(), PcieLinkDegrade(card=1)),
    "pcie_replay_storm": (PcieReplayStorm(), PcieReplayStorm(card=1)),
    "gpu_lost": (GpuLost(), GpuLost(card=1)),
    "nvlink_degrade": (NvlinkDegrade(), NvlinkDegrade(links=("2-3",))),
    "nvlink_links_down": (NvlinkLinksDown(), NvlinkLinksDown(card=1)),
    "nvlink_errors": (NvlinkErrors(), NvlinkErrors(card=1)),
    "nvlink_fatal": (NvlinkFatal(), NvlinkFatal(card=1)),
    "collective_hang": (CollectiveHang(), CollectiveHang(card=1)),
    "straggler": (Straggler(), Straggler(card=1)),
    "clock_lock": (ClockLock(), ClockLock(card=1)),
    "power_cap": (PowerCap(), PowerCap(card=1)),
    "thermal_throttle": (ThermalThrottle(), ThermalThrottle(card=1)),
    "power_brake": (PowerBrake(), PowerBrake(card=1)),
    "gpu_contention": (GpuContention(), GpuContention(card=1)),
    "engine_stall": (EngineStall(), EngineStall(card=1)),
    "cuda_error": (CudaError(), CudaError(card=1)),
    "gsp_timeout": (GspTimeout(delay_ms=300), GspTimeout(card=1, delay_ms=300)),
    "driver_mismatch": (DriverMismatch(), None),
    "nvml_slow": (NvmlSlow(), None),
    "nvml_unavailable": (NvmlUnavailable(), None),
    "telemetry_frozen": (TelemetryFrozen(), None),
    "xid_noise": (XidNoise(), XidNoise(card=1)),
}


def slowdown(node: SimNode, link: str, amount: float) -> float:
    """How many times longer than undisturbed a copy takes, or a kernel."""
    (timing,) = node.transfer([(link, amount)])
    return timing.slowdown


def copies_slow_down(node: SimNode, times: float, way: str = "pcie:0:h2d") -> bool:
    """A copy of 3 ms takes that many times longer, and one between other cards doesn't."""
    other = "pcie:2:h2d" if way.startswith("pcie") else "nvlink:2>3"
    nbytes = 0.003 * node.link(way).nominal_bytes_per_s
    return is_about(slowdown(node, way, nbytes), times) and is_about(slowdown(node, other, nbytes), 1)


def kernels_slow_down(node: SimNode, compute: float, memory: float = 1) -> bool:
    """Compute-bound and memory-bound kernels of 3 ms take that many times longer; on another card they don't."""
    taken = [slowdown(node, name, 0.003) for name in ("sm:0", "hbm:0", "sm:2", "hbm:2")]
    return all(map(is_about, taken, (compute, memory, 1, 1)))


def is_about(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= 0.1 * wanted


def is_refused(node: SimNode, nbytes: int, error: type[Exception] = DeviceOutOfMemory) -> bool:
    """Card 0 gives no such allocation, while card 2 does."""
    node.free(node.alloc(2, nbytes))
    try:
        node.free(node.alloc(0, nbytes))
    except error:
        return True
    return False


def is_given(node: SimNode, nbytes: int) -> bool:
    return not is_refused(node, nbytes)


def stands_still(node: SimNode, way: str) -> bool:
    """A copy that should take 1 ms is not there after all of 30."""
    copy = node.start([(way, 0.001 * node.link(way).nominal_bytes_per_s)])
    began = node.link(way).read_s
    while node.link(way).read_s < began + 0.03:
        if copy.done():
            return False
    node.cancel(copy)
    return True


def reported(node: SimNode, *xids: int) -> bool:
    return set(xids) <= {event.data for event in node.events() if event.card == 0}


def throttled(node: SimNode, why: Throttle) -> bool:
    return bool(int(node.card(0).throttle) & why) and not node.card(2).throttle


def shows_the_past(node: SimNode) -> bool:
    """A client of NVML hears the same figures again, though the cards have used energy since."""
    used_j, before = node.card(0).energy_j, heard(node)
    time.sleep(0.05)
    went_on = node.card(0).energy_j > used_j
    return went_on and before.init == before.call == 0 and heard(node).energy_mj == before.energy_mj != []


def hangs_and_fails(node: SimNode) -> bool:
    """NVML comes up, and then a call takes 0.3 s to say that a reset is required."""
    told = heard(node)
    return (told.init, told.call) == (0, 16) and told.call_s >= 0.3


def is_slow(node: SimNode) -> bool:
    """A call of NVML takes half a second, and is answered."""
    told = heard(node)
    return (told.init, told.call) == (0, 0) and told.call_s >= 0.5


def corrects_errors(node: SimNode) -> bool:
    """A client of NVML sees corrected errors of card 0, and none of card 2."""
    told = heard(node).corrected
    return told[0] >= 1 and not told[2]


def neighbours_hold(node: SimNode) -> int:
    return sum(node.memory(0).used_by.get(pid, 0) for pid in node.neighbours())


NOTICED: dict[str, Callable[[SimNode], bool]] = {
    "vram_oom": lambda node: is_refused(node, MIB),
    "vram_leak": lambda node: neighbours_hold(node) > 256 * KIB and is_given(node, MIB),
    "vram_fragmentation": lambda node: (
        is_refused(node, MIB) and is_given(node, 512 * KIB) and node.memory(0).free_bytes > 24 * MIB
    ),
    "alloc_failure": lambda node: is_refused(node, MIB) and is_given(node, 512 * KIB),
    "ecc_errors": corrects_errors,
    "ecc_uncorrectable": lambda node: (
        reported(node, 94, 63)
        and node.card(0).ecc_uncorrected == node.card(0).ecc_uncorrected_volatile > 0
        and dict(node.context_errors()) == dict.fromkeys(node.neighbours(), 214)
        and is_given(node, MIB)
    ),
    "pcie_saturation": lambda node: copies_slow_down(node, 10),
    "pcie_link_degrade": lambda node: copies_slow_down(node, 8) and node.card(0).pcie_gen == 3,
    "pcie_replay_storm": lambda node: copies_slow_down(node, 1 / 0.7) and node.card(0).pcie_replays >= 1,
    "gpu_lost": lambda node: is_refused(node, MIB, DeviceLost) and reported(node, 79),
    "nvlink_degrade": lambda node: copies_slow_down(node, 10, "nvlink:0>1"),
    "nvlink_links_down": lambda node: copies_slow_down(node, 2, "nvlink:0>1"),
    "nvlink_errors": lambda node: (
        copies_slow_down(node, 1 / 0.7, "nvlink:0>1") and node.card(0).nvlink_crc_errors >= 1
    ),
    "nvlink_fatal": lambda node: (
        stands_still(node, "nvlink:1>0") and not stands_still(node, "pcie:0:h2d") and reported(node, 74)
    ),
    "collective_hang": lambda node: (
        stands_still(node, "nvlink:1>0")
        and not node.card(0).lost
        and node.card(0).nvlinks_active == node.card(2).nvlinks_active
    ),
    "straggler": lambda node: kernels_slow_down(node, 1 / 0.3, 1 / 0.3) and not node.card(0).throttle,
    "clock_lock": lambda node: (
        kernels_slow_down(node, 1980 / 600) and throttled(node, Throttle.APPLICATIONS_CLOCKS)
    ),
    "power_cap": lambda node: kernels_slow_down(node, 630 / 230) and throttled(node, Throttle.SW_POWER_CAP),
    "thermal_throttle": lambda node: kernels_slow_down(node, 2) and throttled(node, Throttle.HW_THERMAL),
    "power_brake": lambda node: kernels_slow_down(node, 2) and throttled(node, Throttle.HW_POWER_BRAKE),
    "gpu_contention": lambda node: kernels_slow_down(node, 4),
    "engine_stall": lambda node: [is_stopped(pid) for pid in sorted(node.tenants() - {os.getpid()})].count(True) == 1,
    "cuda_error": lambda node: (
        reported(node, 31)
        and len(node.neighbours()) == 1
        and dict(node.context_errors()) == dict.fromkeys(node.neighbours(), 700)
        and is_given(node, MIB)
    ),
    "gsp_timeout": lambda node: (
        reported(node, 119, 154) and hangs_and_fails(node) and node.card(0).recovery_action == 1
    ),
    "driver_mismatch": lambda node: heard(node).init == 18,
    "nvml_slow": is_slow,
    "nvml_unavailable": lambda node: heard(node).init == 12,
    "telemetry_frozen": shows_the_past,
    "xid_noise": lambda node: reported(node, *XIDS) and not node.card(0).recovery_action,
}  # fmt: skip
