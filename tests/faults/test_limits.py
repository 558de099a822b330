"""What a fault can't be asked for: settings out of their limits, and cards that can't be brought into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from faults.base import Fault
from faults.clocks import ClockLock, PowerCap
from faults.fragmentation import VramFragmentation
from faults.gpu.sim import SimNode
from faults.gpu.spawn import NeighbourError
from faults.kinds import AnyFault
from faults.nvlink import NvlinkDegrade
from faults.nvlink_down import NvlinkFatal, NvlinkLinksDown
from faults.nvlink_errors import NvlinkErrors
from faults.pcie_link import PcieLinkDegrade

any_fault: TypeAdapter[Fault] = TypeAdapter(AnyFault)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "vram_leak", "mb_per_s": 10},
        {"kind": "vram_fragmentation", "largest_mb": 0},
        {"kind": "alloc_failure", "at_least_mb": 0},
        {"kind": "ecc_errors", "per_s": 1},
        {"kind": "ecc_uncorrectable", "xid": 31},
        {"kind": "ecc_uncorrectable", "victim": "everybody"},
        {"kind": "pcie_link_degrade", "gen": 6},
        {"kind": "pcie_link_degrade", "width": 12},
        {"kind": "pcie_replay_storm", "loss": 1},
        {"kind": "nvlink_links_down", "down": 0},
        {"kind": "nvlink_links_down", "down": 19},
        {"kind": "nvlink_errors", "errors": "flit"},
        {"kind": "straggler", "percent": 100},
        {"kind": "clock_lock", "sm_mhz": None},
        {"kind": "clock_lock", "sm_mhz": 20},
        {"kind": "power_cap", "watts": 5},
        {"kind": "thermal_throttle", "over_c": -1},
        {"kind": "gpu_contention", "fraction": 1},
        {"kind": "gpu_contention", "kernels": "tensor"},
        {"kind": "cuda_error", "code": 2},
        {"kind": "gsp_timeout", "delay_ms": 0},
        {"kind": "nvml_slow", "delay_ms": 0},
        {"kind": "nvml_unavailable", "error": "tired"},
        {"kind": "xid_noise", "per_s": 1000},
        {"kind": "gpu_lost", "card": -1},
    ],
    ids=repr,
)
def test_a_setting_out_of_its_limits_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        any_fault.validate_python(wrong)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (PcieLinkDegrade(gen=5, width=16), "no worse than card 0's link at its best, gen 5 x16"),
        (ClockLock(sm_mhz=1980), "sm_mhz: 1980 is no lock: card 0's best is 1980 MHz"),
        (ClockLock(sm_mhz=None, memory_mhz=9000), "memory_mhz: 9000 is no lock"),
        (PowerCap(watts=100), "can be capped from 200 W to below its default of 700 W"),
        (PowerCap(watts=700), "can be capped from 200 W"),
    ],
    ids=repr,
)
def test_what_would_change_nothing_or_cannot_be_is_refused(node: SimNode, fault: Fault, told: str) -> None:
    with pytest.raises(ValueError, match=told), fault.inject(node):
        pass
    assert node.neighbours() == frozenset()


@pytest.mark.parametrize(
    "fault", [NvlinkLinksDown(), NvlinkErrors(), NvlinkFatal()], ids=lambda each: each.kind
)
def test_a_card_without_nvlinks_has_no_trouble_with_them(path: Path, fault: Fault) -> None:
    with (
        SimNode.create(path, "l40s", cards=2) as node,
        pytest.raises(ValueError, match="NVLinks"),
        fault.inject(node),
    ):
        pass


@pytest.mark.parametrize(
    ("cards", "topology", "fault", "told"),
    [
        (1, "mesh", NvlinkLinksDown(), "card 0 has no NVLinks that lead anywhere"),
        (1, "mesh", NvlinkFatal(), "card 0 has no NVLinks that lead anywhere"),
        (2, "none", NvlinkErrors(card=1), "card 1 has no NVLinks that lead anywhere"),
        (3, "pairs", NvlinkFatal(card=2), "card 2 has no NVLinks that lead anywhere"),
        (
            8,
            "mesh",
            NvlinkLinksDown(down=16),
            "card 0 has 14 NVLinks that lead somewhere, so 16 can't go down",
        ),
        (
            2,
            "nvswitch",
            NvlinkDegrade(),
            r"no nvlink:0>1: .* its NVLinks are nvlink:0>switch, nvlink:switch>0",
        ),
        (2, "none", NvlinkDegrade(), r"no nvlink:0>1: .* its NVLinks are none"),
    ],
    ids=repr,
)
def test_links_that_lead_nowhere_have_no_trouble(
    path: Path, cards: int, topology: str, fault: Fault, told: str
) -> None:
    with SimNode.create(path, cards=cards, topology=topology) as node:
        if not isinstance(fault, NvlinkDegrade):
            seen = fault.took_effect(node)
            assert (seen.visible, seen.residual) == (False, 0)
        with pytest.raises(ValueError, match=told), fault.inject(node):
            pass
        assert node.neighbours() == frozenset()


@pytest.mark.parametrize(
    "fault", [NvlinkLinksDown(down=14), NvlinkFatal(), NvlinkErrors(per_s=1000)], ids=lambda each: each.kind
)
def test_all_links_that_lead_somewhere_can_have_trouble(path: Path, fault: Fault, soon) -> None:
    with SimNode.create(path, cards=8, topology="mesh") as node:
        with fault.inject(node):
            soon(lambda: fault.took_effect(node).visible)
        soon(lambda: fault.took_effect(node).residual == 0)


def test_runs_shorter_than_a_page_cannot_be_asked_for(node: SimNode) -> None:
    with pytest.raises(NeighbourError, match="runs of 0 pages"), VramFragmentation(largest_mb=1).inject(node):
        pass


def test_a_lock_of_the_memory_clock_alone_leaves_compute_as_it_is(node: SimNode) -> None:
    fault = ClockLock(sm_mhz=None, memory_mhz=1000)
    with fault.inject(node):
        effect = fault.took_effect(node)
        assert (effect.visible, effect.asked, effect.measured) == (True, 1000, 1000)
        assert node.link("sm:0").capacity_bytes_per_s == 1
        assert node.link("hbm:0").capacity_bytes_per_s == pytest.approx(1000 / 2619)
