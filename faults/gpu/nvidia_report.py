"""What a neighbour on real cards says of itself: it writes into a file that both ends hold, and never waits.

The driver does not tell what a process copies, and in a container not even by which id it knows the process.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from faults.gpu.base import AllocMark, Stream

_ROOM = 4096  # one write of so many bytes, padded


@dataclass
class Report:
    """Bytes held and the last allocation by card, flows and bytes (or seconds of work) by link."""

    held: dict[int, int] = field(default_factory=dict)
    marks: dict[int, AllocMark] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)

    def write(self, fd: int) -> None:
        """For whoever looks."""
        told = {
            "held": self.held,
            "marks": {card: (mark.at_s, mark.free_bytes) for card, mark in self.marks.items()},
            "streams": {link: (stream.flows, stream.since_s) for link, stream in self.streams.items()},
            "moved": self.moved,
        }
        os.pwrite(fd, json.dumps(told).encode().ljust(_ROOM), 0)

    @classmethod
    def read(cls, fd: int) -> Report | None:
        """The latest; None if there is none yet, or a new one is just being written."""
        try:
            told = json.loads(os.pread(fd, _ROOM, 0))
            return cls(
                held={int(card): int(nbytes) for card, nbytes in told["held"].items()},
                marks={int(card): AllocMark(*mark) for card, mark in told["marks"].items()},
                streams={link: Stream(*stream) for link, stream in told["streams"].items()},
                moved={link: float(moved) for link, moved in told["moved"].items()},
            )
        except (ValueError, KeyError, TypeError):
            return None
