"""Puts a ladder of models on cards: reserves their weights, sizes their caches, and names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from target.config import EngineConfig
from target.device import Device
from target.engine import RungSpec
from target.kv import BLOCK_TOKENS, SLAB_BLOCKS, KvShape
from target.models.checkpoint import built_in, load
from target.models.llama import Llama
from target.models.runner import TorchRunner, cache_slots
from target.models.shape import LlamaShape
from target.models.tokenizer import TextCodec
from target.sequence import RUNGS, Rung
from target.settings import Settings

SLAB_TOKENS = SLAB_BLOCKS * BLOCK_TOKENS
# The lower rung must work when the upper one gets nothing, so room for four slabs of it is kept from the start.
LIGHT_SLABS = 4


@dataclass(frozen=True)
class Ladder:
    """Everything that computes."""

    runner: TorchRunner
    rungs: dict[Rung, RungSpec]
    codec: TextCodec
    end_tokens: frozenset[int]
    weight_bytes: dict[Rung, int]  # on each card
    weights: list[object]  # what they hold there

    def place(self, device: Device) -> None:
        """Load the weights onto cards that were reopened, over PCIe; the device's errors if that fails."""
        self.weights.clear()
        for rung, nbytes in self.weight_bytes.items():
            self.weights.append(device.alloc(nbytes, f"weights {rung}"))
            device.copy("h2d", nbytes)


def folders(settings: Settings, home: Path) -> dict[Rung, Path]:
    """Where each rung's checkpoint lies; the built-in ones are written if they are not there yet."""
    if settings.model is None:
        return {rung: built_in(home, rung, settings.seed) for rung in RUNGS}
    if settings.light_model is None:
        return {"full": settings.model}
    return {"full": settings.model, "light": settings.light_model}


def assemble(settings: Settings, config: EngineConfig, device: Device, home: Path) -> Ladder:
    """Load and place. ValueError for a checkpoint that can't be used, the device's error if it does not fit."""
    # One thread: on shared cores, two that wait for each other at every barrier collapse.
    torch.set_num_threads(1)
    places = folders(settings, home)
    loaded = {rung: load(folder) for rung, folder in places.items()}
    codec = TextCodec(places["full"])
    for rung, (shape, _) in loaded.items():
        if codec.size > shape.vocabulary:
            raise ValueError(
                f"{places[rung]}: {shape.vocabulary} tokens in config.json, {codec.size} in the tokenizer"
            )
    for shape, _ in loaded.values():
        shape.check_cards(device.cards)
    weight_bytes = {rung: shape.weight_bytes(device.cards) for rung, (shape, _) in loaded.items()}
    handles = [device.alloc(nbytes, f"weights {rung}") for rung, nbytes in weight_bytes.items()]
    shapes = {rung: shape for rung, (shape, _) in loaded.items()}
    kv = {
        rung: KvShape(
            shape.kv_bytes_per_token(device.cards) * BLOCK_TOKENS, *slabs(rung, shapes, config, device)
        )
        for rung, shape in shapes.items()
    }
    models = {
        rung: Llama(shape, weights, cards=device.cards, slots=cache_slots(kv[rung].slabs_most))
        for rung, (shape, weights) in loaded.items()
    }
    rungs = {
        rung: RungSpec(name_of(rung, places[rung], settings), kv[rung], shape.context)
        for rung, shape in shapes.items()
    }
    runner, end_tokens = TorchRunner(models, device), frozenset(shapes["full"].end_tokens)
    return Ladder(runner, rungs, codec, end_tokens, weight_bytes, handles)


def name_of(rung: Rung, folder: Path, settings: Settings) -> str:
    """What clients call a rung's model."""
    return f"brownout-{rung}" if settings.model is None else folder.resolve().name


def slabs_least(rung: Rung, shape: LlamaShape) -> int:
    """Slabs that the longest sequence needs, and on the lower rung a few more."""
    least = -(-shape.context // SLAB_TOKENS)
    return least if rung == RUNGS[0] else max(least, LIGHT_SLABS)


def slabs(
    rung: Rung, shapes: dict[Rung, LlamaShape], config: EngineConfig, device: Device
) -> tuple[int, int]:
    """Slabs that a rung's pool has at least and at most. MemoryError-like ValueError if the least does not fit.

    The first rung may grow into what is left above the low-memory watermark, so that its own growth never looks
    like a neighbour's.
    """
    shape = shapes[rung]
    least = slabs_least(rung, shape)
    if rung != RUNGS[0]:
        return least, least
    headroom = device.headroom()
    free = headroom.free_bytes - config.memory_low_fraction * headroom.total_bytes
    for other, lower in shapes.items():
        if other != rung:
            free -= slabs_least(other, lower) * SLAB_TOKENS * lower.kv_bytes_per_token(device.cards)
    most = int(free // (shape.kv_bytes_per_token(device.cards) * SLAB_TOKENS))
    if most < least:
        raise ValueError(
            f"the cards have {free / 2**20:.1f} MiB left for KV; one sequence of {shape.context} tokens needs "
            f"{least * shape.kv_bytes_per_token(device.cards) * SLAB_TOKENS / 2**20:.1f} MiB"
        )
    return least, most
