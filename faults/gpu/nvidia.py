"""Real cards behind the same interface as simulated ones: read through NVML, disturbed by child processes.

Untested on hardware. Everything that disturbs is capped (it leaves `floor_bytes` of a card free), ends by itself after
`within_s`, and goes when its process does. What takes a privilege, a driver or a torch that is not here is Refused.
docs/hardware.md says what each fault does on real cards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faults.gpu import nvidia_limits
from faults.gpu.base import AllocMark, LinkInfo, MemoryInfo, Neighbour
from faults.gpu.levers import LeverKind
from faults.gpu.nvidia_cards import NvidiaCards
from faults.gpu.nvidia_library import Library, opened
from faults.gpu.nvidia_links import NvidiaLinks
from faults.gpu.nvidia_report import Report
from faults.gpu.nvidia_spawn import RunningNeighbour, running
from faults.gpu.profiles import MIB, CardProfile
from faults.gpu.refused import Refused
from faults.gpu.telemetry import CardInfo, Event, Monitoring

FLOOR_BYTES = 512 * MIB
WITHIN_S = 900.0
KEPT_EVENTS = 256
TASKS = ("hold", "leak", "copy", "peer_copy", "busy", "keep")
WHY_NOT = {
    "scatter": "a driver's virtual memory hides where pages lie: holes in it can't be placed",
    "refuse": "a driver can't be told to fail allocations: take memory instead (hold)",
    "degrade": "no supported call sets the bandwidth of a link: contend for it instead (copy, peer_copy)",
    "noise": "no supported call makes a card report an Xid",
    "stop": "stopping another user's process is not done yet",
}


class NvidiaNode:
    """This machine's cards. Close it: it ends no neighbour, but lets go of NVML."""

    def __init__(
        self,
        library: Library,
        numbers: Sequence[int] | None = None,
        *,
        floor_bytes: int = FLOOR_BYTES,
        within_s: float = WITHIN_S,
        notes: Path = nvidia_limits.NOTES,
    ) -> None:
        self._library = library
        self._cards = NvidiaCards(library, numbers)
        if not self._cards.handles:
            raise Refused("NVML shows no card: is this user, or this container, allowed to see one?")
        self._profile = self._cards.profile()
        self._links = NvidiaLinks(self._cards, self._profile)
        self._floor_bytes, self._within_s, self._notes = floor_bytes, within_s, notes.absolute()
        self._running: dict[int, RunningNeighbour] = {}
        self._events: list[Event] = []
        self._event_set = self._registered()

    @classmethod
    def open(cls, numbers: Sequence[int] | None = None, *, floor_bytes: int = FLOOR_BYTES) -> NvidiaNode:
        """All cards, or those with these numbers. Refused, with the reason, if they can't be read."""
        node = cls(Library(opened()), numbers, floor_bytes=floor_bytes)
        with suppress(
            Refused
        ):  # whoever may not may still read; setting the same limit then says what is left
            nvidia_limits.repeat(node._library, node._notes)  # what an earlier one that was killed left
        return node

    def close(self) -> None:
        """Let go of NVML."""
        self._library.nvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    @property
    def profile(self) -> CardProfile:
        """What its cards are like."""
        return self._profile

    @property
    def cards(self) -> int:
        """How many cards it has, numbered from 0."""
        return len(self._cards)

    def memory(self, card: int) -> MemoryInfo:
        """One card's memory."""
        held: dict[int, int] = {}
        marks: dict[int, AllocMark] = {}
        for pid, report in self._reports().items():
            if card in report.held:
                held[pid], marks[pid] = report.held[card], report.marks[card]
        return self._cards.memory(self._card(card), held, marks)

    def link(self, name: str) -> LinkInfo:
        """One link's capacity and counters; flows and bytes by process as far as they are our neighbours'."""
        return self._links.info(name, self._reports())

    def links(self) -> Sequence[str]:
        """The names of all directed links, and of the cards' compute and memory bandwidth."""
        return self._links.names

    def route(self, source: int, to: int) -> tuple[str, ...]:
        """The links that bytes from one card to another go over."""
        return self._links.route(source, to)

    def card(self, card: int) -> CardInfo:
        """One card's clocks, power, heat, errors and counters."""
        return self._cards.info(self._card(card))

    def events(self, after: int = 0) -> Sequence[Event]:
        """What cards have reported since this node was opened, as far as it is kept."""
        nvml = self._library.nvml
        with suppress(nvml.NVMLError):  # none is left: it says that the time is up
            while self._event_set is not None:
                told = nvml.nvmlEventSetWait_v2(self._event_set, 0)
                serial = self._events[-1].serial + 1 if self._events else 1
                card = self._numbered(told.device)
                self._events.append(
                    Event(serial, time.time_ns() // 1000, card, told.eventType, told.eventData)
                )
        del self._events[:-KEPT_EVENTS]
        return [event for event in self._events if event.serial > after]

    def monitoring(self) -> Monitoring:
        """Nothing is done to a real node's monitoring."""
        return Monitoring()

    def context_errors(self) -> Mapping[int, int]:
        """CUDA tells nobody but the process itself."""
        return {}

    def tenants(self) -> frozenset[int]:
        """Process ids that hold memory on the cards and are no neighbours of ours."""
        holders = {pid for card in range(self.cards) for pid in self._cards.holders(card)}
        return frozenset(holders - self.neighbours())

    def neighbours(self) -> frozenset[int]:
        """Process ids of our neighbours."""
        return frozenset(self._running)

    def neighbour(self, task: str, **settings: object) -> AbstractContextManager[Neighbour]:
        """A process that disturbs the cards while the block lasts. Refused, with the reason, if it can't be had."""
        if task in WHY_NOT:
            raise Refused(f"{task}: {WHY_NOT[task]}")
        if task not in TASKS:
            raise ValueError(f"no task {task!r}; known: {', '.join((*TASKS, *WHY_NOT))}")
        leave_bytes = settings.get("leave_bytes", self._floor_bytes)
        if isinstance(leave_bytes, int) and leave_bytes < self._floor_bytes:
            raise Refused(
                f"{task}: would leave {leave_bytes // MIB} MiB of the card free; at least "
                f"{self._floor_bytes // MIB} MiB must stay"
            )
        if task == "keep":
            _refuse_what_cannot_be_kept(settings)
        return self._run(task, settings)

    @contextmanager
    def _run(self, task: str, settings: dict[str, object]) -> Iterator[Neighbour]:
        cards = _cards_of(settings)
        told = {
            name: value
            for name, value in settings.items()
            if name not in ("card", "cards") and value not in ((), [], None)
        }
        uuids = [self._cards.uuids[self._card(card)] for card in cards]
        options = {
            "within_s": self._within_s,
            "floor_bytes": self._floor_bytes,
            "cards": cards,
            "uuid": uuids[0],
            "notes": self._notes,
        }
        with running(task, told, options=options, uuids=uuids, gone=self._repeat) as other:
            self._running[other.pid] = other
            try:
                yield other
            finally:
                del self._running[other.pid]

    def _repeat(self) -> None:
        """If a neighbour was killed before it had taken its limits back."""
        nvidia_limits.repeat(self._library, self._notes)

    def _reports(self) -> dict[int, Report]:
        return {pid: each.report for pid, each in self._running.items()}

    def _card(self, card: int) -> int:
        if not 0 <= card < self.cards:
            raise ValueError(f"no card {card} on this node; it has cards 0 to {self.cards - 1}")
        return card

    def _registered(self) -> Any:
        """An event set of all that the cards report; None if they report nothing."""
        nvml = self._library.nvml
        try:
            event_set = nvml.nvmlEventSetCreate()
            for handle in self._cards.handles:
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlDeviceGetSupportedEventTypes(handle), event_set
                )
        except nvml.NVMLError:
            return None
        return event_set

    def _numbered(self, device: object) -> int:
        nvml = self._library.nvml
        uuid = nvml.nvmlDeviceGetUUID(device)
        return self._cards.uuids.index(uuid.decode() if isinstance(uuid, bytes) else uuid)


def _cards_of(settings: Mapping[str, object]) -> list[int]:
    """The cards that a task is about."""
    if "shares" in settings:
        shares = settings["shares"]
        assert isinstance(shares, (list, tuple))
        return sorted({int(share.partition(":")[2]) for share in shares})
    if "cards" in settings:
        cards = settings["cards"]
        assert isinstance(cards, (list, tuple))
        return list(cards)
    return [int(str(settings.get("card", 0)))]


def _refuse_what_cannot_be_kept(settings: Mapping[str, object]) -> None:
    if others := {name for name in ("counts", "xids", "error") if settings.get(name)}:
        raise Refused(f"keep: no supported call sets a real card's {', '.join(sorted(others))}")
    levers = settings.get("levers", ())
    assert isinstance(levers, (list, tuple))
    for word in levers:
        kind = LeverKind[str(word).partition("=")[0]]
        if kind not in nvidia_limits.LIMITS:
            raise Refused(f"keep: no supported call sets {kind.name} of a real card")
