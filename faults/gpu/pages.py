"""One card's memory: a page table with contiguous first-fit allocation, so that fragmentation is real.

Pure: no clock, no locks. The table is any writable run of bytes, one a page: 0 is free, else its owner's
number.
"""

from __future__ import annotations

FREE = 0


class PageTable:
    """Who owns which page. Owners are numbers from 1 to 255; sizes are in pages."""

    __slots__ = ("cells",)

    def __init__(self, cells: bytearray | memoryview) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def free(self) -> int:
        """Free pages."""
        return bytes(self.cells).count(FREE)

    @property
    def largest_free(self) -> int:
        """The longest run of free pages: the largest allocation that would succeed."""
        return max(map(len, bytes(self.cells).translate(_TAKEN_AS_ONE).split(b"\1")))

    def held_by(self, owner: int) -> int:
        """Pages of one owner."""
        return bytes(self.cells).count(owner)

    def take(self, owner: int, pages: int) -> int | None:
        """Give `owner` the first free run that is long enough; its first page, or None if none is."""
        if not 0 < owner < 256 or pages < 1:
            raise ValueError(f"can't take {pages} pages for owner {owner}")
        first = bytes(self.cells).find(bytes(pages))
        if first < 0:
            return None
        self.cells[first : first + pages] = bytes((owner,)) * pages
        return first

    def scatter(self, owner: int, longest: int) -> list[int]:
        """Take single pages so that no free run is longer than `longest`; which ones."""
        if not 0 < owner < 256 or longest < 1:
            raise ValueError(f"can't leave runs of {longest} pages for owner {owner}")
        taken, too_long = [], bytes(longest + 1)
        at = bytes(self.cells).find(too_long)
        while at >= 0:
            self.cells[at + longest] = owner
            taken.append(at + longest)
            at = bytes(self.cells).find(too_long, at + longest + 1)
        return taken

    def give_back(self, owner: int, first: int, pages: int) -> None:
        """Free a run again; ValueError if it isn't all the owner's."""
        if bytes(self.cells[first : first + pages]) != bytes((owner,)) * pages:
            raise ValueError(f"pages {first} to {first + pages - 1} don't all belong to owner {owner}")
        self.cells[first : first + pages] = bytes(pages)

    def give_back_all(self, owner: int) -> int:
        """Free every page of an owner; how many there were."""
        held = self.held_by(owner)
        if held:
            self.cells[:] = bytes(self.cells).replace(bytes((owner,)), b"\0")
        return held


_TAKEN_AS_ONE = b"\0" + b"\1" * 255
