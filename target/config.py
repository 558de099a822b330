"""Settings of the service. Times are seconds, sizes per card are bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from target.breaker import BreakerConfig

# How long each breaker stays open at full size (the response matrix); drills scale it down and say so.
OPEN_S = {"memory": 60.0, "pcie": 30.0, "nvlink": 120.0}


@dataclass(frozen=True)
class Countermeasures:
    """Which responses are on; detection always is. Part of what the service is started with, so read from JSON."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    vram: bool = True
    pcie: bool = True
    nvlink: bool = True


@dataclass(frozen=True)
class EngineConfig:
    """What the engine may do in one step, and when it degrades."""

    max_running: int = 16
    max_running_throttled: int = 3  # while memory is short
    max_queue: int = 64
    step_tokens: int = 96  # decode and prefill tokens of one step
    chunk_tokens: int = 64  # prefill tokens of one sequence in one step
    host_tier_tokens: int = 16_384
    preemption: Literal["recompute", "swap"] = "swap"
    memory_low_fraction: float = 0.16  # of a card: below this much free memory, the service gives way
    copy_tokens: int = 16  # KV of at most so many tokens in one chunk of direct DMA, and so in one probe
    staged_blocks: int = 4
    spare_blocks: int = 16  # kept free in a pool when it gives slabs back
    breakers: dict[str, BreakerConfig] = field(default_factory=lambda: breaker_configs(1.0))
    countermeasures: Countermeasures = Countermeasures()


def breaker_configs(time_scale: float) -> dict[str, BreakerConfig]:
    """The three breakers with their open times scaled; one bad memory sample is proof, links want several."""
    return {
        "memory": BreakerConfig(
            OPEN_S["memory"] * time_scale, window_s=0.5, samples_min=1, samples_most=1, failure_rate=1.0
        ),
        "pcie": BreakerConfig(OPEN_S["pcie"] * time_scale, samples_min=3, samples_most=4, failure_rate=0.7),
        "nvlink": BreakerConfig(
            OPEN_S["nvlink"] * time_scale, samples_min=8, samples_most=16, failure_rate=0.7
        ),
    }
