"""A Llama decoder, tensor-parallel over simulated cards, with attention over a paged cache. fp32, no autograd.

Column-parallel layers (q, k, v, gate, up) hold the ranks' rows side by side; row-parallel ones (o, down) are one
matrix per rank, whose partial results an all-reduce adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from target.models.attention import Group, attend
from target.models.linear import Linear, linear
from target.models.shape import LlamaShape

Reduce = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Layer:
    norm_in: Tensor
    qkv: Linear
    out: tuple[Linear, ...]  # one per rank
    norm_mlp: Tensor
    gate_up: Linear
    down: tuple[Linear, ...]  # one per rank


@dataclass(frozen=True)
class Batch:
    """New tokens [N] with their positions [N] and cache slots [N]; `groups` attend; `sampled` [S] want logits."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[Group, ...]
    sampled: Tensor


class Llama:
    """Weights and cache of one model. `cache` [layers, 2, kv_heads, slots, head_dim]."""

    def __init__(self, shape: LlamaShape, weights: dict[str, Tensor], *, cards: int, slots: int) -> None:
        shape.check_cards(cards)
        self.shape = shape
        # Reading past a sequence's end is masked, yet must hit the cache: one slot is spare, and stays zero.
        self.spare = slots
        self.cache = torch.zeros(shape.layers, 2, shape.kv_heads, slots + 1, shape.head_dim)
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [_layer(weights, f"model.layers.{i}.", cards) for i in range(shape.layers)]
        self._norm = weights["model.norm.weight"]
        self._head = linear(weights["lm_head.weight"])
        self._cosine, self._sine = _rotation(shape)

    def forward(self, batch: Batch, reduce: Reduce) -> Tensor:
        """Write the new tokens' KV into the cache; returns logits [S, vocabulary]."""
        x = self._embedding[batch.tokens]
        for index, layer in enumerate(self._layers):
            heads = self._attention(index, layer, self._normed(x, layer.norm_in), batch)
            x = x + reduce([project(part) for project, part in _by_rank(layer.out, heads)])
            gate, up = layer.gate_up(self._normed(x, layer.norm_mlp)).chunk(2, dim=1)
            columns = functional.silu(gate) * up
            x = x + reduce([project(part) for project, part in _by_rank(layer.down, columns)])
        return self._head(self._normed(x[batch.sampled], self._norm))

    def _attention(self, index: int, layer: Layer, x: Tensor, batch: Batch) -> Tensor:
        shape = self.shape
        count = x.shape[0]
        widths = [shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
        q, k, v = torch.split(layer.qkv(x), widths, dim=1)
        q = self._rotate(q.view(count, shape.heads, shape.head_dim), batch.positions)
        k = self._rotate(k.view(count, shape.kv_heads, shape.head_dim), batch.positions)
        keys, values = self.cache[index]
        keys[:, batch.slots] = k.transpose(0, 1)
        values[:, batch.slots] = v.view(count, shape.kv_heads, shape.head_dim).transpose(0, 1)
        heads = x.new_empty(count, widths[0])
        for group in batch.groups:
            heads[group.rows.reshape(-1)] = attend(q, keys, values, group).view(-1, widths[0])
        return heads

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_epsilon)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def _layer(weights: dict[str, Tensor], prefix: str, cards: int) -> Layer:
    def weight(name: str) -> Tensor:
        return weights[f"{prefix}{name}.weight"]

    def stacked(*names: str) -> Linear:
        return linear(torch.cat([weight(name) for name in names]))

    def per_rank(name: str) -> tuple[Linear, ...]:
        return tuple(linear(part) for part in weight(name).chunk(cards, dim=1))

    return Layer(
        norm_in=weight("input_layernorm"),
        qkv=stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=per_rank("self_attn.o_proj"),
        norm_mlp=weight("post_attention_layernorm"),
        gate_up=stacked("mlp.gate_proj", "mlp.up_proj"),
        down=per_rank("mlp.down_proj"),
    )


def _by_rank(projections: tuple[Linear, ...], x: Tensor) -> zip[tuple[Linear, Tensor]]:
    parts = [part.contiguous() for part in x.chunk(len(projections), dim=1)]
    return zip(projections, parts, strict=True)


def _rotation(shape: LlamaShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context, head_dim / 2] of the rotary embedding, formed in fp64."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rope_theta**-half)
    return angles.cos().float(), angles.sin().float()
