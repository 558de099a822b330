"""A node of cards one can read and disturb: the control side.

Bytes are bytes, times are seconds of CLOCK_MONOTONIC, links are directed and named
`pcie:CARD:h2d`, `pcie:CARD:d2h` and `nvlink:FROM>TO`. A card's compute and its memory bandwidth are shared like
links, `sm:CARD` and `hbm:CARD`; what they move is seconds of work at full clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from faults.gpu.profiles import CardProfile
from faults.gpu.telemetry import CardInfo, Event, Monitoring


@dataclass(frozen=True)
class AllocMark:
    """A process's last allocation on a card: when it was made, and the bytes it left free."""

    at_s: float
    free_bytes: int


@dataclass(frozen=True)
class Stream:
    """What a process has in flight on a link: how many flows, and since when the oldest of them."""

    flows: int
    since_s: float


@dataclass(frozen=True)
class MemoryInfo:
    """One card's memory. `used_by` is bytes per process id; `changed_s` is when it last changed hands."""

    total_bytes: int
    free_bytes: int
    largest_free_bytes: int
    used_by: Mapping[int, int] = field(default_factory=dict)
    changed_s: float = 0.0
    marks: Mapping[int, AllocMark] = field(default_factory=dict)  # per process id, while it holds something


@dataclass(frozen=True)
class LinkInfo:
    """One directed link. `bytes_by` counts per process id what was moved, and never falls while it lives."""

    nominal_bytes_per_s: float
    capacity_bytes_per_s: float
    bytes_total: float
    bytes_by: Mapping[int, float] = field(default_factory=dict)
    flows: int = 0
    changed_s: float = 0.0  # when its capacity last changed
    streams: Mapping[int, Stream] = field(default_factory=dict)  # per process id, while it has flows
    read_s: float = 0.0  # the moment that the counters stand for


class Neighbour(Protocol):
    """Another process on the node; its death is the undo."""

    @property
    def pid(self) -> int: ...


class Gpu(Protocol):
    """The control side of a node: telemetry, levers, and neighbours to be had."""

    @property
    def profile(self) -> CardProfile: ...

    @property
    def cards(self) -> int: ...

    def memory(self, card: int) -> MemoryInfo: ...

    def link(self, name: str) -> LinkInfo: ...

    def links(self) -> Sequence[str]: ...

    def card(self, card: int) -> CardInfo:
        """One card's clocks, power, heat, errors and counters."""
        ...

    def events(self, after: int = 0) -> Sequence[Event]:
        """What cards reported, as far as it is kept, with a serial above `after`."""
        ...

    def monitoring(self) -> Monitoring:
        """What whoever asks through NVML has to put up with."""
        ...

    def context_errors(self) -> Mapping[int, int]:
        """The CUDA error that a process's context is stuck in, per process id; none if all is well."""
        ...

    def tenants(self) -> frozenset[int]:
        """Process ids that hold something on the node in order to work."""
        ...

    def neighbours(self) -> frozenset[int]:
        """Process ids that are on the node to disturb it."""
        ...

    def neighbour(self, task: str, **settings: object) -> AbstractContextManager[Neighbour]: ...
