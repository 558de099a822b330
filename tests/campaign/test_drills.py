"""Whole drills on this machine: the claims that the README makes, and what each countermeasure buys.

A machine that is too busy makes a drill UNKNOWN, which is honest and no defect: it is asked once more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.perform import Performance, ask, perform

DRILL = Path("scenarios/burst-survives-vram-pcie-nvlink.yaml")

pytestmark = pytest.mark.campaign


def drilled(tmp_path: Path, *sets: str, settled: tuple[str, ...] = ("PASS", "FAIL")) -> Performance:
    """A run whose verdict is one of `settled`, from at most two tries."""
    performance = perform(ask(DRILL, sets=sets), root=tmp_path)
    if performance.verdict.status not in settled:
        performance = perform(ask(DRILL, sets=sets), root=tmp_path)
    return performance


def test_the_drill_passes_and_two_hundred_answers_are_the_same_alone(tmp_path: Path) -> None:
    performance = drilled(tmp_path, "fidelity_sample=200")

    assert performance.verdict.passed, performance.verdict
    assert performance.verdict.finding("invariant.token-fidelity").numbers["compared"] == 200
    rungs = {event["rung"] for event in performance.history.of_kind("fidelity")}
    assert rungs == {"full", "light"}


@pytest.mark.parametrize(
    ("countermeasure", "names"),
    [
        ("vram", "slo.fault.vram.downgraded_ratio"),
        ("pcie", "slo.fault.pcie.direct_dma_ratio"),
        ("nvlink", "slo.fault.nvlink.weak_link_share"),
    ],
)
def test_without_a_countermeasure_the_drill_fails_and_names_it(
    countermeasure: str, names: str, tmp_path: Path
) -> None:
    performance = drilled(tmp_path, f"target.countermeasures.{countermeasure}=false")

    assert performance.verdict.status == "FAIL", performance.verdict
    assert performance.verdict.finding(names).outcome == "BROKEN"


def test_a_fault_that_does_nothing_is_unknown(tmp_path: Path) -> None:
    performance = drilled(tmp_path, "timeline.0.fault={kind: noop}", settled=("UNKNOWN",))

    assert performance.verdict.status == "UNKNOWN", performance.verdict
    assert "fault did not take effect" in performance.verdict.finding("fault.vram.took-effect").reason
