"""SLOs over hand-made histories: what counts as bad, relative bounds, and metrics without data."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import Event, History
from harness.slo import checks
from harness.verdict import Finding
from tests.builders import (
    a_drill,
    a_history,
    a_lost_request,
    a_request,
    a_step,
    an_slo,
    edges,
    requests,
    sample,
)

NVLINK = a_step("nvlink", fault={"kind": "nvlink_degrade", "links": ["0-1"], "percent": 30})


def found(history: History, slo: dict[str, Any], **drill: Any) -> Finding:
    declared = a_drill(slos=[slo], **drill)
    (check,) = checks(declared, declared.slos)
    return check.look(history)


def in_fault(bad: int, *, of: int = 100, make: Any = a_request, **fields: Any) -> list[Event]:
    """A clean baseline and `of` requests while the fault is on, of which the first `bad` are as told."""
    told = [make(100 + i, due=10.5 + i * 0.05, **fields) for i in range(bad)]
    return [*requests(100), *told, *(a_request(100 + i, due=10.5 + i * 0.05) for i in range(bad, of))]


def test_a_latency_bound_holds_when_surely_few_enough_requests_are_over_it() -> None:
    finding = found(a_history(requests=in_fault(3, ttft_ms=900)), an_slo(quantile=0.9, max=500))
    assert finding.outcome == "HELD"
    assert finding.id == "slo.fault.vram.ttft_ms.p90"
    assert finding.measured == "p90 100 ms; 3 of 100 requests over 500 ms"
    assert finding.asked == "≤ 500 ms"
    assert (finding.phase, finding.step, finding.confidence) == ("fault", "vram", 0.95)
    assert finding.numbers["upper"] == pytest.approx(0.0757, abs=1e-4)


def test_a_latency_bound_is_broken_when_surely_too_many_are_over_it() -> None:
    finding = found(a_history(requests=in_fault(20, ttft_ms=900)), an_slo(quantile=0.9, max=500))
    assert finding.outcome == "BROKEN"
    assert finding.measured == "p90 900 ms; 20 of 100 requests over 500 ms"
    assert finding.reason == "surely at least 13.7% of requests are bad; 10.0% may be"


def test_close_to_the_bound_it_is_inconclusive_and_says_how_many_more_are_needed() -> None:
    finding = found(a_history(requests=in_fault(8, ttft_ms=900)), an_slo(quantile=0.9, max=500))
    assert finding.outcome == "INCONCLUSIVE"
    assert "more requests at this rate would settle it" in finding.reason
    assert finding.numbers["more_needed"] > 100
    assert finding.confidence is None


@pytest.mark.parametrize("outcome", ["failed", "rejected", "timeout"])
@pytest.mark.parametrize("metric", ["ttft_ms", "e2e_ms"])
def test_an_outage_that_fails_at_once_does_not_look_fast(metric: str, outcome: str) -> None:
    lost = in_fault(100, make=a_lost_request, outcome=outcome, waited_s=0.001)
    finding = found(a_history(requests=lost), an_slo(metric, quantile=0.9, max=500))
    assert finding.outcome == "BROKEN"
    assert finding.measured == "p90 never; 100 of 100 requests over 500 ms"


def test_an_answer_that_broke_off_after_its_first_token_has_a_ttft_but_no_end() -> None:
    broke_off = in_fault(100, outcome="failed")
    assert found(a_history(requests=broke_off), an_slo("ttft_ms", quantile=0.9, max=500)).outcome == "HELD"
    assert found(a_history(requests=broke_off), an_slo("e2e_ms", quantile=0.9, max=500)).outcome == "BROKEN"


def test_a_request_that_our_client_cancelled_counts_only_if_the_bound_had_passed() -> None:
    early = in_fault(50, make=a_lost_request, outcome="cancelled", waited_s=0.2)
    late = in_fault(50, make=a_lost_request, outcome="cancelled", waited_s=0.9)
    assert found(a_history(requests=early), an_slo(quantile=0.9, max=500)).numbers["of"] == 50
    assert found(a_history(requests=late), an_slo(quantile=0.9, max=500)).outcome == "BROKEN"


def test_a_request_belongs_to_the_window_in_which_it_was_due() -> None:
    """Due in the fault, answered long after it: the fault's victim."""
    stalled = in_fault(30, ttft_ms=15_000)
    assert found(a_history(requests=stalled), an_slo(quantile=0.9, max=500)).outcome == "BROKEN"
    recovery = an_slo(phase="recovery", quantile=0.9, max=500)
    assert found(a_history(requests=stalled), recovery).outcome == "VACUOUS"


def test_an_answer_under_way_that_the_fault_broke_is_the_faults_victim_and_no_unsteady_baseline() -> None:
    """But a time-out is none, nor is what failed before the fault had taken effect."""
    under_way = [
        a_lost_request(n, due=9.8, waited_s=1.0 + n / 100, outcome=outcome)
        for n, outcome in enumerate(["failed"] * 40 + ["timeout"] * 20)
    ]
    before = [a_lost_request(n, due=8.0, waited_s=0.5) for n in range(60, 65)]
    history = a_history(requests=[*requests(), *under_way, *before])
    bad = {
        phase: found(history, an_slo("error_ratio", phase=phase, max=0.01)).numbers["bad"]
        for phase in ("baseline", "fault", "recovery")
    }
    assert bad == {"baseline": 25, "fault": 40, "recovery": 0}


def test_an_answer_that_a_later_fault_broke_is_the_later_ones_victim() -> None:
    late = [a_lost_request(n, due=12.0, waited_s=20.5 + n / 100) for n in range(30)]
    history = a_history(requests=[*requests(), *late], faults=[*edges(), *edges("again", later=21.5)])
    drill = {"timeline": [a_step(), a_step("again", at_s=31.5)]}
    bad = {
        step: found(history, an_slo("error_ratio", max=0.01, step=step), **drill).numbers["bad"]
        for step in ("vram", "again")
    }
    assert bad == {"vram": 0, "again": 30}


def test_time_per_token_is_that_of_answers_with_four_tokens_and_up() -> None:
    short = in_fault(40, tokens_t=[11.0, 19.0, 20.0])
    finding = found(a_history(requests=short), an_slo("tpot_ms", quantile=0.9, max=25))
    assert (finding.outcome, finding.numbers["of"]) == ("HELD", 60)
    assert finding.measured == "p90 20 ms; 0 of 60 requests over 25 ms"


def test_a_relative_bound_says_the_baseline_and_the_bound_it_gives() -> None:
    slower = in_fault(100, ttft_ms=290)
    finding = found(a_history(requests=slower), an_slo(quantile=0.9, max_ratio=1.5, slack=50))
    assert finding.outcome == "BROKEN"
    assert finding.asked == "≤ 1.5 × baseline + 50 ms"
    assert finding.measured.endswith("over 200 ms; bound 1.5 × the baseline's 100 ms + 50 ms = 200 ms")


def test_a_baseline_without_answers_bounds_nothing() -> None:
    """An infinite baseline would let everything pass."""
    down = requests(100, make=a_lost_request) + in_fault(0)[100:]
    finding = found(a_history(requests=down), an_slo(quantile=0.9, max_ratio=1.5))
    assert finding.outcome == "INCONCLUSIVE"
    assert finding.reason == "the baseline has no ttft_ms to compare with"


def test_after_s_leaves_out_the_first_seconds_of_the_phase() -> None:
    slow_at_first = [*requests(210), *requests(20, start=21, ttft_ms=900), *requests(170, start=23)]
    history = a_history(requests=slow_at_first)
    recovery = an_slo(phase="recovery", quantile=0.95, max=500)
    assert found(history, recovery).outcome == "BROKEN"
    assert found(history, recovery | {"after_s": 2}).outcome == "HELD"
    assert found(history, recovery | {"after_s": 50}).reason == "the phase was over before 50 s had passed"


def test_the_time_to_recover_is_told_as_the_earliest_moment_shown_to_hold() -> None:
    slow_at_first = [*requests(210), *requests(40, start=21, ttft_ms=900), *requests(150, start=25)]
    finding = found(
        a_history(requests=slow_at_first), an_slo(phase="recovery", quantile=0.9, max=500, after_s=6)
    )
    assert finding.outcome == "HELD"
    assert finding.numbers["recovered_s"] == 4.0


@pytest.mark.parametrize(
    ("metric", "fields", "bad"),
    [
        ("error_ratio", {"make": a_lost_request, "outcome": "failed"}, 30),
        ("error_ratio", {"make": a_lost_request, "outcome": "rejected"}, 30),
        ("error_ratio", {"make": a_lost_request, "outcome": "cancelled"}, 0),
        ("error_ratio", {"outcome": "length"}, 0),
        ("shed_ratio", {"make": a_lost_request, "outcome": "rejected"}, 30),
        ("shed_ratio", {"make": a_lost_request, "outcome": "failed"}, 0),
        ("downgraded_ratio", {"rung": "int4"}, 30),
        ("downgraded_ratio", {"make": a_lost_request, "outcome": "failed"}, 0),
    ],
)
def test_which_requests_a_share_counts(metric: str, fields: dict[str, Any], bad: int) -> None:
    finding = found(a_history(requests=in_fault(30, **fields)), an_slo(metric, max=0.1))
    assert finding.numbers["bad"] == bad
    assert finding.outcome == ("BROKEN" if bad else "HELD")


def test_a_least_share_is_held_by_the_complement() -> None:
    finding = found(a_history(requests=in_fault(80, rung="int4")), an_slo("downgraded_ratio", min=0.7))
    assert (finding.numbers["bad"], finding.numbers["allowed"]) == (20, pytest.approx(0.3))
    assert (finding.outcome, finding.measured) == ("HELD", "80 % (80 of 100 requests)")
    assert finding.asked == "≥ 70 %"


def test_an_slo_without_a_step_is_judged_at_every_step() -> None:
    drill = a_drill(timeline=[a_step("one"), a_step("two", at_s=30)], slos=[an_slo(quantile=0.9, max=500)])
    assert [check.claim.id for check in checks(drill, drill.slos)] == [
        "slo.fault.one.ttft_ms.p90",
        "slo.fault.two.ttft_ms.p90",
    ]


def test_two_bounds_on_one_metric_have_different_ids() -> None:
    drill = a_drill(slos=[an_slo("error_ratio", max=0.1), an_slo("error_ratio", min=0.01)])
    ids = [check.claim.id for check in checks(drill, drill.slos)]
    assert ids == ["slo.fault.vram.error_ratio", "slo.fault.vram.error_ratio.min"]


def dma(fault_bytes: float, baseline_bytes: float = 100_000) -> list[Event]:
    """1000 tokens of 100 bytes each in the baseline, and again while the fault is on."""
    counts = [(1, 0, 0), (9, 1000, baseline_bytes), (11, 1000, 200_000), (20, 2000, 200_000 + fault_bytes)]
    return [
        sample(t, computed_tokens=tokens, direct_dma_bytes=sent, kv_bytes_per_token=100)
        for t, tokens, sent in counts
    ]


def test_direct_dma_is_compared_with_what_the_computed_tokens_have() -> None:
    finding = found(a_history(samples=dma(5_000)), an_slo("direct_dma_ratio", max=0.1))
    assert (finding.outcome, finding.measured, finding.confidence) == ("HELD", "5 %", None)
    broken = found(a_history(samples=dma(90_000)), an_slo("direct_dma_ratio", max=0.1))
    assert (broken.outcome, broken.measured, broken.reason) == ("BROKEN", "90 %", "above 10 %")


def test_direct_dma_goes_by_the_kv_bytes_that_the_service_counts_if_it_does() -> None:
    """Rungs differ in the size of a token's KV, so the service's own count is better."""
    counted = [sample(t, computed_kv_bytes=40.0 * t, direct_dma_bytes=10.0 * t) for t in (11, 20)]
    assert found(a_history(samples=counted), an_slo("direct_dma_ratio", max=0.3)).measured == "25 %"


def test_direct_dma_before_the_fault_is_not_held_against_it() -> None:
    """100 kB were sent between the baseline's last sample and the fault's first."""
    finding = found(a_history(samples=dma(0)), an_slo("direct_dma_ratio", max=0.1))
    assert finding.numbers["part"] == 0


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "the service's samples lack direct_dma_bytes, computed_tokens, kv_bytes_per_token"),
        (
            [sample(t, computed_tokens=5, direct_dma_bytes=9, kv_bytes_per_token=1) for t in (11, 20)],
            "no token was computed in the window",
        ),
        (
            [sample(t, computed_tokens=9 - t, direct_dma_bytes=9, kv_bytes_per_token=1) for t in (11, 20)],
            "the service's samples lack computed_tokens",
        ),
    ],
    ids=["no-samples", "no-traffic", "counter-fell"],
)
def test_direct_dma_without_data_says_what_it_lacks(samples: list[Event], reason: str) -> None:
    finding = found(a_history(samples=samples), an_slo("direct_dma_ratio", max=0.1))
    assert (finding.outcome, finding.reason) == ("VACUOUS", f"no data for direct_dma_ratio: {reason}")


def links(weak: float, strong: float) -> list[Event]:
    """Bytes moved between 11 s and 20 s on both directions of 0-1 and of 1-2."""
    names = {
        "nvlink:0>1.bytes": weak,
        "nvlink:1>0.bytes": weak,
        "nvlink:1>2.bytes": strong,
        "nvlink:2>1.bytes": strong,
    }
    still = {"pcie:0:h2d.bytes": 7.0}
    return [sample(11, "node", **dict.fromkeys(names, 0.0), **still), sample(20, "node", **names, **still)]


def test_the_weak_links_share_is_of_the_bytes_on_all_nvlinks() -> None:
    history = a_history(samples=links(weak=1, strong=9), faults=edges("nvlink"))
    held = found(history, an_slo("weak_link_share", max=0.2), timeline=[NVLINK])
    assert (held.outcome, held.measured) == ("HELD", "10 %")
    broken = found(history, an_slo("weak_link_share", max=0.05), timeline=[NVLINK])
    assert (broken.outcome, broken.reason) == ("BROKEN", "above 5 %")


@pytest.mark.parametrize(
    ("samples", "timeline", "reason"),
    [
        (links(0, 0), [NVLINK], "nothing moved on any NVLink in the window"),
        (links(1, 1), [a_step("nvlink")], "the step degrades no NVLink"),
        ([], [NVLINK], "the node's samples lack nvlink:0>1.bytes, nvlink:1>0.bytes"),
    ],
    ids=["no-traffic", "no-weak-link", "no-samples"],
)
def test_the_weak_links_share_without_data_says_why(
    samples: list[Event], timeline: list[Any], reason: str
) -> None:
    history = a_history(samples=samples, faults=edges("nvlink"))
    finding = found(history, an_slo("weak_link_share", max=0.2), timeline=timeline)
    assert (finding.outcome, finding.reason) == ("VACUOUS", f"no data for weak_link_share: {reason}")


def steps(*at: tuple[float, dict[int, int]], throttled: float = 5.0) -> list[Event]:
    """Samples of how many steps computed so many sequences; `throttled` grows between the first and the last."""
    last = at[-1][0]
    return [
        sample(
            t,
            throttled_steps=throttled if t == last else 0.0,
            **{f"batch_steps.{n}": c for n, c in by.items()},
        )
        for t, by in at
    ]


FOUR = an_slo("running_most", max=4)


def test_the_most_sequences_computed_together_are_those_whose_steps_were_counted() -> None:
    """Sixteen were computed together before, and nine in one step between two samples."""
    before = {1: 50, 4: 10, 16: 7}
    held = found(a_history(samples=steps((11, before), (20, before | {4: 30}))), FOUR)
    assert (held.outcome, held.numbers["value"]) == ("HELD", 4)
    broken = found(a_history(samples=steps((11, before), (20, before | {9: 1, 4: 30}))), FOUR)
    assert (broken.outcome, broken.numbers["value"]) == ("BROKEN", 9)


def test_a_limit_that_never_held_anything_back_shows_nothing() -> None:
    idle = steps((11, {1: 50}), (20, {1: 70}), throttled=0.0)
    finding = found(a_history(samples=idle), FOUR)
    assert (finding.outcome, finding.reason) == ("VACUOUS", "the lowered limit never held a request back")
    over = steps((11, {1: 50}), (20, {1: 50, 9: 3}), throttled=0.0)
    assert found(a_history(samples=over), FOUR).outcome == "BROKEN", "it is over the bound all the same"


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([sample(t, running=3) for t in (11, 20)], "the service's samples lack batch_steps"),
        (steps((11, {4: 9}), (20, {4: 9})), "nothing was computed in the window"),
    ],
    ids=["not-exported", "idle"],
)
def test_the_most_sequences_without_data_say_why(samples: list[Event], reason: str) -> None:
    finding = found(a_history(samples=samples), FOUR)
    assert (finding.outcome, finding.reason) == ("VACUOUS", f"no data for running_most: {reason}")


def staged(*, skip: tuple[float, float] = (0, 0), bytes_each: float = 40.0) -> list[Event]:
    """A sample each 0.25 s, but for those between `skip`."""
    times = [n / 4 for n in range(160)]
    return [
        sample(t, computed_kv_bytes=100.0 * t, staged_dma_bytes=bytes_each * t)
        for t in times
        if not skip[0] < t < skip[1]
    ]


def test_staged_kv_is_compared_with_what_the_computed_tokens_have() -> None:
    held = found(a_history(samples=staged()), an_slo("staged_ratio", min=0.1))
    assert (held.outcome, held.measured, held.asked) == ("HELD", "40 %", "≥ 10 %")
    broken = found(a_history(samples=staged(bytes_each=1.0)), an_slo("staged_ratio", min=0.1))
    assert (broken.outcome, broken.reason) == ("BROKEN", "below 10 %")


@pytest.mark.parametrize(
    ("skip", "told"),
    [
        ((14.0, 17.0), "from 14.0 s to 17.0 s"),
        ((9.0, 13.0), "from 10.5 s to 13.0 s"),
        ((18.0, 30.0), "from 18.0 s to 21.0 s"),
        ((5.0, 30.0), "from 10.5 s to 21.0 s"),
    ],
    ids=["in-between", "at-the-start", "at-the-end", "all"],
)
def test_a_total_over_a_gap_in_its_samples_is_inconclusive(skip: tuple[float, float], told: str) -> None:
    finding = found(a_history(samples=staged(skip=skip)), an_slo("staged_ratio", min=0.1))
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", f"samples are missing {told}")


def test_a_short_gap_is_none() -> None:
    assert (
        found(a_history(samples=staged(skip=(14.0, 15.5))), an_slo("staged_ratio", min=0.1)).outcome == "HELD"
    )


def test_a_total_compared_with_a_baseline_that_has_a_gap_is_inconclusive() -> None:
    slo = an_slo("staged_ratio", max_ratio=2.0)
    assert found(a_history(samples=staged(skip=(2, 6))), slo).outcome == "INCONCLUSIVE"
    assert found(a_history(samples=staged()), slo).outcome == "HELD"


def test_a_relative_bound_that_allows_everything_is_none() -> None:
    some_failed = [*requests(20, make=a_lost_request), *requests(380, start=2.0)]  # 20 % of the baseline
    assert found(a_history(requests=some_failed), an_slo("error_ratio", max_ratio=3.0)).outcome == "HELD"
    finding = found(a_history(requests=some_failed), an_slo("error_ratio", max_ratio=6.0))
    assert (finding.outcome, finding.reason) == (
        "INCONCLUSIVE",
        "the bound would be 120 %, which allows everything",
    )


def test_a_sampled_finding_says_how_independent_its_requests_are_taken_to_be() -> None:
    slo = an_slo(quantile=0.9, max=500)
    assert found(a_history(), slo).numbers["design_effect"] == 1.0


def test_what_is_due_during_the_undo_belongs_to_the_fault() -> None:
    """And what is due between the injection and the effect to no window."""
    windows = a_history().windows()
    assert [(w.phase, w.start, w.end) for w in windows] == [
        ("baseline", 0.0, 10.0),
        ("fault", 10.5, 21.0),
        ("recovery", 21.0, 40.0),
    ]


def test_the_fault_begins_when_the_card_says_so_not_when_it_was_noticed() -> None:
    late = a_history(faults=[e | ({"t": 12.0} if e["edge"] == "active" else {}) for e in edges()])
    assert late.window("fault", "vram").start == 10.5  # type: ignore[union-attr]


@pytest.mark.parametrize("skip", [(), ("gone",), ("rolling_back", "gone")])
def test_all_that_is_due_is_in_one_window_but_for_what_is_due_before_the_effect(
    skip: tuple[str, ...],
) -> None:
    two = [*edges("one", skip=skip), *edges("two", later=15.0)]
    windows = a_history(faults=two).windows()
    for n in range(400):
        due = n / 10
        before = 10.0 <= due < 10.5 or 25.0 <= due < 25.5
        assert sum(due in window for window in windows) == (0 if before else 1), due
