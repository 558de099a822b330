"""A fault acts where its physics is: what it slows, what it leaves alone, and how an engine feels it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.gpu.cost import collective, gemm
from faults.gpu.cost.condition import HEALTHY, Condition, RankCondition
from faults.gpu.cost.copies import host_copy_s
from faults.gpu.cost.fit import H100_FIT
from faults.gpu.cost.gemm_table import MILLISECONDS, TOKENS, measured_layer_s
from faults.gpu.cost.hardware import CARDS, H100, L40S, card
from faults.gpu.cost.model_shape import FP8, llama_2_70b, llama_3_3_70b, llama_3_8b
from faults.gpu.cost.serving import Limits, Request, Serving, closed_loop, open_loop
from faults.gpu.cost.step import Node, Prefill, StepWork

EIGHT = Node(llama_2_70b(), 8, host_s=2e-3)
TWO = Node(llama_3_3_70b(FP8, FP8), 2, host_s=2e-3)
LONE_DECODE = StepWork(decodes=1, context=1000)
DECODES = StepWork(decodes=64, context=64 * 1024)
PREFILL = StepWork(decodes=0, context=0, prefills=(Prefill(4096, 4096),))

fractions = st.floats(0.05, 1.0)
conditions = st.builds(
    Condition,
    ranks=st.lists(st.builds(RankCondition, fractions, fractions), max_size=8).map(tuple),
    nvlink=fractions,
    nvlinks_lost=st.integers(0, 18),
    pcie=fractions,
)


def slower(node: Node, work: StepWork, condition: Condition) -> float:
    """The step's time as a multiple of the healthy one."""
    return node.step_s(work, condition) / node.step_s(work)


def test_a_slow_sm_clock_is_felt_by_prefills_and_hardly_by_a_lone_decode() -> None:
    hot = Condition(ranks=(RankCondition(sm_clock=0.5),))

    assert slower(TWO, PREFILL, hot) > 1.6
    assert slower(TWO, LONE_DECODE, hot) < 1.01


def test_a_slow_memory_clock_is_felt_by_decodes_more_than_by_prefills() -> None:
    slow = Condition(ranks=(RankCondition(memory_clock=0.5),))

    assert slower(TWO, LONE_DECODE, slow) > 1.5
    assert slower(TWO, PREFILL, slow) < 1.2


def test_one_slow_rank_slows_the_group_as_much_as_all_of_them() -> None:
    slow = RankCondition(memory_clock=0.5)

    assert EIGHT.step_s(DECODES, Condition(ranks=(slow,))) == EIGHT.step_s(
        DECODES, Condition(ranks=(slow,) * 8)
    )


def test_a_tenth_of_nvlink_is_felt_by_a_prefill_and_hardly_by_a_lone_decode() -> None:
    narrow = Condition(nvlink=0.1)

    assert slower(EIGHT, PREFILL, narrow) > 2
    assert slower(EIGHT, LONE_DECODE, narrow) < 1.03


def test_without_nvlink_all_reduces_go_over_pcie_and_share_it() -> None:
    cut = Condition(nvlinks_lost=18)

    assert slower(EIGHT, DECODES, cut) > 1.3
    assert EIGHT.step_s(DECODES, replace(cut, pcie=0.5)) > EIGHT.step_s(DECODES, cut)


def test_half_of_the_links_lost_is_half_of_the_bandwidth() -> None:
    assert EIGHT.step_s(DECODES, Condition(nvlinks_lost=9)) == EIGHT.step_s(DECODES, Condition(nvlink=0.5))


def test_pcie_is_felt_by_copies_alone_while_there_is_nvlink() -> None:
    shared = Condition(pcie=0.1)
    copying = replace(DECODES, copied_bytes=55e6)

    assert slower(EIGHT, DECODES, shared) == 1
    assert EIGHT.step_s(copying, shared) - EIGHT.step_s(DECODES) == pytest.approx(10e-3, rel=0.01)
    assert host_copy_s(55e9, H100, H100_FIT) == pytest.approx(1.0, rel=0.01)


def test_a_card_without_nvlink_reduces_over_pcie_when_healthy() -> None:
    nbytes = 2**20

    assert collective.link_fraction(L40S, HEALTHY) == 0
    assert collective.custom_all_reduce_s(nbytes, 4, L40S, H100_FIT) > 4 * collective.custom_all_reduce_s(
        nbytes, 4, H100, H100_FIT
    )


@given(conditions, st.sampled_from([LONE_DECODE, DECODES, PREFILL]))
def test_no_fault_makes_a_step_faster(condition: Condition, work: StepWork) -> None:
    assert slower(EIGHT, work, condition) >= 1 - 1e-9


@pytest.mark.parametrize("degree", MILLISECONDS)
def test_a_measured_product_is_given_back_as_measured(degree: int) -> None:
    for tokens, milliseconds in zip(TOKENS, MILLISECONDS[degree], strict=True):
        assert measured_layer_s(degree, tokens) == pytest.approx(milliseconds / 1000)
        assert gemm.layer_s(llama_2_70b(), degree, tokens, H100, H100_FIT) == pytest.approx(
            milliseconds / 1000
        )


def test_the_formula_is_as_far_from_the_table_as_the_page_says() -> None:
    errors = [
        gemm.formula_layer_s(llama_2_70b(), degree, tokens, H100, H100_FIT) * 1000 / milliseconds - 1
        for degree, times in MILLISECONDS.items()
        for tokens, milliseconds in zip(TOKENS, times, strict=True)
    ]

    assert min(errors) == pytest.approx(-0.45, abs=0.01)
    assert max(errors) < 0.05


def test_only_the_h100_was_fitted() -> None:
    assert [name for name, each in CARDS.items() if each.fitted] == ["h100-sxm-80"]


def test_an_unknown_card_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(ValueError, match="h100-sxm-80"):
        card("h100")


def test_a_degree_that_nothing_is_known_of_is_refused() -> None:
    with pytest.raises(ValueError, match="3 cards"):
        Node(llama_3_8b(), 3, host_s=0.0)


@pytest.mark.parametrize("condition", [{"nvlink": 0.0}, {"pcie": 1.5}, {"nvlinks_lost": -1}])
def test_a_condition_outside_of_physics_is_refused(condition: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"cannot lose|a fraction"):
        Condition(**condition)  # type: ignore[arg-type]


def test_a_llama_of_70b_has_the_weights_and_the_cache_that_are_published() -> None:
    assert llama_2_70b().layer_weights == pytest.approx(855.6e6, rel=1e-3)
    assert llama_2_70b().kv_bytes_per_token == 320 * 1024
    assert llama_2_70b().bytes_of_weights == pytest.approx(2 * 69e9, rel=0.01)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 900), st.integers(2, 40)), min_size=1, max_size=25))
def test_every_request_is_served_and_the_cache_is_never_overdrawn(
    story: list[tuple[float, int, int]],
) -> None:
    limits = Limits(kv_tokens=1500, step_tokens=256, running=4)
    serving = Serving(TWO, limits)
    requests = [Request(at, prompt, answer) for at, prompt, answer in sorted(story)]
    done: list[Request] = []
    serving.waiting.extend(requests)
    while not serving.is_idle:
        done += serving.step()
        assert 0 <= serving.reserved <= limits.kv_tokens
        assert serving.decoding + len(serving.prefilling) == serving.running <= limits.running

    assert len(done) == len(requests)
    assert serving.made == sum(request.answer for request in requests)
    assert serving.context == serving.reserved == serving.running == serving.decoding == 0


def test_a_request_that_can_never_fit_is_refused_and_does_not_hang() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        open_loop(Serving(TWO, Limits(kv_tokens=100)), [Request(0.0, 90, 20)])


def test_a_request_alone_is_not_served_before_it_comes() -> None:
    done = open_loop(Serving(TWO, Limits(kv_tokens=1000)), [Request(7.0, 90, 20)])

    assert done[0].first_s > 7.0
    assert done[0].ttft_s < 0.1


def test_throttled_cards_serve_less_and_answer_later() -> None:
    def measured(condition: Condition) -> tuple[float, float]:
        serving = Serving(TWO, Limits(kv_tokens=20_000), condition)
        result = closed_loop(serving, 8, 1000, 50, warm_up=16, counted=40)
        return result.tokens_per_s, result.ttft_s

    healthy, hot = measured(HEALTHY), measured(Condition(ranks=(RankCondition(sm_clock=0.5),)))

    assert hot[0] < 0.8 * healthy[0]
    assert hot[1] > 1.2 * healthy[1]
