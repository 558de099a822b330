"""Running out of a card's memory."""

from __future__ import annotations

from collections.abc import Mapping

from faults.gpu.profiles import GIB, KIB, MIB


class DeviceOutOfMemory(MemoryError):
    """An allocation found no free run of pages that is long enough. Sizes in bytes, `used_by` per process."""

    def __init__(
        self,
        card: int,
        asked_bytes: int,
        free_bytes: int,
        total_bytes: int,
        largest_free_bytes: int,
        used_by: Mapping[int, int],
    ) -> None:
        super().__init__(card, asked_bytes, free_bytes, total_bytes, largest_free_bytes, used_by)
        self.card = card
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        self.largest_free_bytes = largest_free_bytes
        self.used_by = used_by

    def __str__(self) -> str:
        text = (
            f"Tried to allocate {size(self.asked_bytes)}. GPU {self.card} has a total capacity of "
            f"{size(self.total_bytes)} of which {size(self.free_bytes)} is free"
        )
        if self.largest_free_bytes < self.free_bytes:
            text += f" (largest free run: {size(self.largest_free_bytes)})"
        holders = "".join(
            f" Process {pid} has {size(held)} memory in use." for pid, held in self.used_by.items()
        )
        return f"{text}.{holders}"


def size(nbytes: float) -> str:
    """Bytes as CUDA's allocator prints them: `1.00 MiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes:.0f} bytes"
