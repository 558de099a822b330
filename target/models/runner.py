"""Computes plans with torch: batches over the paged caches, sampling, and the host tier's copies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from target.device import AsyncCopy, Device
from target.kv import BLOCK_TOKENS, SLAB_BLOCKS
from target.models.attention import SEGMENT, Group
from target.models.collective import AllReduce
from target.models.llama import Batch, Llama
from target.models.sampling import sample
from target.plan import LinkWatch, Outcome, Plan, Staging, Work
from target.sequence import Rung, Sequence


class TorchRunner:
    """One thread's worth of compute for all rungs."""

    def __init__(self, models: Mapping[Rung, Llama], device: Device) -> None:
        self._models = models
        self._device = device
        self._all_reduce = AllReduce(device)
        # By sequence id: the rung, and [layers, 2, kv_heads, context, head_dim].
        self._host: dict[str, tuple[Rung, Tensor]] = {}
        self._staging: tuple[Staging, AsyncCopy] | None = None

    @torch.inference_mode()
    def execute(self, plan: Plan, watch: LinkWatch) -> Outcome:
        """Run one step; raises what a step that died raised."""
        outcome = Outcome()
        arrived = self._arrived()
        for sequence in plan.swap_ins:
            outcome.restored[sequence.id] = self._swap_in(sequence, watch)
        cut_short = {s.id for s in plan.swap_ins if outcome.restored[s.id] < s.computed}
        for rung, planned in plan.batches.items():
            if works := [work for work in planned if work.sequence.id not in cut_short]:
                model = self._models[rung]
                batch = batch_of(works, model.spare)
                logits = self._forward(model, batch, works, watch)
                self._sample(logits, [work for work in works if work.sample], outcome)
        computed = [work for work in plan.write_through if work.sequence.id not in cut_short]
        self._write_through(computed, watch, outcome)
        # Only now, when nothing can fail any more, or the engine would never hear of it.
        if arrived is not None:
            self._staging = None
            outcome.staged.append(arrived)
        if plan.staging is not None:
            nbytes = plan.staging.count * self._token_bytes(plan.staging.sequence)
            self._staging = (plan.staging, self._device.start_copy("d2h", nbytes))
        return outcome

    def reset(self) -> None:
        """The cards were reopened: nothing is on its way any more."""
        self._staging = None

    def _forward(self, model: Llama, batch: Batch, works: Many[Work], watch: LinkWatch) -> Tensor:
        """Logits, after the time that the cards need for them: longer than the host's if they are slowed down.

        A step with a chunk of a prompt in it is limited by compute, one that only decodes by memory bandwidth.
        """
        kernel = self._device.start_kernel("compute" if any(work.count > 1 for work in works) else "memory")
        began_s, waited_s = time.perf_counter(), self._all_reduce.waited_s
        try:
            logits = model.forward(batch, lambda parts: self._all_reduce(parts, watch))
        except BaseException:
            kernel.cancel()
            raise
        kernel.finish(time.perf_counter() - began_s - (self._all_reduce.waited_s - waited_s))
        return logits

    def forget(self, sequence_id: str) -> None:
        """Drop what the host tier holds of a sequence."""
        self._host.pop(sequence_id, None)

    def _sample(self, logits: Tensor, works: Many[Work], outcome: Outcome) -> None:
        for row, work in zip(logits, works, strict=True):
            sequence = work.sequence
            if bool(torch.isfinite(row).all()):
                outcome.tokens[sequence.id] = sample(row, sequence.request, sequence.output_tokens)
            else:
                outcome.failures[sequence.id] = "the model gave logits that are not finite"

    def _write_through(self, works: Many[Work], watch: LinkWatch, outcome: Outcome) -> None:
        """Direct DMA of new KV to the host tier, a chunk at a time, for as long as the engine lets it."""
        for work in works:
            done = work.start
            while done < work.start + work.count:
                chunk = watch.begin_copy()
                if chunk is None:
                    return
                count = min(chunk, work.start + work.count - done)
                watch.saw_copy(self._device.copy("d2h", count * self._token_bytes(work.sequence)))
                self._to_host(work.sequence, done, count)
                done += count
                outcome.on_host[work.sequence.id] = done

    def _arrived(self) -> Staging | None:
        """The staged copy, if it is done, with its KV in the host tier if that is still wanted."""
        if self._staging is None or self._staging[1].readings() is None:
            return None
        staging = self._staging[0]
        if staging.is_wanted:
            self._to_host(staging.sequence, staging.start, staging.count, blocks=staging.blocks)
        return staging

    def _to_host(self, sequence: Sequence, start: int, count: int, blocks: Many[int] | None = None) -> None:
        assert sequence.rung is not None
        cache = self._cache(sequence)
        rung, host = self._host.get(sequence.id, (None, None))
        if host is None or rung != sequence.rung:
            host = cache.new_empty(*cache.shape[:3], sequence.tokens_most, cache.shape[4])
            self._host[sequence.id] = sequence.rung, host
        table = sequence.blocks if blocks is None else [0] * (start // BLOCK_TOKENS) + list(blocks)
        slots = torch.tensor(slots_of(table, start, count))
        host[:, :, :, start : start + count] = cache[:, :, :, slots]

    def _swap_in(self, sequence: Sequence, watch: LinkWatch) -> int:
        """Direct DMA from the host tier, for as long as the engine lets it; returns the tokens that are back."""
        done = 0
        while done < sequence.computed and (chunk := watch.begin_copy()) is not None:
            count = min(chunk, sequence.computed - done)
            watch.saw_copy(self._device.copy("h2d", count * self._token_bytes(sequence)))
            done += count
        slots = torch.tensor(slots_of(sequence.blocks, 0, done), dtype=torch.long)
        self._cache(sequence)[:, :, :, slots] = self._host[sequence.id][1][:, :, :, :done]
        return done

    def _cache(self, sequence: Sequence) -> Tensor:
        assert sequence.rung is not None
        return self._models[sequence.rung].cache

    def _token_bytes(self, sequence: Sequence) -> int:
        assert sequence.rung is not None
        return self._models[sequence.rung].shape.kv_bytes_per_token(self._device.cards)


def slots_of(blocks: Many[int], start: int, count: int) -> list[int]:
    """Cache slots of tokens [start, start + count) by a block table."""
    return [
        blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
        for position in range(start, start + count)
    ]


def batch_of(works: Many[Work], spare: int) -> Batch:
    """Tensors of a rung's works: single tokens attend as one group, each chunk as its own.

    `spare` is a slot that is never written.
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sampled: list[int] = []
    single: list[tuple[int, Work]] = []
    groups: list[Group] = []
    for work in works:
        first = len(tokens)
        span = range(work.start, work.start + work.count)
        tokens += work.sequence.tokens[work.start : work.start + work.count]
        positions += span
        slots += slots_of(work.sequence.blocks, work.start, work.count)
        if work.sample:
            sampled.append(len(tokens) - 1)
        if work.count == 1:
            single.append((first, work))
        else:
            groups.append(group_of([(first, work)], spare))
    if single:
        groups.append(group_of(single, spare))
    return Batch(
        torch.tensor(tokens),
        torch.tensor(positions),
        torch.tensor(slots),
        tuple(groups),
        torch.tensor(sampled, dtype=torch.long),
    )


def group_of(works: Many[tuple[int, Work]], spare: int) -> Group:
    """Works of equal count, with their cache slots padded to the longest's segments.

    What lies behind a sequence's end is masked, but 0 times NaN is NaN: it is read from a slot that stays zero,
    so that nobody sees what another sequence left behind.
    """
    longest = max(work.start + work.count for _, work in works)
    length = -(-longest // SEGMENT) * SEGMENT
    rows, slots, positions = [], [], []
    for first, work in works:
        whole = slots_of(work.sequence.blocks, 0, work.start + work.count)
        rows.append(list(range(first, first + work.count)))
        slots.append(whole + [spare] * (length - len(whole)))
        positions.append(list(range(work.start, work.start + work.count)))
    return Group(torch.tensor(rows), torch.tensor(slots), torch.tensor(positions))


def cache_slots(slabs_most: int) -> int:
    """Slots of a cache whose pool may have so many slabs."""
    return slabs_most * SLAB_BLOCKS * BLOCK_TOKENS
