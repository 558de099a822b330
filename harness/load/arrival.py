"""An arrival: one request of a plan. Light to import, because the process that sends it reads it too."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_ID, END_ID = 32, 256  # token ids in [32, 256) exist in nearly any vocabulary and are seldom special


@dataclass(frozen=True)
class Arrival:
    """When a request is due (seconds after the load's start), how long it and its answer may be, in tokens.

    `prompt_seed` names the stream that the prompt is drawn from: the same name gives the same prompt.
    """

    index: int
    due_s: float
    prompt_tokens: int
    output_tokens: int
    prompt_seed: str


def prompt_ids(arrival: Arrival) -> list[int]:
    """The arrival's prompt, as token ids in [32, 256)."""
    stream = random.Random(arrival.prompt_seed)
    return [FIRST_ID + int(stream.random() * (END_ID - FIRST_ID)) for _ in range(arrival.prompt_tokens)]
