"""Whether what a node tells of itself makes sense: rules that every node keeps, over readings of it.

Pure but for `take`: a rule is told two readings, one after the other, and says what can't be. A node that breaks one
is broken itself, whatever goes wrong on it: a fault slows and stops things, it does not make sums wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from faults.gpu.base import Gpu, LinkInfo, MemoryInfo
from faults.gpu.telemetry import NVLINKS_MAX, CardInfo, Event, Throttle

COUNTERS = (
    *("energy_j", "sm_busy_s", "hbm_busy_s", "throttled_power_s", "throttled_thermal_s"),
    *("pcie_tx_bytes", "pcie_rx_bytes", "pcie_replays", "nvlink_crc_errors", "nvlink_replays"),
    *("nvlink_recoveries", "ecc_corrected", "ecc_uncorrected", "ecc_corrected_volatile"),
    *("ecc_uncorrected_volatile", "remapped_corrected", "remapped_uncorrected", "refused_allocs"),
)
SLOWED = Throttle.APPLICATIONS_CLOCKS | Throttle.SW_POWER_CAP | Throttle.HW_SLOWDOWN | Throttle.HW_POWER_BRAKE
HOT = Throttle.HW_THERMAL | Throttle.SW_THERMAL
_ROUNDING = 1e-6  # of what is compared
_WHOLE = 0.5  # less than one byte


@dataclass(frozen=True)
class Finding:
    """Something that can't be: where it stands, what stands there, and which rule it breaks."""

    path: str
    value: object
    rule: str


@dataclass(frozen=True)
class Allowed:
    """What a node's own figures may be off by, because it measures them at its own moments."""

    unattributed_bytes: float = (
        0.0  # of a card's memory in use: the driver's own, or processes that we can't see
    )
    stale_s: float = 0.15  # how old a card's figures may be
    late_s: float = 0.0  # how old the counters of links may be
    settle_s: float = 0.5  # how long after work utilisation may still show it
    power_over: float = 1.0  # times a card's limit that its power may come to


@dataclass(frozen=True)
class Reading:
    """What a node told, between two moments of its clock: whoever reads may be kept waiting amid it."""

    at_s: float
    until_s: float
    memory: Sequence[MemoryInfo]
    cards: Sequence[CardInfo]
    links: Mapping[str, LinkInfo]
    events: Sequence[Event]
    processes: frozenset[int]


EXACT = Allowed()


def take(gpu: Gpu) -> Reading:
    """Read a node whole."""
    links = {name: gpu.link(name) for name in gpu.links()}
    memory = [gpu.memory(card) for card in range(gpu.cards)]
    cards = [gpu.card(card) for card in range(gpu.cards)]
    return Reading(
        at_s=min((link.read_s for link in links.values()), default=0.0),
        until_s=max((gpu.link(name).read_s for name in gpu.links()[:1]), default=0.0),
        memory=memory,
        cards=cards,
        links=links,
        events=gpu.events(),
        processes=gpu.tenants() | gpu.neighbours(),
    )


def findings(readings: Sequence[Reading], allowed: Allowed = EXACT) -> list[Finding]:
    """Everything that can't be, in readings that were taken one after the other."""
    found: list[Finding] = []
    for reading in readings:
        found += alone(reading, allowed)
    for before, after in pairwise(readings):
        found += between(before, after, allowed)
    return found


def alone(reading: Reading, allowed: Allowed = EXACT) -> Iterator[Finding]:
    """What can't be, whatever was before."""
    for number, memory in enumerate(reading.memory):
        yield from _memory(f"memory[{number}]", memory, allowed)
    for number, card in enumerate(reading.cards):
        yield from _card(f"cards[{number}]", card)
        yield from _power(f"cards[{number}].power_w", card, reading.at_s, allowed)
    for name, link in reading.links.items():
        yield from _link(f"links[{name}]", link)
    serials = [event.serial for event in reading.events]
    if serials != sorted(set(serials)):
        yield Finding("events", serials, "serials of events rise")


def between(before: Reading, after: Reading, allowed: Allowed = EXACT) -> Iterator[Finding]:
    """What can't be, after what was before."""
    least_s, most_s = after.at_s - before.until_s, after.until_s - before.at_s
    if after.at_s < before.at_s:
        yield Finding("at_s", after.at_s, f"time does not go back (it was {before.at_s})")
    for number, (old, new) in enumerate(zip(before.cards, after.cards, strict=True)):
        path = f"cards[{number}]"
        for name in COUNTERS:
            yield from _rises(f"{path}.{name}", getattr(old, name), getattr(new, name))
        yield from _spent(path, old, new, most_s + allowed.stale_s)
        idle = all(_at_rest(each, number) for each in (before, after)) and not _worked(before, after, number)
        if idle and least_s >= allowed.settle_s and new.gpu_util_percent >= 1:
            yield Finding(
                f"{path}.gpu_util_percent", new.gpu_util_percent, "no utilisation without a process"
            )
    for name, new_link in after.links.items():
        stayed = before.processes & after.processes
        yield from _moved(f"links[{name}]", before.links[name], new_link, stayed, allowed.late_s)
    last = max((event.serial for event in before.events), default=0)
    if max((event.serial for event in after.events), default=0) < last:
        yield Finding("events", last, "events that were told stay told")


def _memory(path: str, memory: MemoryInfo, allowed: Allowed) -> Iterator[Finding]:
    used = sum(memory.used_by.values())
    missing = memory.total_bytes - memory.free_bytes - used
    if not -_WHOLE < missing <= allowed.unattributed_bytes + _WHOLE:
        yield Finding(f"{path}.free_bytes", memory.free_bytes, f"used ({used}) + free = {memory.total_bytes}")
    if not 0 <= memory.largest_free_bytes <= memory.free_bytes:
        yield Finding(f"{path}.largest_free_bytes", memory.largest_free_bytes, "no more than is free")
    for pid, nbytes in memory.used_by.items():
        if nbytes <= 0:
            yield Finding(f"{path}.used_by[{pid}]", nbytes, "who is listed holds something")
    for pid, mark in memory.marks.items():
        if not 0 <= mark.free_bytes <= memory.total_bytes:
            yield Finding(f"{path}.marks[{pid}]", mark.free_bytes, "no more can be free than there is")


def _card(path: str, card: CardInfo) -> Iterator[Finding]:
    for field in fields(card):
        value = getattr(card, field.name)
        if not (math.isfinite(value) and value >= 0):
            yield Finding(f"{path}.{field.name}", value, "a figure of a card is a number from 0 on")
    if not math.isfinite(card.throttle + card.nvlinks_active + card.nvlinks):
        return  # the rest would make no sense
    why = Throttle(int(card.throttle))
    slow = card.sm_clock_mhz < card.sm_clock_max_mhz or card.mem_clock_mhz < card.mem_clock_max_mhz
    rules = (
        ("sm_clock_mhz", _within(card.sm_clock_mhz, card.sm_clock_max_mhz), "no clock above its maximum"),
        ("mem_clock_mhz", _within(card.mem_clock_mhz, card.mem_clock_max_mhz), "no clock above its maximum"),
        ("throttle", bool(why) or not slow, "a clock below its maximum has a reason"),
        ("throttle", slow or not why & SLOWED, "what slows a card shows in a clock"),
        ("throttle", not _is_hot(card) or bool(why & HOT), "a card this hot slows down"),
        ("gpu_util_percent", _within(card.gpu_util_percent, 100), "utilisation is at most 100 %"),
        ("mem_util_percent", _within(card.mem_util_percent, 100), "utilisation is at most 100 %"),
        ("pcie_gen", card.pcie_gen <= card.pcie_gen_max, "no generation above its maximum"),
        ("pcie_width", card.pcie_width <= card.pcie_width_max, "no width above its maximum"),
        ("nvlinks", card.nvlinks <= NVLINKS_MAX, f"a card has at most {NVLINKS_MAX} NVLinks"),
        ("nvlinks_active", card.nvlinks_active < 2**card.nvlinks, "only links that it has are up"),
        ("nvlink_share", _within(card.nvlink_share, 1), "a link has no more than its nominal rate"),
    )
    for name, kept, rule in rules:
        if not kept:
            yield Finding(f"{path}.{name}", getattr(card, name), rule)


def _power(path: str, card: CardInfo, at_s: float, allowed: Allowed) -> Iterator[Finding]:
    """A new limit binds from the next figure on, not at once."""
    settled = at_s - card.changed_s >= allowed.stale_s
    if settled and not _within(card.power_w, card.power_limit_w * allowed.power_over):
        yield Finding(path, card.power_w, f"power stays below {card.power_limit_w} W")


def _link(path: str, link: LinkInfo) -> Iterator[Finding]:
    if not _within(link.capacity_bytes_per_s, link.nominal_bytes_per_s) or link.capacity_bytes_per_s < 0:
        yield Finding(f"{path}.capacity_bytes_per_s", link.capacity_bytes_per_s, "from 0 to nominal")
    flows = sum(stream.flows for stream in link.streams.values())
    if flows != link.flows:
        yield Finding(f"{path}.flows", link.flows, f"each flow is some process's (theirs are {flows})")
    if not _within(sum(link.bytes_by.values()), link.bytes_total):
        yield Finding(
            f"{path}.bytes_by", sum(link.bytes_by.values()), "processes moved no more than the link"
        )
    for pid, stream in link.streams.items():
        if not stream.since_s <= link.read_s:
            yield Finding(f"{path}.streams[{pid}].since_s", stream.since_s, "a copy began before it is seen")


def _moved(
    path: str, before: LinkInfo, after: LinkInfo, stayed: frozenset[int], late_s: float
) -> Iterator[Finding]:
    yield from _rises(f"{path}.bytes_total", before.bytes_total, after.bytes_total)
    could = (after.read_s - before.read_s + late_s) * after.nominal_bytes_per_s
    more = after.bytes_total - before.bytes_total
    if more > could + _WHOLE + _ROUNDING * after.bytes_total:
        yield Finding(
            f"{path}.bytes_total", after.bytes_total, f"no more than nominal allows ({could:.0f} more)"
        )
    for pid in stayed & before.bytes_by.keys():
        yield from _rises(f"{path}.bytes_by[{pid}]", before.bytes_by[pid], after.bytes_by.get(pid, 0.0))


def _spent(path: str, before: CardInfo, after: CardInfo, within_s: float) -> Iterator[Finding]:
    most = after.power_default_w * within_s
    if after.energy_j - before.energy_j > most * (1 + _ROUNDING):
        yield Finding(
            f"{path}.energy_j", after.energy_j, f"no more than its power allows ({most:.3f} J more)"
        )
    for name in ("throttled_power_s", "throttled_thermal_s", "sm_busy_s", "hbm_busy_s"):
        if getattr(after, name) - getattr(before, name) > within_s:
            yield Finding(
                f"{path}.{name}", getattr(after, name), f"no longer than time passed ({within_s} s)"
            )


def _rises(path: str, before: float, after: float) -> Iterator[Finding]:
    if after < before - _ROUNDING * max(1.0, before):
        yield Finding(path, after, f"a counter never goes back (it stood at {before})")


def _at_rest(reading: Reading, card: int) -> bool:
    """Nobody holds any of its memory, or has anything under way that it takes part in."""
    busy = any(link.flows for name, link in reading.links.items() if str(card) in re.split("[:>]", name))
    return not reading.memory[card].used_by and not busy


def _worked(before: Reading, after: Reading, card: int) -> bool:
    old, new = before.cards[card], after.cards[card]
    return (new.sm_busy_s, new.hbm_busy_s) != (old.sm_busy_s, old.hbm_busy_s)


def _is_hot(card: CardInfo) -> bool:
    return 0 < card.slowdown_c <= card.temperature_c


def _within(value: float, most: float) -> bool:
    return not value > most * (1 + _ROUNDING)
