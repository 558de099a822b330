"""What neighbours hold of a card's memory beyond what any process needs to be there."""

from __future__ import annotations

from collections.abc import Mapping

from faults.gpu.base import Gpu, MemoryInfo


def held_by_neighbours(gpu: Gpu, memory: MemoryInfo) -> Mapping[int, int]:
    """Bytes by process id. One that holds a single page only has a context there, for kernels, copies or errors."""
    held = {pid: memory.used_by.get(pid, 0) for pid in gpu.neighbours()}
    return {pid: nbytes for pid, nbytes in held.items() if nbytes > gpu.profile.page_bytes}
