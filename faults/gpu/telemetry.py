"""What a card shows of itself: names, units, and where each figure stands among its cells."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag

NVLINKS_MAX = 18  # physical NVLinks of one card


class Throttle(IntFlag):
    """Why a card's clocks are below what was asked of them; the values are NVML's ClocksEventReasons."""

    NONE = 0
    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2  # locked by somebody
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80


class EventType(IntFlag):
    """What an event is about; the values are NVML's nvmlEventType bits."""

    ECC_CORRECTED = 0x1
    ECC_UNCORRECTED = 0x2
    CLOCK = 0x10
    XID = 0x8


@dataclass(frozen=True)
class Event:
    """Something a card reported: `data` is the Xid. `serial` counts from 1, `at_us` is CLOCK_REALTIME."""

    serial: int
    at_us: int
    card: int
    type: int
    data: int


@dataclass(frozen=True)
class CardInfo:
    """One card's telemetry. Counters never fall while a node lives; flags and masks are whole numbers."""

    lost: float = 0.0  # 1: it has fallen off the bus
    changed_s: float = 0.0  # when a lever on it last changed
    sm_clock_mhz: float = 0.0
    sm_clock_max_mhz: float = 0.0
    mem_clock_mhz: float = 0.0
    mem_clock_max_mhz: float = 0.0
    throttle: float = 0.0  # a mask of Throttle
    power_w: float = 0.0
    power_limit_w: float = 0.0
    power_default_w: float = 0.0
    power_min_w: float = 0.0
    energy_j: float = 0.0
    temperature_c: float = 0.0
    slowdown_c: float = 0.0
    shutdown_c: float = 0.0
    gpu_util_percent: float = 0.0  # of the latest window: some kernel ran
    mem_util_percent: float = 0.0  # of the latest window: memory was being read or written
    sm_busy_s: float = 0.0  # compute done, in seconds at full clocks
    hbm_busy_s: float = 0.0  # memory-bound work done, in seconds at full clocks
    throttled_power_s: float = 0.0
    throttled_thermal_s: float = 0.0
    used_bytes: float = 0.0  # as of the latest tick; the page table has it as of now
    pcie_gen: float = 0.0
    pcie_gen_max: float = 0.0
    pcie_width: float = 0.0
    pcie_width_max: float = 0.0
    pcie_tx_bytes: float = 0.0  # card to host
    pcie_rx_bytes: float = 0.0  # host to card
    pcie_tx_bytes_per_s: float = 0.0  # over the latest window
    pcie_rx_bytes_per_s: float = 0.0
    pcie_replays: float = 0.0
    ecc_corrected_volatile: float = 0.0
    ecc_corrected: float = 0.0  # aggregate
    ecc_uncorrected_volatile: float = 0.0
    ecc_uncorrected: float = 0.0  # aggregate
    remapped_corrected: float = 0.0  # rows
    remapped_uncorrected: float = 0.0
    remap_pending: float = 0.0
    remap_failed: float = 0.0
    refused_allocs: float = 0.0  # allocations that an injected failure refused
    recovery_action: float = 0.0  # NVML field 230: 0 none, 1 reset, 2 reboot
    last_xid: float = 0.0
    compute_major: float = 0.0
    compute_minor: float = 0.0
    nvlinks: float = 0.0  # physical links
    nvlinks_wired: float = 0.0  # a mask of those that lead somewhere
    nvlinks_active: float = 0.0  # a mask of those that are up
    nvlink_bytes_per_s: float = 0.0  # of one physical link, one direction, nominal
    nvlink_share: float = 0.0  # of that, what its slowest link has now
    nvlink_crc_errors: float = 0.0
    nvlink_replays: float = 0.0
    nvlink_recoveries: float = 0.0


@dataclass(frozen=True)
class Monitoring:
    """How the node's monitoring is doing: calls that take longer, that fail (an NVML code), values that stand still."""

    delay_s: float = 0.0
    error: int = 0
    frozen: bool = False
    changed_s: float = 0.0  # when one of these last changed


# After CardInfo's own figures: per physical NVLink bytes sent, received, and the peer (-1: a switch).
CARD_FIELDS: tuple[str, ...] = (
    *(field.name for field in fields(CardInfo)),
    *(f"nvlink_{what}_{n}" for what in ("tx_bytes", "rx_bytes", "peer") for n in range(NVLINKS_MAX)),
)
FIELD_AT: dict[str, int] = {name: place for place, name in enumerate(CARD_FIELDS)}
