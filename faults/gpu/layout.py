"""Where everything lies in a node file. Counted in cells of 8 bytes, integers and doubles alike."""

from __future__ import annotations

from dataclasses import dataclass

CELL = 8
CARDS_MAX = 16
OWNERS = 64  # processes that hold something at the same time
FLOWS = 128  # flows on one link at the same time
DEGRADATIONS = 1024

# The head: the first three cells and the profile's name never change; the name says that the file is whole.
MAGIC, CARDS, SEQUENCE, SERIAL, REAPED, PROFILE = 0, 1, 2, 3, 4, 8
PROFILE_CELLS = 8
HEAD_CELLS = 16

LINK_HEAD_CELLS, FLOW_CELLS = 6, 6  # served as doubles, in the order of nodefile's codec
LINK_CELLS = LINK_HEAD_CELLS + FLOW_CELLS * FLOWS
DEGRADATION_CELLS = 4  # serial (0: free), owner, link, factor


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

    def alloc_marks(self, card: int, owner: int) -> int:
        """Two cells: when an owner last allocated on a card, and the free bytes that were left."""
        return self.owner_roles + OWNERS + 2 * (card * OWNERS + owner - 1)

    def memory_changed(self, card: int) -> int:
        """When the card's memory last changed hands."""
        return self.alloc_marks(self.cards, 1) + card

    def degradation(self, slot: int) -> int:
        """One link kept slow by one owner."""
        return self.memory_changed(self.cards) + DEGRADATION_CELLS * slot

    def link(self, link: int) -> int:
        """A link's state and its flows."""
        return self.degradation(DEGRADATIONS) + LINK_CELLS * link

    def moved(self, link: int, owner: int = 1) -> int:
        """Bytes that an owner's flows, as far as they are over, moved on a link; one cell an owner."""
        return self.link(self.links) + link * OWNERS + owner - 1

    def page_bytes(self, card: int) -> slice:
        """A card's page table, in bytes of the file: one a page."""
        start: int = CELL * self.moved(self.links) + card * self.pages
        return slice(start, start + self.pages)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return CELL * self.moved(self.links) + self.cards * self.pages
