"""Attention of new tokens over the paged cache.

Keys are taken in segments of a fixed length and summed segment by segment, and few query rows are padded, so
that each row's result is the same bytes whatever the batch, the chunk and the padding (see `linear`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SEGMENT = 128  # keys; a multiple of the block
QUERIES_LEAST = 2


@dataclass(frozen=True)
class Group:
    """Sequences that attend together. `rows` [B, n] index the batch's tokens, `slots` [B, L] the cache, L a
    multiple of `SEGMENT`; `positions` [B, n] are those of the queries in their sequences."""

    rows: Tensor
    slots: Tensor
    positions: Tensor


def attend(q: Tensor, keys: Tensor, values: Tensor, group: Group) -> Tensor:
    """Causal grouped-query attention.

    `q` [N, heads, d]; `keys`, `values` [kv_heads, cache slots, d]. Returns [B, n, heads * d].
    """
    count, rows = group.rows.shape
    heads, width = q.shape[1:]
    kv_heads = keys.shape[0]
    share = heads // kv_heads
    length = group.slots.shape[1]
    padded = max(rows, QUERIES_LEAST)
    query = q[group.rows]
    positions = group.positions
    if padded > rows:
        query = torch.cat([query, query.new_zeros(count, padded - rows, heads, width)], dim=1)
        positions = torch.cat([positions, positions.new_zeros(count, padded - rows)], dim=1)
    query = query.view(count, padded, kv_heads, share, width).permute(2, 0, 3, 1, 4)
    query = query.reshape(kv_heads * count, share * padded, width)
    slots = group.slots.reshape(-1)
    key = keys.index_select(1, slots).view(kv_heads * count, length, width)
    value = values.index_select(1, slots).view(kv_heads * count, length, width)
    scores = torch.bmm(query, key.transpose(1, 2)).mul_(width**-0.5)
    hidden = torch.arange(length) > positions[:, :, None]  # [B, n, L]: keys that lie ahead
    scores = scores.view(kv_heads, count, share, padded, length)
    weights = scores.masked_fill_(hidden[None, :, None], float("-inf")).softmax(-1)
    weights = weights.view(kv_heads * count, share * padded, length)
    out = torch.bmm(weights[:, :, :SEGMENT], value[:, :SEGMENT])
    for start in range(SEGMENT, length, SEGMENT):
        out += torch.bmm(weights[:, :, start : start + SEGMENT], value[:, start : start + SEGMENT])
    out = out.view(kv_heads, count, share, padded, width)[:, :, :, :rows]
    return out.permute(1, 3, 0, 2, 4).reshape(count, rows, heads * width)
