"""The links of real cards as NVML counts them: PCIe each way, and all NVLinks to one peer, or to the switch, as one.

Untested on hardware. What a process moved the driver does not tell; neighbours of ours say it of themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from faults.gpu.base import LinkInfo, Stream
from faults.gpu.conditions import LANE_BYTES_PER_S
from faults.gpu.nvidia_cards import NvidiaCards
from faults.gpu.nvidia_report import Report
from faults.gpu.profiles import CardProfile
from faults.gpu.topology import DIRECTIONS, bandwidth, compute, downward, nvlink, pcie, upward

_KIB = 1024


class NvidiaLinks:
    """Which there are, what they can do, and what they have moved."""

    def __init__(self, cards: NvidiaCards, profile: CardProfile) -> None:
        self._cards, self._profile = cards, profile
        self._peers = [self._peers_of(card) for card in range(len(cards))]
        self.names = tuple(self._all())

    def info(self, name: str, reports: Mapping[int, Report]) -> LinkInfo:
        """One link. ValueError if there is no such link."""
        if name not in self.names:
            raise ValueError(f"no link {name!r} among these cards; they have {', '.join(self.names[:3])} ...")
        kind, _, rest = name.partition(":")
        nominal, capacity, moved = {"pcie": self._pcie, "nvlink": self._nvlink}.get(kind, self._share)(
            kind, rest
        )
        streams = {pid: report.streams[name] for pid, report in reports.items() if name in report.streams}
        moved_by = {pid: report.moved[name] for pid, report in reports.items() if report.moved.get(name)}
        now = time.monotonic()
        return LinkInfo(
            nominal_bytes_per_s=nominal,
            capacity_bytes_per_s=capacity,
            bytes_total=max(moved, sum(moved_by.values())),
            bytes_by=moved_by,
            flows=sum(stream.flows for stream in streams.values()),
            changed_s=max((self._cards.info(card).changed_s for card in self._ends(rest)), default=0.0),
            streams={pid: Stream(each.flows, min(each.since_s, now)) for pid, each in streams.items()},
            read_s=now,
        )

    def route(self, source: int, to: int) -> tuple[str, ...]:
        """The links that bytes from one card to another go over."""
        if upward(source) in self.names and downward(to) in self.names:
            return upward(source), downward(to)
        direct = nvlink(source, to)
        return (direct,) if direct in self.names else (pcie(source, "d2h"), pcie(to, "h2d"))

    def _all(self) -> list[str]:
        cards = range(len(self._cards))
        found = [pcie(card, way) for card in cards for way in DIRECTIONS]
        for card in cards:
            peers = sorted({peer for peer in self._peers[card] if peer is not None}, key=str)
            for peer in peers:
                found += [upward(card), downward(card)] if peer == "switch" else [nvlink(card, int(peer))]
        return found + [share(card) for card in cards for share in (compute, bandwidth)]

    def _peers_of(self, card: int) -> list[int | str | None]:
        """What each physical NVLink of a card leads to: a card of ours, a switch, or something else."""
        nvml, ask = self._cards.library.nvml, self._cards.library.ask
        handle = self._cards.handles[card]
        places = [self._place(nvml.nvmlDeviceGetPciInfo(each)) for each in self._cards.handles]

        def peer(link: int) -> int | str | None:
            kind = ask(card, lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), None)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                return "switch"
            there = ask(card, lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link), None)
            place = self._place(there) if there is not None else None
            return places.index(place) if place in places else None

        return [peer(link) for link in range(self._profile.nvlinks)]

    def _pcie(self, _: str, rest: str) -> tuple[float, float, float]:
        card, way = int(rest.partition(":")[0]), rest.rpartition(":")[2]
        info, nominal = self._cards.info(card), self._profile.pcie_bytes_per_s
        best = LANE_BYTES_PER_S.get(int(info.pcie_gen_max), 0.0) * info.pcie_width_max
        now = LANE_BYTES_PER_S.get(int(info.pcie_gen), 0.0) * info.pcie_width
        moved = info.pcie_rx_bytes if way == "h2d" else info.pcie_tx_bytes
        return nominal, nominal * min(1.0, now / best) if best else nominal, moved

    def _nvlink(self, _: str, rest: str) -> tuple[float, float, float]:
        source, to = rest.split(">")
        card, sends = (int(to), False) if source == "switch" else (int(source), True)
        other = (to if sends else source) if "switch" in (source, to) else int(to)
        places = [place for place, peer in enumerate(self._peers[card]) if peer == other]
        info, each = self._cards.info(card), self._profile.nvlink_bytes_per_s / max(1, self._profile.nvlinks)
        up = [place for place in places if int(info.nvlinks_active) >> place & 1]
        nvml, field = self._cards.library.nvml, self._cards.library.field
        way = (
            nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
            if sends
            else nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
        )
        counts = [field(card, self._cards.handles[card], way, place) or 0.0 for place in places]
        return each * len(places), each * len(up), _KIB * sum(counts)

    def _share(self, kind: str, rest: str) -> tuple[float, float, float]:
        info = self._cards.info(int(rest))
        now, best = (
            (info.sm_clock_mhz, info.sm_clock_max_mhz)
            if kind == "sm"
            else (info.mem_clock_mhz, info.mem_clock_max_mhz)
        )
        return 1.0, min(1.0, now / best) if best else 1.0, 0.0

    @staticmethod
    def _ends(rest: str) -> list[int]:
        return [int(end) for end in rest.replace(">", ":").split(":") if end.isdigit()]

    @staticmethod
    def _place(pci: Any) -> tuple[int, int, int]:
        return int(pci.domain), int(pci.bus), int(pci.device)
