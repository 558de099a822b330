"""What the service is started with: read from JSON, each bad field named with its path."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from target.config import Countermeasures, EngineConfig, breaker_configs


class Settings(BaseModel):
    """One service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path | None = None  # a Hugging Face folder of Llama architecture; None: built in, from the seed
    light_model: Path | None = None  # the rung below it; with `model` given and this not, there is none
    seed: int = Field(default=0, ge=0)
    preemption: Literal["recompute", "swap"] = "swap"
    max_running: int = Field(default=16, ge=1)
    max_queue: int = Field(default=64, ge=1)
    breaker_time_scale: float = Field(default=1.0, gt=0, le=1)
    # From the signal to end: how long /ready says so before the port closes, and how long answers may go on.
    drain_ready_s: float = Field(default=0.3, ge=0)
    drain_s: float = Field(default=5.0, ge=0)
    countermeasures: Countermeasures = Countermeasures()

    def engine_config(self) -> EngineConfig:
        """The engine's part of it."""
        return EngineConfig(
            max_running=self.max_running,
            max_running_throttled=max(1, self.max_running // 5),
            max_queue=self.max_queue,
            preemption=self.preemption,
            breakers=breaker_configs(self.breaker_time_scale),
            countermeasures=self.countermeasures,
        )
