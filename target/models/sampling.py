"""The next token from a row of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from target.request import GenerationRequest

GREEDY_BELOW = 1e-5  # a temperature that small would overflow


def sample(logits: Tensor, request: GenerationRequest, index: int) -> int:
    """Greedy at temperature 0; else drawn from the request's seed and the token's index, so it can be repeated."""
    if request.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    shares, tokens = ((logits - logits.max()) / request.temperature).softmax(-1).sort(descending=True)
    ahead = shares.cumsum(-1) - shares
    shares[ahead >= request.top_p] = 0.0  # the most likely token always stays: nothing lies ahead of it
    seed = request.seed if request.seed is not None else hash_of(request.id)
    mixed = (seed * 1_000_003 + index) % 2**64
    # Folded, because torch's generator on the CPU looks at the lower 32 bits of its seed only.
    generator = torch.Generator().manual_seed((mixed ^ mixed >> 32) % 2**32)
    return int(tokens[torch.multinomial(shares, 1, generator=generator)])


def hash_of(text: str) -> int:
    """A stable number for an engine id (Python's own hash changes from run to run)."""
    return int.from_bytes(text.encode()[-7:], "little")
