"""The next token from a row of logits."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from target.models.sampling import sample
from target.request import GenerationRequest

LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 1.9])


def a_request(name: str = "r", **settings: object) -> GenerationRequest:
    return GenerationRequest(name, (1,), 8, **settings)  # type: ignore[arg-type]


def draws(count: int = 2000, **settings: object) -> Counter[int]:
    return Counter(sample(LOGITS, a_request(seed=3, **settings), n) for n in range(count))


def test_at_temperature_zero_the_most_likely_token_is_taken_whatever_the_seed() -> None:
    assert {sample(LOGITS, a_request(temperature=0.0, seed=seed), 0) for seed in range(50)} == {1}


def test_the_same_seed_and_index_draw_the_same_token() -> None:
    one, two = (
        [sample(LOGITS, a_request(name, temperature=1.0, seed=11), n) for n in range(50)]
        for name in ("a", "b")
    )
    assert one == two
    assert len(set(one)) > 1
    assert one != [sample(LOGITS, a_request(temperature=1.0, seed=12), n) for n in range(50)]


def test_without_a_seed_the_engines_id_is_the_seed() -> None:
    def row(name: str) -> list[int]:
        return [sample(LOGITS, a_request(name, temperature=1.0), n) for n in range(50)]

    assert row("cmpl-0123456789a") == row("cmpl-0123456789a")
    assert row("cmpl-0123456789a") != row("cmpl-0123456789b")


def test_seeds_that_differ_in_their_upper_bits_only_are_different_seeds() -> None:
    rows = {
        seed: tuple(sample(LOGITS, a_request(temperature=1.0, seed=seed), n) for n in range(50))
        for seed in (1, 1 + 2**32, 1 + 2**40)
    }
    assert len(set(rows.values())) == 3


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    shares = LOGITS.softmax(-1)
    drawn = draws(4000, temperature=1.0)
    for token, share in enumerate(shares.tolist()):
        assert drawn[token] / 4000 == pytest.approx(share, abs=0.03)


def test_top_p_keeps_the_fewest_tokens_that_make_up_so_much() -> None:
    assert LOGITS.softmax(-1).sort(descending=True).values.cumsum(-1).tolist() == pytest.approx(
        [0.407, 0.775, 0.925, 0.980, 1.0], abs=0.001
    )
    assert set(draws(500, temperature=1.0, top_p=0.7)) == {1, 4}
    assert set(draws(500, temperature=1.0, top_p=0.8)) == {1, 4, 2}
    assert set(draws(500, temperature=1.0, top_p=0.01)) == {1}


def test_a_low_temperature_sharpens() -> None:
    assert draws(1000, temperature=0.3)[1] > draws(1000, temperature=1.0)[1]


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-40, 5e-324])
def test_a_tiny_temperature_is_greedy_and_breaks_nothing(temperature: float) -> None:
    assert sample(torch.tensor([1e5, 3e38, -3e38]), a_request(temperature=temperature, seed=1), 0) == 1


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
def test_any_seed_that_the_api_lets_in_works(seed: int) -> None:
    assert sample(LOGITS, a_request(temperature=1.0, seed=seed), 10**6) in range(5)
