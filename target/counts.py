"""Counters of what the engine did over its life; a scrape reads them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counts:
    """They only grow. Bytes are those of one card."""

    steps: int = 0
    throttled_steps: int = 0
    computed_tokens: int = 0
    computed_kv_bytes: int = 0
    direct_bytes: int = 0
    staged_bytes: int = 0
    swap_in_bytes: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    out_of_memory: int = 0
    # By how many sequences were computed together.
    batch_steps: dict[int, int] = field(default_factory=dict)
    batch_seconds: dict[int, float] = field(default_factory=dict)

    def computed_together(self, sequences: int, seconds: float) -> None:
        """A step computed so many sequences and took so long."""
        self.batch_steps[sequences] = self.batch_steps.get(sequences, 0) + 1
        self.batch_seconds[sequences] = self.batch_seconds.get(sequences, 0.0) + seconds
