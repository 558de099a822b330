"""A node's telemetry as Prometheus text, under the names and labels of NVIDIA's DCGM exporter."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from faults.gpu.identity import DRIVER_VERSION, node_id, pci_bus_id, uuid
from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode
from faults.gpu.telemetry import CardInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MonitoringBroken(RuntimeError):
    """Monitoring of the node fails, by NVML's code `code`: there is nothing to be scraped."""

    def __init__(self, code: int) -> None:
        super().__init__(f"monitoring fails with NVML error {code}")
        self.code = code


@dataclass(frozen=True)
class Sample:
    """One card. Rates are bytes per second over the latest window."""

    card: CardInfo
    used_bytes: float
    total_bytes: float
    nvlink_tx_bytes_per_s: float
    nvlink_rx_bytes_per_s: float


@dataclass(frozen=True)
class Metric:
    """One name of the exporter's."""

    name: str
    kind: str
    what: str
    value: Callable[[Sample], float]


METRICS = (
    Metric("DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda s: s.card.sm_clock_mhz),
    Metric("DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda s: s.card.mem_clock_mhz),
    Metric("DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda s: round(s.card.temperature_c)),
    Metric("DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda s: round(s.card.power_w, 3)),
    Metric("DEV_POWER_MGMT_LIMIT", "gauge", "Power management limit (in W).", lambda s: s.card.power_limit_w),
    Metric("DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).",
           lambda s: int(1e3 * s.card.energy_j)),
    Metric("DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", lambda s: int(s.card.pcie_replays)),
    Metric("DEV_PCIE_LINK_GEN", "gauge", "PCIe current link generation.", lambda s: s.card.pcie_gen),
    Metric("DEV_PCIE_LINK_WIDTH", "gauge", "PCIe current link width.", lambda s: s.card.pcie_width),
    Metric("DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda s: round(s.card.gpu_util_percent)),
    Metric("DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", lambda s: round(s.card.mem_util_percent)),
    Metric("DEV_CLOCK_THROTTLE_REASONS", "gauge", "Why clocks are low (a bit mask).", lambda s: s.card.throttle),
    Metric("DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lambda s: s.card.last_xid),
    Metric("DEV_POWER_VIOLATION", "counter", "Throttling duration due to power constraints (in ns).",
           lambda s: int(1e9 * s.card.throttled_power_s)),
    Metric("DEV_THERMAL_VIOLATION", "counter", "Throttling duration due to thermal constraints (in ns).",
           lambda s: int(1e9 * s.card.throttled_thermal_s)),
    Metric("DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).",
           lambda s: int(s.total_bytes - s.used_bytes) // MIB),
    Metric("DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", lambda s: int(s.used_bytes) // MIB),
    Metric("DEV_FB_TOTAL", "gauge", "Framebuffer memory total (in MiB).", lambda s: int(s.total_bytes) // MIB),
    Metric("DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.",
           lambda s: int(s.card.ecc_corrected_volatile)),
    Metric("DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.",
           lambda s: int(s.card.ecc_uncorrected_volatile)),
    Metric("DEV_ECC_SBE_AGG_TOTAL", "counter", "Total number of single-bit persistent ECC errors.",
           lambda s: int(s.card.ecc_corrected)),
    Metric("DEV_ECC_DBE_AGG_TOTAL", "counter", "Total number of double-bit persistent ECC errors.",
           lambda s: int(s.card.ecc_uncorrected)),
    Metric("DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors.",
           lambda s: s.card.remapped_corrected),
    Metric("DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors.",
           lambda s: s.card.remapped_uncorrected),
    Metric("DEV_ROW_REMAP_PENDING", "gauge", "Whether remapping of rows is pending.", lambda s: s.card.remap_pending),
    Metric("DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed.", lambda s: s.card.remap_failed),
    Metric("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink flow-control CRC errors.",
           lambda s: int(s.card.nvlink_crc_errors)),
    Metric("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries.",
           lambda s: int(s.card.nvlink_replays)),
    Metric("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink recovery errors.",
           lambda s: int(s.card.nvlink_recoveries)),
    # Its name and the exporter call it a total; what DCGM gives is a rate in thousands of KiB per second.
    Metric("DEV_NVLINK_BANDWIDTH_TOTAL", "gauge", "NVLink traffic of all lanes, sent and received (in 1000 KiB/s).",
           lambda s: int((s.nvlink_tx_bytes_per_s + s.nvlink_rx_bytes_per_s) / 1024e3)),
    Metric("PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
           lambda s: round(s.card.gpu_util_percent / 100, 6)),
    Metric("PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active.",
           lambda s: round(s.card.mem_util_percent / 100, 6)),
    Metric("PROF_PCIE_TX_BYTES", "gauge", "The rate of data transmitted over the PCIe bus (in bytes per second).",
           lambda s: int(s.card.pcie_tx_bytes_per_s)),
    Metric("PROF_PCIE_RX_BYTES", "gauge", "The rate of data received over the PCIe bus (in bytes per second).",
           lambda s: int(s.card.pcie_rx_bytes_per_s)),
    Metric("PROF_NVLINK_TX_BYTES", "gauge", "The rate of data transmitted over NVLink (in bytes per second).",
           lambda s: int(s.nvlink_tx_bytes_per_s)),
    Metric("PROF_NVLINK_RX_BYTES", "gauge", "The rate of data received over NVLink (in bytes per second).",
           lambda s: int(s.nvlink_rx_bytes_per_s)),
)  # fmt: skip
# All that is left to be told of a card that has fallen off the bus.
OF_LOST_CARDS = ("DEV_XID_ERRORS",)


class Exporter:
    """A node's metrics. `watch` it now and then, so that traffic over NVLink has a window to be a rate over."""

    def __init__(self, node: SimNode, hostname: str | None = None) -> None:
        self._node = node
        self._node_id = node_id(node.path)
        self._hostname = hostname or socket.gethostname()
        self._before: tuple[float, list[tuple[float, float]]] | None = None
        self._rates = [(0.0, 0.0)] * node.cards
        self._links = [_links_of(node, card) for card in range(node.cards)]

    def watch(self) -> None:
        """Take a sample of what the NVLinks have moved."""
        if self._node.monitoring().frozen:
            return
        sums, read_s = [], 0.0
        for ways in self._links:
            infos = [[self._node.link(name) for name in way] for way in ways]
            sums.append(
                (sum(each.bytes_total for each in infos[0]), sum(each.bytes_total for each in infos[1]))
            )
            read_s = max((each.read_s for way in infos for each in way), default=read_s)
        if self._before and (window_s := read_s - self._before[0]) > 0:
            pairs = zip(sums, self._before[1], strict=True)
            self._rates = [((tx - tx0) / window_s, (rx - rx0) / window_s) for (tx, rx), (tx0, rx0) in pairs]
        self._before = (read_s, sums)

    def text(self) -> str:
        """What a scrape gives. MonitoringBroken while monitoring fails."""
        if error := self._node.monitoring().error:
            raise MonitoringBroken(error)
        samples = [self._sample(card) for card in range(self._node.cards)]
        labels = [self._labels(card) for card in range(self._node.cards)]
        return "\n".join(_lines(samples, labels)) + "\n"

    def _sample(self, card: int) -> Sample:
        shown, memory = self._node.shown_card(card), self._node.memory(card)
        frozen = self._node.monitoring().frozen
        used = shown.used_bytes if frozen else float(memory.total_bytes - memory.free_bytes)
        return Sample(shown, used, memory.total_bytes, *self._rates[card])

    def _labels(self, card: int) -> str:
        told = {
            "gpu": str(card),
            "UUID": uuid(self._node_id, card),
            "pci_bus_id": pci_bus_id(card),
            "device": f"nvidia{card}",
            "modelName": self._node.profile.product,
            "Hostname": self._hostname,
            "DCGM_FI_DRIVER_VERSION": DRIVER_VERSION,
        }
        return ",".join(f'{name}="{_escaped(value)}"' for name, value in told.items())


def _lines(samples: list[Sample], labels: list[str]) -> Iterator[str]:
    for metric in METRICS:
        name = f"DCGM_FI_{metric.name}"
        yield f"# HELP {name} {metric.what}"
        yield f"# TYPE {name} {metric.kind}"
        for sample, told in zip(samples, labels, strict=True):
            if not sample.card.lost or metric.name in OF_LOST_CARDS:
                yield f"{name}{{{told}}} {metric.value(sample):.15g}"


def _links_of(node: SimNode, card: int) -> tuple[list[str], list[str]]:
    """The names of the NVLinks that a card sends and receives over."""
    names = [name for name in node.links() if name.startswith("nvlink:")]
    return (
        [name for name in names if name.startswith(f"nvlink:{card}>")],
        [name for name in names if name.endswith(f">{card}")],
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
