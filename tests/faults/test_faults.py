"""Each fault on a simulated node: takes effect at the asked dose, and is gone after the undo."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter, ValidationError

from faults.base import Effect, Fault
from faults.contention import GpuContention
from faults.context import CudaError
from faults.ecc import EccUncorrectable
from faults.fragmentation import VramFragmentation
from faults.gpu.levers import LeverKind
from faults.gpu.oom import DeviceOutOfMemory
from faults.gpu.profiles import KIB, MIB
from faults.gpu.sim import SimNode
from faults.gsp import GspTimeout
from faults.kinds import KINDS, AnyFault
from faults.leak import VramLeak
from faults.monitoring import DriverMismatch, NvmlSlow, NvmlUnavailable, TelemetryFrozen
from faults.noop import Noop, NoopError
from faults.nvlink import NvlinkDegrade
from faults.pcie import PcieSaturation
from faults.streams import SEEN_S
from faults.vram import VramOom

any_fault: TypeAdapter[Fault] = TypeAdapter(AnyFault)


@pytest.fixture
def effect(node: SimNode, soon) -> Callable[[Fault], Effect]:
    """The effect of a fault, once it is visible."""

    def seen(fault: Fault) -> Effect:
        soon(lambda: fault.took_effect(node).visible)
        return fault.took_effect(node)

    return seen


@pytest.mark.parametrize(
    "fault",
    [
        VramOom(card=1, free_mb=12_288),
        VramOom(free_mb=1),
        PcieSaturation(card=2, fraction=0.5),
        PcieSaturation(fraction=0.98),
        NvlinkDegrade(links=("0-1", "2-3"), percent=1),
        NvlinkDegrade(percent=99),
    ],
    ids=repr,
)
def test_a_fault_takes_effect_and_is_gone_after_the_undo(node: SimNode, effect, fault: Fault) -> None:
    before = time.monotonic()
    assert not fault.took_effect(node).visible
    for _ in range(2):  # one value can be used any number of times
        with fault.inject(node):
            seen = effect(fault)
            assert seen.since_s is not None
            assert before <= seen.since_s <= time.monotonic()
            assert seen.residual > 0
        gone = fault.took_effect(node)
        assert (gone.visible, gone.since_s, gone.residual) == (False, None, 0)
        before = time.monotonic()


def test_vram_oom_leaves_the_scaled_threshold_and_the_service_runs_out(node: SimNode, effect) -> None:
    node.alloc_all(int(23.6 * MIB), "weights")
    fault = VramOom(card=0, free_mb=1024)
    with fault.inject(node):
        seen = effect(fault)
        assert (seen.asked, seen.measured, seen.unit) == (1024, 960, "MiB free")
        assert node.memory(0).free_bytes == 576 * KIB
        with pytest.raises(DeviceOutOfMemory):
            node.alloc(0, MIB)
        node.alloc(1, MIB)
    node.alloc(0, MIB)


def test_a_service_that_frees_memory_does_not_make_vram_oom_look_absent(node: SimNode, effect) -> None:
    ours = node.alloc(0, 20 * MIB)
    fault = VramOom()
    with fault.inject(node):
        since_s = effect(fault).since_s
        node.free(ours)
        assert fault.took_effect(node).visible
        assert fault.took_effect(node).since_s == since_s


def test_what_is_left_of_a_fault_below_its_dose_is_told(still: SimNode, path, clock) -> None:
    """A neighbour that gave back most of what it took is not gone."""
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        other.alloc(0, MIB)
        other.start([("pcie:0:h2d", float("inf"))])
        other.degrade(["nvlink:0>1"], 0.5)
        clock.now += 1.0
        for fault, left in ((VramOom(), MIB), (PcieSaturation(), 1), (NvlinkDegrade(), 1)):
            seen = fault.took_effect(still)
            assert (seen.visible, seen.residual) == (False, left)
    for fault in (VramOom(), PcieSaturation(), NvlinkDegrade()):
        assert fault.took_effect(still).residual == 0


@pytest.mark.parametrize(
    "there", [GpuContention(), PcieSaturation(), CudaError(), EccUncorrectable()], ids=lambda each: each.kind
)
def test_a_neighbour_that_is_only_there_is_no_memory_trouble(node: SimNode, effect, there: Fault) -> None:
    """It holds a page, as a context would; the service fills the rest."""
    memory = (VramOom(), VramLeak(), VramFragmentation())
    with there.inject(node):
        effect(there)
        node.alloc(0, node.memory(0).largest_free_bytes)
        for fault in memory:
            assert (fault.took_effect(node).visible, fault.took_effect(node).residual) == (False, 0)


def test_memory_trouble_is_gone_though_another_neighbour_computes(node: SimNode, effect) -> None:
    with GpuContention().inject(node):
        for fault in (VramOom(), VramLeak(), VramFragmentation(), VramFragmentation(largest_mb=60_000)):
            with fault.inject(node):
                assert effect(fault).residual > 0
            assert (fault.took_effect(node).visible, fault.took_effect(node).residual) == (False, 0)


def test_a_neighbour_computes_and_copies_though_the_card_is_full(node: SimNode, effect) -> None:
    node.alloc(0, 48 * MIB)
    for fault in (GpuContention(), PcieSaturation()):
        with fault.inject(node):
            effect(fault)


def test_other_trouble_does_not_look_like_a_gsp_timeout(node: SimNode, effect) -> None:
    """Nor does it with the report of an earlier one."""
    with GspTimeout(delay_ms=50).inject(node):
        effect(GspTimeout(delay_ms=50))
    with EccUncorrectable().inject(node), NvmlSlow(delay_ms=5000).inject(node):
        for answer in (NvmlUnavailable(), DriverMismatch()):
            with answer.inject(node):
                effect(answer)
                seen = GspTimeout().took_effect(node)
                assert (seen.visible, seen.residual) == (False, 0)
    node.keep(LeverKind.NVML_DELAY_S, [0], 5)
    node.keep(LeverKind.NVML_ERROR, [0], 16)
    node.keep(LeverKind.RECOVERY_ACTION, [0], 1)
    assert not GspTimeout().took_effect(node).visible
    node.report(0, 119)
    assert GspTimeout().took_effect(node).visible
    assert not GspTimeout(card=1).took_effect(node).visible


def test_a_gsp_timeout_shows_next_to_a_slow_nvml_and_after_it(node: SimNode, effect) -> None:
    with GspTimeout(delay_ms=50).inject(node):
        with NvmlSlow(delay_ms=100).inject(node):
            effect(NvmlSlow(delay_ms=100))
            assert effect(GspTimeout(delay_ms=50)).measured == 100
        assert effect(GspTimeout(delay_ms=50)).measured == 50


def test_figures_stand_still_only_if_the_true_ones_go_on(still: SimNode, clock) -> None:
    fault = TelemetryFrozen()
    still.card(0)
    lever = still.keep(LeverKind.FROZEN, [0], 1)
    assert not fault.took_effect(still).visible  # no time has passed, so nothing is old
    clock.now += 1.0
    seen = fault.took_effect(still)
    assert (seen.visible, seen.residual) == (True, 2)
    still.let_go(lever)
    assert (fault.took_effect(still).visible, fault.took_effect(still).residual) == (False, 0)


def test_a_neighbour_that_is_killed_is_no_fault_any_more(node: SimNode, effect, soon) -> None:
    for fault in (VramOom(), PcieSaturation(), NvlinkDegrade()):
        with fault.inject(node):
            effect(fault)
            (pid,) = node.neighbours()
            os.kill(pid, signal.SIGKILL)
            soon(lambda fault=fault: not fault.took_effect(node).visible)
            assert fault.took_effect(node).residual == 0


def test_vram_oom_on_a_card_that_the_service_filled_itself_has_no_effect(node: SimNode) -> None:
    node.alloc(0, 48 * MIB)
    fault = VramOom()
    with fault.inject(node):
        seen = fault.took_effect(node)
        assert (seen.visible, seen.measured) == (False, 0.0)


def test_vram_oom_counts_when_the_service_takes_the_last_of_it(still: SimNode, path, clock) -> None:
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        other.alloc(0, 40 * MIB)
        assert not VramOom().took_effect(still).visible
        clock.now = 150.0
        still.alloc(0, 8 * MIB)
        seen = VramOom().took_effect(still)
        assert (seen.visible, seen.since_s) == (True, 150.0)


@pytest.mark.parametrize(
    ("fraction", "streams"),
    [(0.01, 1), (0.5, 1), (0.51, 2), (0.75, 3), (0.8, 4), (0.9, 9), (0.95, 19), (0.98, 49)],
)
def test_pcie_saturation_runs_as_many_streams_as_the_share_needs(fraction: float, streams: int) -> None:
    assert PcieSaturation(fraction=fraction).streams == streams


def test_pcie_saturation_leaves_a_competing_copy_the_rest(node: SimNode, effect) -> None:
    fault = PcieSaturation(card=0, fraction=0.9)
    with fault.inject(node):
        assert effect(fault).measured == pytest.approx(0.9)
        (timing,) = node.transfer([("pcie:0:h2d", 64_000.0)])
        assert timing.slowdown == pytest.approx(10, rel=0.05)
        assert fault.took_effect(node).visible


def test_pcie_saturation_is_measured_over_a_window(still: SimNode, path, clock) -> None:
    fault = PcieSaturation(card=0, fraction=0.5)
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        copies = other.start([("pcie:0:h2d", float("inf")), ("pcie:0:d2h", float("inf"))])
        began = clock.now
        clock.now += SEEN_S / 2
        assert not fault.took_effect(still).visible
        clock.now += SEEN_S
        seen = fault.took_effect(still)
        assert (seen.visible, seen.since_s, seen.unit) == (True, began, "share of the link")
        other.cancel(copies)
        assert not fault.took_effect(still).visible


def test_pcie_saturation_is_as_strong_as_its_copies_are_now(still: SimNode, path, clock) -> None:
    """Its past does not keep it up when some of its copies end, nor do the service's copies take it down."""
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        both_ways = [("pcie:0:h2d", float("inf")), ("pcie:0:d2h", float("inf"))]
        other.start(both_ways * 5)
        some = other.start(both_ways * 4)
        clock.now += 100.0
        still.start([("pcie:0:h2d", float("inf"))] * 5)
        clock.now += 100.0
        assert PcieSaturation().took_effect(still).measured == pytest.approx(0.9)
        other.cancel(some)
        seen = PcieSaturation().took_effect(still)
        assert (seen.visible, seen.measured) == (False, pytest.approx(5 / 6))


def test_a_tenant_that_copies_is_no_saturation(still: SimNode, clock) -> None:
    still.start([("pcie:0:h2d", float("inf")), ("pcie:0:d2h", float("inf"))] * 9)
    clock.now += 1.0
    assert PcieSaturation().took_effect(still).measured == 0.0


def test_a_neighbour_on_one_direction_only_is_no_saturation(still: SimNode, path, clock) -> None:
    with SimNode.attach(path, role="neighbour", clock=clock) as other:
        other.start([("pcie:0:h2d", float("inf"))] * 9)
        clock.now += 1.0
        assert not PcieSaturation().took_effect(still).visible


def test_nvlink_degrade_slows_both_directions_of_its_pairs_and_no_other(node: SimNode, effect) -> None:
    fault = NvlinkDegrade(links=("0-1",), percent=10)
    with fault.inject(node):
        seen = effect(fault)
        assert (seen.asked, seen.measured, seen.unit) == (10, pytest.approx(10), "% of nominal")
        timings = node.transfer([(name, 96_000.0) for name in ("nvlink:0>1", "nvlink:1>0", "nvlink:0>2")])
        assert [round(timing.slowdown) for timing in timings] == [10, 10, 1]


def test_nvlink_degrade_of_some_links_only_is_not_visible(still: SimNode) -> None:
    still.degrade(["nvlink:0>1"], 0.1)
    assert not NvlinkDegrade().took_effect(still).visible
    still.degrade(["nvlink:1>0"], 0.1)
    assert NvlinkDegrade().took_effect(still).visible


def test_noop_does_nothing_and_never_shows(node: SimNode) -> None:
    with Noop().inject(node):
        assert Noop().took_effect(node) == Effect(False, 0.0, 0.0, "none", None, "a no-op has no effect")


def test_noop_fails_at_the_step_it_was_told(node: SimNode) -> None:
    reached = []
    with pytest.raises(NoopError, match="at inject"), Noop(fail_at="inject").inject(node):
        reached.append("never")
    with pytest.raises(NoopError, match="at undo"), Noop(fail_at="undo").inject(node):
        reached.append("inside")
    with pytest.raises(NoopError, match="at effect"):
        Noop(fail_at="effect").took_effect(node)
    assert reached == ["inside"]


@pytest.mark.parametrize(
    ("fault", "cards"),
    [
        (VramOom(card=3), {3}),
        (PcieSaturation(card=1), {1}),
        (NvlinkDegrade(links=("0-1", "1-3")), {0, 1, 3}),
        (Noop(), set()),
    ],
)
def test_a_fault_says_which_cards_it_touches(fault: Fault, cards: set[int]) -> None:
    assert fault.touches() == cards
    fault.check_reach(cards=4, cards_max=3)


def test_a_fault_beyond_the_node_or_the_blast_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="card 4 is not on the node"):
        VramOom(card=4).check_reach(cards=4, cards_max=1)
    with pytest.raises(ValueError, match="cards_max is 1"):
        NvlinkDegrade().check_reach(cards=4, cards_max=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "vram_oom", "free_mb": 0},
        {"kind": "vram_oom", "card": -1},
        {"kind": "pcie_saturation", "fraction": 0},
        {"kind": "pcie_saturation", "fraction": 1},
        {"kind": "nvlink_degrade", "percent": 0},
        {"kind": "nvlink_degrade", "percent": 100},
        {"kind": "nvlink_degrade", "links": []},
        {"kind": "nvlink_degrade", "links": ["1-1"]},
        {"kind": "nvlink_degrade", "links": ["0>1"]},
        {"kind": "noop", "fail_at": "lunch"},
        {"kind": "noop", "strength": 3},
    ],
    ids=repr,
)
def test_a_setting_out_of_its_limits_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        any_fault.validate_python(wrong)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError) as refused:
        any_fault.validate_python({"kind": "meteor"})
    assert all(kind in str(refused.value) for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_certifies_and_describes_its_settings(kind: str) -> None:
    fault = KINDS[kind]()
    assert any_fault.validate_json(fault.model_dump_json()) == fault
    assert fault.model_dump()["kind"] == kind
    assert fault.fidelity["local"]
    assert fault.certifies
    assert fault.does_not_certify
    assert fault.__doc__
    assert all(field.description for name, field in type(fault).model_fields.items() if name != "kind")
