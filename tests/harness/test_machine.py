"""A service that other work kept from the cores is not a service that the fault slowed down."""

from __future__ import annotations

import os
from typing import Any

from harness.history import History
from harness.judge import judge
from harness.machine import slowdown
from harness.sampling import time_on_cores
from tests.builders import a_drill, a_history, a_request, an_slo, requests, sample

DRILL = a_drill(slos=[an_slo(quantile=0.9, max_ratio=2.0)], responses=[])


def cores(waited_in_fault: float) -> list[dict[str, Any]]:
    """Seconds on a core and waiting for one: 10 % waiting until 10 s, then as told for each second on one."""
    seen, ran, waited = [], 0.0, 0.0
    for tick in range(160):
        seen.append(sample(tick * 0.25, "host", service_ran_s=ran, service_waited_s=waited))
        ran += 0.1
        waited += 0.01 if tick < 40 else 0.1 * waited_in_fault
    return seen


def slow_in_fault(waited_in_fault: float) -> History:
    slow = [a_request(100 + i, due=10.7 + i * 0.05, ttft_ms=900) for i in range(100)]
    return a_history(drill=DRILL, requests=[*requests(100), *slow], samples=cores(waited_in_fault))


def test_slow_answers_are_broken_when_the_service_had_the_cores_as_in_the_baseline() -> None:
    finding = judge(DRILL, slow_in_fault(0.12)).finding("slo.fault.vram.ttft_ms.p90")
    assert finding.outcome == "BROKEN"


def test_slow_answers_are_inconclusive_when_other_work_had_the_cores() -> None:
    finding = judge(DRILL, slow_in_fault(0.6)).finding("slo.fault.vram.ttft_ms.p90")
    assert finding.outcome == "INCONCLUSIVE"
    assert "it took 1.60 × its time on one, 1.10 × in the baseline" in finding.reason


def test_without_the_kernels_count_slow_answers_are_judged_as_they_are() -> None:
    history = slow_in_fault(0.6)
    history.events = [event for event in history.events if event["kind"] != "sample"]
    assert judge(DRILL, history).finding("slo.fault.vram.ttft_ms.p90").outcome == "BROKEN"


def test_a_free_machine_slows_nothing_down() -> None:
    history = slow_in_fault(0.0)
    window = history.window("fault", "vram")
    assert window is not None
    assert slowdown(history, window) == 1.0


def test_the_kernel_counts_the_time_of_a_living_process() -> None:
    seen = time_on_cores(os.getpid())()
    assert seen["service_ran_s"] > 0
    assert seen["service_waited_s"] >= 0
