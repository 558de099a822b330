"""Where everything lies in a node file. Counted in cells of 8 bytes, integers and doubles alike.

The NVML library reads the same file by the same numbers: `faults.gpu.nvml.header` writes them down for C.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults.gpu.telemetry import CARD_FIELDS

CELL = 8
CARDS_MAX = 16
OWNERS = 64  # processes that hold something at the same time
FLOWS = 128  # flows on one link at the same time
LEVERS = 1024
EVENTS = 256  # the latest are kept

MAGIC_VALUE = 0x62_6E_6F_64_65_30_30_33  # "bnode003": the format; another layout gets another number

# The head: the first three cells and the names never change; the profile's name says that the file is whole.
MAGIC, CARDS, SEQUENCE, SERIAL, REAPED = 0, 1, 2, 3, 4
TICKED, EVENT_SERIAL = 5, 6  # when telemetry was last brought up to date; how many events there have been
NODE_ID = 7  # random: card UUIDs are made of it
PROFILE, PRODUCT, TOPOLOGY = 8, 16, 24  # names, UTF-8, padded with zeros
NAME_CELLS = 8
LEVERS_KEPT = 36  # rows of the table that are in use, or a few more after a writer was cut off
NVML_DELAY, NVML_ERROR, FROZEN, MONITORING_CHANGED = (
    32,
    33,
    34,
    35,
)  # doubles: what monitoring has to put up with
HEAD_CELLS = 40

# A link is one record of doubles, in the order of nodefile's codec, so that one write has all of it or nothing.
LINK_HEAD_CELLS, FLOW_CELLS = 6 + OWNERS, 6  # the last of the head: what each owner has moved
LINK_RECORD_CELLS = LINK_HEAD_CELLS + FLOW_CELLS * FLOWS
LINK_CELLS = 1 + 2 * LINK_RECORD_CELLS  # which of two records counts; the other one is written next
LEVER_CELLS = 6  # serial (0: free), owner, kind, target, value (a double), since (a double)
EVENT_CELLS = 5  # serial, time (µs of CLOCK_REALTIME), card, type (NVML's bit), data (the Xid)
CARD_CELLS = len(CARD_FIELDS)  # doubles


@dataclass(frozen=True)
class Layout:
    """The places of a node's tables, from how many cards, pages a card, and links it has."""

    cards: int
    pages: int
    links: int

    @property
    def owner_pids(self) -> int:
        """One cell an owner: its process id, 0 if the slot is free. Written last."""
        return HEAD_CELLS

    @property
    def owner_starts(self) -> int:
        """One cell an owner: when its process started."""
        return self.owner_pids + OWNERS

    @property
    def owner_roles(self) -> int:
        """One cell an owner: its role, as an index."""
        return self.owner_starts + OWNERS

    @property
    def owner_errors(self) -> int:
        """One cell an owner: the CUDA error that its context has been stuck in, 0 if none."""
        return self.owner_roles + OWNERS

    def owner_busy(self, card: int, owner: int = 1) -> int:
        """A double: the share of a card's time that an owner's kernels ran, in % over the latest window."""
        return self.owner_errors + OWNERS + card * OWNERS + owner - 1

    def true_owner_busy(self, card: int, owner: int = 1) -> int:
        """The same as it is, even while what monitoring shows stands still."""
        return self.owner_busy(self.cards) + card * OWNERS + owner - 1

    def owner_work(self, card: int, owner: int = 1) -> int:
        """Two doubles: an owner's compute and memory-bound work on a card by the latest tick, in seconds."""
        return self.true_owner_busy(self.cards) + 2 * (card * OWNERS + owner - 1)

    def alloc_marks(self, card: int, owner: int) -> int:
        """Two cells: when an owner last allocated on a card, and the free bytes that were left."""
        return self.owner_work(self.cards) + 2 * (card * OWNERS + owner - 1)

    def memory_changed(self, card: int) -> int:
        """When the card's memory last changed hands."""
        return self.alloc_marks(self.cards, 1) + card

    def card(self, card: int) -> int:
        """A card's telemetry, as monitoring shows it: CARD_FIELDS in their order, doubles."""
        return self.memory_changed(self.cards) + CARD_CELLS * card

    def true_card(self, card: int) -> int:
        """A card's telemetry as it is, even while what monitoring shows stands still."""
        return self.card(self.cards) + CARD_CELLS * card

    def event(self, slot: int) -> int:
        """One event of the ring."""
        return self.true_card(self.cards) + EVENT_CELLS * slot

    def lever(self, slot: int) -> int:
        """One condition that one owner keeps the node in."""
        return self.event(EVENTS) + LEVER_CELLS * slot

    def link(self, link: int) -> int:
        """A link's state and its flows."""
        return self.lever(LEVERS) + LINK_CELLS * link

    def page_bytes(self, card: int) -> slice:
        """A card's page table, in bytes of the file: one a page."""
        start: int = CELL * self.link(self.links) + card * self.pages
        return slice(start, start + self.pages)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return CELL * self.link(self.links) + self.cards * self.pages
