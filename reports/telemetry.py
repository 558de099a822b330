"""The lanes that are drawn from samples: the node's memory and links, the service's queue."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

from faults.gpu.profiles import profile
from harness.drill import Drill
from harness.history import Event, History
from reports.series import Points, Series, series

CARD_FREE = re.compile(r"^card(\d+)\.free_bytes$")
SM_CLOCK = re.compile(r"^card(\d+)\.sm_clock_mhz$")
TEMPERATURE = re.compile(r"^card(\d+)\.temperature_c$")
PCIE = re.compile(r"^pcie:(\d+):(h2d|d2h)\.bytes$")
NVLINK = re.compile(r"^nvlink:(\d+)>(\d+)\.bytes$")
QUEUES = {"queue_depth": "waiting", "waiting": "waiting", "running": "running"}


def free_memory(drill: Drill, history: History) -> list[Series]:
    """In MiB of the card that the drill's profile stands for, as doses are."""
    scale = profile(drill.node.profile).scale / 2**20
    return _per_card(history, CARD_FREE, scale)


def clocks(history: History) -> list[Series]:
    """SM clocks in MHz, if any of them ever moved."""
    return _that_move(_per_card(history, SM_CLOCK))


def temperatures(history: History) -> list[Series]:
    """In °C, if some clock ever moved: what throttles a card is told apart by it."""
    return _per_card(history, TEMPERATURE) if clocks(history) else []


def _per_card(history: History, pattern: re.Pattern[str], scale: float = 1.0) -> list[Series]:
    cards: dict[int, Points] = {}
    for sample in _samples(history, "node"):
        for name, value in sample["values"].items():
            if found := pattern.match(name):
                cards.setdefault(int(found[1]), []).append((float(sample["t"]), value * scale))
    return [series(f"card {card}", f"card{card % 8}", points) for card, points in sorted(cards.items())]


def _that_move(cards: list[Series]) -> list[Series]:
    return cards if any(len(set(card["y"])) > 1 for card in cards) else []


def pcie(drill: Drill, history: History) -> list[Series]:
    """Both directions of the cards whose PCIe a fault saturates; of every card if none does."""
    hit = {
        getattr(step.fault, "card", None) for step in drill.timeline if step.fault.kind == "pcie_saturation"
    }

    def card_of(name: str) -> str | None:
        found = PCIE.match(name)
        shown = found is not None and (not hit or int(found[1]) in hit)
        return f"card {found[1]} {found[2]}" if found and shown else None

    rates = _rates(history, card_of)
    return [series(label, f"card{n % 8}", rates[label]) for n, label in enumerate(sorted(rates))]


def nvlink(drill: Drill, history: History) -> list[Series]:
    """All links together, and those that a fault of this drill weakens."""
    pairs = {link for step in drill.timeline for link in step.fault.weakens()}
    weak = {frozenset(pair.split("-")) for pair in pairs}
    total = _rates(history, lambda name: "all links" if NVLINK.match(name) else None)
    named = _rates(
        history, lambda name: "weak links" if (m := NVLINK.match(name)) and {m[1], m[2]} in weak else None
    )
    shown = total | named
    return [series(label, "neutral" if label == "all links" else "bad", shown[label]) for label in shown]


def queue(history: History) -> list[Series]:
    seen: dict[str, Points] = {}
    for sample in _samples(history, "target"):
        for name, label in QUEUES.items():
            if name in sample["values"]:
                seen.setdefault(label, []).append((float(sample["t"]), sample["values"][name]))
    return [series(label, "warn" if label == "waiting" else "good", points) for label, points in seen.items()]


def _rates(history: History, label_of: Callable[[str], str | None]) -> dict[str, Points]:
    """MB/s between samples of the node's byte counters, summed by label; a counter that fell leaves a gap."""
    totals: dict[str, Points] = {}
    for sample in _samples(history, "node"):
        sums: dict[str, float] = {}
        for name, value in sample["values"].items():
            if label := label_of(name):
                sums[label] = sums.get(label, 0.0) + value
        for label, total in sums.items():
            totals.setdefault(label, []).append((float(sample["t"]), total))
    return {
        label: [
            (t, (total - before) / (t - earlier) / 1e6 if total >= before else math.nan)
            for (earlier, before), (t, total) in pairwise(points)
            if t > earlier
        ]
        for label, points in totals.items()
        if len(points) > 1
    }


def _samples(history: History, source: str) -> Iterable[Event]:
    return (sample for sample in history.of_kind("sample") if sample["source"] == source)
