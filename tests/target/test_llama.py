"""The model: rows do not feel their neighbours, and the whole equals a plain, uncached Llama."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from target.config import EngineConfig, breaker_configs
from target.engine import RungSpec
from target.kv import BLOCK_TOKENS, KvShape
from target.models.attention import SEGMENT, Group, attend
from target.models.checkpoint import random_weights
from target.models.collective import AllReduce
from target.models.linear import Linear, linear, packed, plain
from target.models.llama import Batch, Llama
from target.models.runner import TorchRunner, cache_slots
from target.models.shape import LlamaShape
from target.plan import Plan, Route, Work
from target.request import GenerationRequest
from target.sequence import Rung, Sequence
from tests.target.engine_builders import Bench, FakeCards, decode

SHAPE = LlamaShape(64, 3, 8, 4, 16, 96, 90, 512, end_tokens=())
LIGHT = replace(SHAPE, layers=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def reference(shape: LlamaShape, weights: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """Logits after each token: a Llama written down plainly, whole sequence at once, in fp64."""
    w = {name: weight.double() for name, weight in weights.items()}
    n, d, share = len(tokens), shape.head_dim, shape.heads // shape.kv_heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + shape.norm_epsilon).sqrt() * w[name]

    def rotate(x: Tensor) -> Tensor:  # [n, heads, d]
        turns = torch.arange(n).double()[:, None] / shape.rope_theta ** (torch.arange(0, d, 2).double() / d)
        cosine, sine = turns.cos()[:, None], turns.sin()[:, None]
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    x = w["model.embed_tokens.weight"][tokens]
    ahead = torch.ones(n, n).triu(1).bool()
    for layer in range(shape.layers):
        p = f"model.layers.{layer}."
        h = norm(x, f"{p}input_layernorm.weight")
        q = rotate((h @ w[f"{p}self_attn.q_proj.weight"].T).view(n, shape.heads, d))
        k = rotate((h @ w[f"{p}self_attn.k_proj.weight"].T).view(n, shape.kv_heads, d))
        v = (h @ w[f"{p}self_attn.v_proj.weight"].T).view(n, shape.kv_heads, d)
        heads = []
        for head in range(shape.heads):
            scores = q[:, head] @ k[:, head // share].T / d**0.5
            heads.append(scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v[:, head // share])
        x = x + torch.cat(heads, -1) @ w[f"{p}self_attn.o_proj.weight"].T
        h = norm(x, f"{p}post_attention_layernorm.weight")
        gate, up = h @ w[f"{p}mlp.gate_proj.weight"].T, h @ w[f"{p}mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[f"{p}mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


def add_up(parts: object) -> Tensor:
    total, *rest = list(parts)  # type: ignore[call-overload]
    for part in rest:
        total = total + part
    return total  # type: ignore[no-any-return]


def forward(model: Llama, tokens: list[int], blocks: list[int], chunks: list[int]) -> Tensor:
    """Logits after each token, computed in chunks of these lengths over these blocks."""
    rows, start = [], 0
    for count in chunks:
        end = start + count
        table = [b * BLOCK_TOKENS + o for b in blocks for o in range(BLOCK_TOKENS)][:end]
        padding = [model.spare] * (-end % SEGMENT)
        span = list(range(start, end))
        group = Group(torch.arange(count)[None], torch.tensor([table + padding]), torch.tensor([span]))
        batch = Batch(
            torch.tensor(tokens[start:end]),
            torch.tensor(span),
            torch.tensor(table[start:end]),
            (group,),
            torch.arange(count),
        )
        rows.append(model.forward(batch, add_up))
        start = end
    return torch.cat(rows)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=count)


# --- linear layers


@pytest.mark.parametrize("make", [plain, packed], ids=["plain", "packed"])
@pytest.mark.parametrize(("columns", "width"), [(64, 96), (512, 1536), (176, 512), (64, 90)], ids=str)
def test_a_linear_layers_rows_do_not_feel_their_neighbours(make: object, columns: int, width: int) -> None:
    assert callable(make)
    torch.manual_seed(0)
    apply: Linear = make(torch.randn(width, columns))
    x = torch.randn(96, columns)
    alone = torch.cat([apply(row[None]) for row in x])
    for rows in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 48, 64, 95, 96):
        assert torch.equal(apply(x[:rows]), alone[:rows]), f"{rows} rows"
    shuffled = torch.randperm(96)
    assert torch.equal(apply(x[shuffled].contiguous()), alone[shuffled])


@pytest.mark.parametrize("make", [plain, packed, linear], ids=["plain", "packed", "linear"])
def test_a_linear_layer_multiplies(make: object) -> None:
    assert callable(make)
    weight, x = torch.randn(96, 64), torch.randn(5, 64)
    assert torch.allclose(make(weight)(x), x @ weight.T, atol=1e-4)


def test_without_the_packed_operator_the_plain_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(weight: Tensor) -> Linear:
        raise AttributeError("no such operator")

    monkeypatch.setattr("target.models.linear.packed", lacking)
    weight, x = torch.randn(96, 64), torch.randn(1, 64)
    assert torch.equal(linear(weight)(x), plain(weight)(x))


# --- attention


def test_attention_of_a_row_is_the_same_bytes_in_any_batch_chunk_and_padding() -> None:
    torch.manual_seed(0)
    n, heads, kv_heads, d = 200, 8, 4, 16
    q, keys, values = torch.randn(n, heads, d), torch.randn(kv_heads, 600, d), torch.randn(kv_heads, 600, d)
    slots = torch.randperm(600)

    def rows(first: int, last: int, segments: int) -> Tensor:
        span = torch.arange(first, last)[None]
        return attend(q, keys, values, Group(span, slots[None, : segments * SEGMENT], span))[0]

    whole = rows(0, n, 2)
    for first, last in [(0, 1), (0, 2), (5, 6), (120, 140), (127, 129), (128, 200), (199, 200)]:
        least = -(-last // SEGMENT)
        for segments in range(least, 5):
            assert torch.equal(rows(first, last, segments), whole[first:last]), (first, last, segments)
    # Single rows of several sequences at once, as decodes attend.
    picked = torch.tensor([[3], [130], [77], [199]])
    together = attend(q, keys, values, Group(picked, slots[None, : 2 * SEGMENT].expand(4, -1), picked))
    assert torch.equal(together[:, 0], whole[picked[:, 0]])


# --- the whole model


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_the_model_is_a_llama(cards: int) -> None:
    weights = random_weights(SHAPE, 1)
    model = Llama(SHAPE, weights, cards=cards, slots=512)
    tokens = some_tokens(300)
    logits = forward(model, tokens, random.Random(1).sample(range(32), 19), [300])
    wanted = reference(SHAPE, weights, tokens)
    assert torch.allclose(logits.double(), wanted, atol=1e-4)
    assert torch.equal(logits.argmax(-1), wanted.argmax(-1))


def test_norm_weights_and_rope_base_are_used() -> None:
    shape = replace(SHAPE, rope_theta=500.0, norm_epsilon=1e-2)
    weights = random_weights(shape, 1)
    for name in weights:
        if "norm" in name:
            weights[name] = torch.rand_like(weights[name]) + 0.5
    tokens = some_tokens(40)
    logits = forward(Llama(shape, weights, cards=1, slots=64), tokens, [2, 0, 3], [40])
    assert torch.allclose(logits.double(), reference(shape, weights, tokens), atol=1e-4)


def test_one_kv_head_can_be_replicated_over_four_cards() -> None:
    shape = replace(SHAPE, kv_heads=1)
    weights = random_weights(shape, 2)
    tokens = some_tokens(40)
    logits = forward(Llama(shape, weights, cards=4, slots=64), tokens, [2, 0, 3], [40])
    assert torch.allclose(logits.double(), reference(shape, weights, tokens), atol=1e-4)


@pytest.mark.parametrize(
    "chunks", [[1] * 150, [64, 64, 22], [7] * 21 + [3], [128, 22], [149, 1]], ids=lambda c: f"{len(c)}x{c[0]}"
)
def test_chunks_do_not_change_a_byte(chunks: list[int]) -> None:
    weights = random_weights(SHAPE, 1)
    tokens = some_tokens(150)
    whole = forward(Llama(SHAPE, weights, cards=4, slots=512), tokens, list(range(10)), [150])
    blocks = random.Random(5).sample(range(32), 10)
    assert torch.equal(forward(Llama(SHAPE, weights, cards=4, slots=512), tokens, blocks, chunks), whole)


# --- the sums over cards


class Ears:
    """What the collective asks and tells."""

    def __init__(self, route: Route) -> None:
        self.way = route
        self.heard = 0

    def route(self) -> Route:
        return self.way

    def saw_exchange(self, readings: object) -> None:
        self.heard += 1

    def begin_copy(self) -> int | None:
        return None

    def saw_copy(self, readings: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_route_does_not_change_a_byte_of_the_sum(ranks: int) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(50, 64) * 10**n for n in range(ranks)]
    device = FakeCards(cards=ranks)
    ring = tuple(random.Random(3).sample(range(ranks), ranks))
    sums = [AllReduce(device)(parts, Ears(route)) for route in (Route(), Route(ring))]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], add_up(parts))


def test_one_card_exchanges_nothing() -> None:
    ears = Ears(Route())
    part = torch.randn(3, 4)
    assert AllReduce(FakeCards(cards=1))([part], ears) is part
    assert ears.heard == 0


# --- the runner behind the engine


class TorchBench(Bench):
    """The engine's bench with real models on two cards."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        slabs: int = 2,
        poison: int | None = None,
        **settings: object,
    ) -> None:
        device = FakeCards(cards=2)
        shapes: dict[Rung, LlamaShape] = {"full": SHAPE, "light": LIGHT}
        self.weights = {rung: random_weights(shape, 3) for rung, shape in shapes.items()}
        if poison is not None:
            self.weights["full"]["model.embed_tokens.weight"][poison] = float("nan")
        rungs: dict[Rung, RungSpec] = {
            rung: RungSpec(rung, KvShape(shape.kv_bytes_per_token(2) * BLOCK_TOKENS, 1, slabs), 256)
            for rung, shape in shapes.items()
        }
        super().__init__(config, device, rungs, **settings)  # type: ignore[arg-type]
        self.models = {
            rung: Llama(shape, self.weights[rung], cards=2, slots=cache_slots(slabs))
            for rung, shape in shapes.items()
        }
        self.runner = TorchRunner(self.models, device)  # type: ignore[assignment]

    def take_inventory(self) -> None:
        for pool in self.engine.pools.values():
            pool.check_integrity()

    @property
    def host(self) -> dict[str, object]:
        return self.runner._host  # type: ignore[attr-defined, no-any-return]


def alone(request: GenerationRequest, *, model: str | None = None, **settings: object) -> list[int]:
    """The same request's tokens with nobody else there."""
    bench = TorchBench(**settings)  # type: ignore[arg-type]
    bench.submit(replace(request, model=model))
    bench.run()
    return bench.tokens(request.id)


def requests(count: int = 8) -> list[GenerationRequest]:
    lengths = [1, 17, 64, 90, 5, 33, 130, 40]
    return [GenerationRequest(f"r{n}", tuple(some_tokens(lengths[n], n)), 30) for n in range(count)]


def test_greedy_tokens_are_the_plain_uncached_models() -> None:
    request = requests()[3]
    got = alone(request)
    weights = random_weights(SHAPE, 3)
    tokens = list(request.prompt_ids)
    for _ in range(30):
        tokens.append(int(reference(SHAPE, weights, tokens)[-1].argmax()))
    assert got == tokens[90:]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_batched_chunked_and_preempted_is_alone_to_the_last_token(preemption: str) -> None:
    config = EngineConfig(preemption=preemption, chunk_tokens=24, step_tokens=40)  # type: ignore[arg-type]
    bench = TorchBench(config)
    bench.submit(*requests())
    bench.run()
    assert bench.engine.counts.preemptions
    for request in requests():
        assert bench.tokens(request.id) == alone(request), request.id
    assert not bench.host
    assert bench.engine.close() == 0


def test_staged_kv_is_the_same_kv() -> None:
    config = EngineConfig(breakers=breaker_configs(1.0), chunk_tokens=24, step_tokens=40)
    bench = TorchBench(config)
    bench.device.copy_looks = 3
    bench.force("pcie")
    bench.submit(*requests())
    while not bench.engine.counts.preemptions:
        bench.step()
    assert bench.engine.counts.staged_bytes
    assert not bench.device.copies
    bench.now += 31  # the breaker lets it be tried again
    bench.run()
    assert bench.engine.counts.swap_in_bytes
    for request in requests():
        assert bench.tokens(request.id) == alone(request), request.id
    assert not bench.host
    assert bench.engine.close() == 0


def test_kv_that_comes_back_only_in_part_is_completed_by_computing_the_rest() -> None:
    bench = TorchBench(EngineConfig(chunk_tokens=24, step_tokens=40))
    bench.device.healths = {"pcie:0:h2d": 0.1}
    bench.submit(*requests())
    bench.run()
    back = [nbytes for direction, nbytes in bench.device.copies if direction == "h2d"]
    assert bench.engine.counts.swap_in_bytes == sum(back) > 0
    assert bench.engine.counts.recomputed_tokens
    for request in requests():
        assert bench.tokens(request.id) == alone(request), request.id
    assert not bench.host


def test_sampled_answers_are_the_same_alone_and_in_a_batch_too() -> None:
    asked = [replace(r, temperature=1.0, top_p=0.9, seed=n) for n, r in enumerate(requests())]
    bench = TorchBench()
    bench.submit(*asked)
    bench.run()
    assert all(bench.tokens(r.id) == alone(r) for r in asked)
    assert bench.tokens("r1") != alone(requests()[1])


def test_a_ring_gives_the_same_text() -> None:
    bench = TorchBench()
    bench.force("nvlink")
    bench.submit(*requests(4))
    bench.run()
    assert all(bench.tokens(r.id) == alone(r) for r in requests(4))


def test_a_poisoned_request_fails_and_nobody_beside_or_after_it_notices() -> None:
    poison = 89
    good = [
        replace(r, prompt_ids=tuple(t % 80 for t in r.prompt_ids), stop=(decode([poison]),))
        for r in requests(5)
    ]
    bench = TorchBench(poison=poison)
    bench.submit(GenerationRequest("poison", (poison, *range(70)), 20, priority=-1), *good)
    bench.run()
    end = bench.end("poison")
    assert end is not None
    assert (end.reason, end.output_tokens) == ("failed", 0)
    assert end.message == "the model gave logits that are not finite"
    for request in good:
        assert bench.tokens(request.id) == alone(request, poison=poison), request.id
    bench.submit(after := replace(good[2], id="after"))  # on the blocks that the poisoned one had
    bench.run()
    assert bench.tokens("after") == alone(after, poison=poison)


def test_a_request_that_moves_to_the_light_model_leaves_nothing_of_the_full_one_in_its_host_tier() -> None:
    bench = TorchBench()
    sequence = Sequence(requests()[2], 0.0, 0, blocks=[0, 1, 2, 3])
    for rung in ("full", "light"):
        sequence.rung = rung  # type: ignore[assignment]
        work = Work(sequence, 0, 64, sample=False)
        outcome = bench.runner.execute(Plan({rung: [work]}, write_through=[work]), bench)  # type: ignore[dict-item]
        assert outcome.on_host == {"r2": 64}
    sequence.computed = 64
    swapped = Sequence(requests()[2], 0.0, 0, rung="light", computed=64, blocks=[4, 5, 6, 7])
    bench.runner.execute(Plan(swap_ins=[swapped]), bench)
    cache = bench.models["light"].cache
    assert torch.equal(cache[:, :, :, 64:128], cache[:, :, :, :64])
    assert cache[:, :, :, :64].any()


def test_a_copy_that_arrives_for_a_request_that_ended_is_not_kept() -> None:
    bench = TorchBench(EngineConfig(breakers=breaker_configs(1.0)))
    bench.device.copy_looks = 2
    bench.force("pcie")
    bench.submit(replace(requests()[2], max_tokens=2))
    bench.run()
    assert bench.device.staged
    assert not bench.host


def test_a_copy_that_had_arrived_in_a_step_that_died_is_taken_in_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = TorchBench(EngineConfig(breakers=breaker_configs(1.0)))
    bench.force("pcie")
    bench.submit(replace(requests()[2], id="dies"))
    bench.step(3)
    assert bench.engine.is_copying
    with monkeypatch.context() as patch:

        def dies(*_: object) -> Tensor:
            raise RuntimeError("device lost")

        patch.setattr(bench.models["full"], "forward", dies)
        bench.step()
    assert bench.reason("dies") == "failed"
    bench.run()
    assert bench.engine.pools["full"].held == 0
    assert not bench.host


def test_the_light_model_by_name_is_another_model() -> None:
    request = requests()[1]
    assert alone(request, model="light") != alone(request)
    bench = TorchBench()
    bench.submit(replace(request, model="light"), replace(request, id="full"))
    bench.run()
    assert bench.tokens("r1") == alone(request, model="light")
    assert bench.tokens("full") == alone(request)


def test_an_empty_step_computes_nothing() -> None:
    bench = TorchBench()
    outcome = bench.runner.execute(Plan(), bench)
    assert (outcome.tokens, outcome.staged) == ({}, [])


def test_a_chunk_that_does_not_reach_the_end_samples_nothing() -> None:
    bench = TorchBench()
    sequence = Sequence(requests()[3], 0.0, 0, rung="full", blocks=[0, 1, 2, 3])
    outcome = bench.runner.execute(Plan({"full": [Work(sequence, 0, 64, sample=False)]}), bench)
    assert outcome.tokens == {}
