"""What levers add up to: clocks, capacities, power and heat."""

from __future__ import annotations

import pytest

from faults.gpu.conditions import Conditions, active_nvlinks, capacities, clocks, pcie_link, warmth
from faults.gpu.levers import LeverKind, Row
from faults.gpu.profiles import A100, H100, L40S, POCKET
from faults.gpu.telemetry import Throttle
from faults.gpu.topology import Wiring

MESH = Wiring(POCKET, 4, "mesh")
SWITCHED = Wiring(H100, 8, "nvswitch")
FULL_SPEED = [(1.0, 1.0)] * 8


def kept(*levers: tuple[LeverKind, int, float]) -> Conditions:
    return Conditions(
        Row(0, n + 1, 1, kind, target, value, 0.0) for n, (kind, target, value) in enumerate(levers)
    )


def capacity(wiring: Wiring, name: str, *levers: tuple[LeverKind, int, float]) -> float:
    """The share of its nominal rate that a link has."""
    found = capacities(wiring, kept(*levers), FULL_SPEED)
    return found[wiring.names.index(name)] / wiring.nominal(name)[0]


def of_card_0(
    *levers: tuple[LeverKind, int, float], at_c: float = 40, was_hot: bool = False
) -> tuple[float, ...]:
    sm_mhz, mem_mhz, why = clocks(0, H100, kept(*levers), at_c, was_hot)
    return sm_mhz, mem_mhz, int(why)


def test_nothing_kept_is_full_speed_everywhere() -> None:
    assert of_card_0() == (1980, 2619, Throttle.NONE)
    assert capacities(SWITCHED, kept(), FULL_SPEED) == [SWITCHED.nominal(name)[0] for name in SWITCHED.names]


@pytest.mark.parametrize(
    ("levers", "sm_mhz", "mem_mhz", "why"),
    [
        ([(LeverKind.SM_CLOCK_MHZ, 990)], 990, 2619, Throttle.APPLICATIONS_CLOCKS),
        ([(LeverKind.MEM_CLOCK_MHZ, 1000)], 1980, 1000, Throttle.APPLICATIONS_CLOCKS),
        (
            [(LeverKind.SM_CLOCK_MHZ, 900), (LeverKind.SM_CLOCK_MHZ, 1200)],
            900,
            2619,
            Throttle.APPLICATIONS_CLOCKS,
        ),
        ([(LeverKind.SM_CLOCK_MHZ, 5000)], 1980, 2619, Throttle.NONE),
        ([(LeverKind.POWER_CAP_W, 385)], 990, 2619, Throttle.SW_POWER_CAP),  # half of what is above 70 W
        ([(LeverKind.POWER_BRAKE, 1)], 990, 2619, Throttle.HW_POWER_BRAKE | Throttle.HW_SLOWDOWN),
    ],
)
def test_a_clock_is_the_least_that_is_kept_and_says_why(
    levers: list[tuple[LeverKind, float]], sm_mhz: float, mem_mhz: float, why: Throttle
) -> None:
    assert of_card_0(*((kind, 0, value) for kind, value in levers)) == (pytest.approx(sm_mhz), mem_mhz, why)
    assert of_card_0(*((kind, 1, value) for kind, value in levers)) == (1980, 2619, Throttle.NONE)


def test_a_card_slows_down_at_its_limit_and_speeds_up_only_when_it_has_cooled() -> None:
    hot = Throttle.HW_THERMAL | Throttle.HW_SLOWDOWN
    assert of_card_0(at_c=86.9) == (1980, 2619, Throttle.NONE)
    assert of_card_0(at_c=87.0) == (990, 2619, hot)
    assert of_card_0(at_c=85.0, was_hot=True) == (990, 2619, hot)
    assert of_card_0(at_c=84.0, was_hot=True) == (1980, 2619, Throttle.NONE)


def test_a_pcie_link_of_fewer_lanes_or_an_older_generation_has_their_share() -> None:
    assert pcie_link(0, H100, kept((LeverKind.PCIE_WIDTH, 0, 4))) == (5, 4, 0.25)
    gen, width, share = pcie_link(0, H100, kept((LeverKind.PCIE_GEN, 0, 3)))
    assert (gen, width, share) == (3, 16, pytest.approx(0.985 / 3.938))
    assert pcie_link(0, H100, kept((LeverKind.PCIE_LOSS, 0, 0.25))) == (5, 16, 0.75)
    assert capacity(MESH, "pcie:0:h2d", (LeverKind.PCIE_WIDTH, 0, 8)) == 0.5
    assert capacity(MESH, "pcie:1:h2d", (LeverKind.PCIE_WIDTH, 0, 8)) == 1


def test_links_that_are_down_take_their_share_of_a_cards_bandwidth() -> None:
    down = (LeverKind.NVLINKS_DOWN, 2, 3)
    assert capacity(SWITCHED, "nvlink:2>switch", down) == pytest.approx(15 / 18)
    assert capacity(SWITCHED, "nvlink:switch>2", down) == pytest.approx(15 / 18)
    assert capacity(SWITCHED, "nvlink:1>switch", down) == 1
    assert sum(active_nvlinks(2, SWITCHED, kept(down))) == 15


def test_in_a_mesh_both_ends_of_a_link_that_is_down_see_it() -> None:
    down = (LeverKind.NVLINKS_DOWN, 0, 4)  # dealt out in turn: two to the first peer, one to each other
    assert [sum(active_nvlinks(card, MESH, kept(down))) for card in range(4)] == [14, 16, 17, 17]
    assert capacity(MESH, "nvlink:0>1", down) == capacity(MESH, "nvlink:1>0", down) == pytest.approx(4 / 6)
    assert capacity(MESH, "nvlink:3>0", down) == pytest.approx(5 / 6)
    assert capacity(MESH, "nvlink:2>3", down) == 1


def test_a_lost_card_and_an_absent_one_stand_still_but_only_the_lost_ones_links_are_down() -> None:
    for kind in (LeverKind.LOST, LeverKind.ABSENT):
        gone = (kind, 1, 1)
        assert {capacity(MESH, name, gone) for name in MESH.names if 1 in MESH.ends(name)} == {0}
        assert {capacity(MESH, name, gone) for name in MESH.names if 1 not in MESH.ends(name)} == {1}
    assert not any(active_nvlinks(1, MESH, kept((LeverKind.LOST, 1, 1))))
    assert sum(active_nvlinks(0, MESH, kept((LeverKind.LOST, 1, 1)))) == 12
    assert all(active_nvlinks(1, MESH, kept((LeverKind.ABSENT, 1, 1))))


def test_a_straggler_is_slow_in_compute_and_in_memory() -> None:
    slow = (LeverKind.SLOW_FACTOR, 3, 0.2)
    assert capacity(MESH, "sm:3", slow) == capacity(MESH, "hbm:3", slow) == 0.2
    assert capacity(MESH, "sm:2", slow) == 1


def test_compute_follows_the_sm_clock_and_bandwidth_the_memory_clock() -> None:
    found = capacities(MESH, kept(), [(0.5, 0.25)] * 4)
    assert (found[MESH.names.index("sm:0")], found[MESH.names.index("hbm:0")]) == (0.5, 0.25)


@pytest.mark.parametrize(("util", "clock", "limit_w", "watts"), [(0, 1, 700, 70), (1, 1, 700, 700), (1, 0.5, 700, 385),
                                                                 (0.5, 1, 700, 385), (1, 1, 300, 300)])  # fmt: skip
def test_power_grows_with_use_and_clock_up_to_the_limit(
    util: float, clock: float, limit_w: float, watts: float
) -> None:
    assert warmth(H100, util, clock, limit_w, 0, 40, 0.1)[0] == pytest.approx(watts)


def test_a_card_settles_where_its_power_and_the_heat_from_elsewhere_belong() -> None:
    assert warmth(H100, 0, 1, 700, 0, 80, 1000)[1] == pytest.approx(30)
    assert warmth(H100, 1, 1, 700, 0, 30, 1000)[1] == pytest.approx(65)
    assert warmth(H100, 1, 1, 700, 20, 30, 1000)[1] == pytest.approx(85)
    assert warmth(H100, 1, 1, 700, 0, 30, 15)[1] == pytest.approx(30 + 35 * (1 - 1 / 2.718281828))


@pytest.mark.parametrize(
    ("wiring", "a", "b", "route"),
    [
        (MESH, 0, 1, ("nvlink:0>1",)),
        (SWITCHED, 0, 5, ("nvlink:0>switch", "nvlink:switch>5")),
        (Wiring(A100, 4, "pairs"), 2, 3, ("nvlink:2>3",)),
        (Wiring(A100, 4, "pairs"), 1, 2, ("pcie:1:d2h", "pcie:2:h2d")),
        (Wiring(A100, 4, "none"), 0, 1, ("pcie:0:d2h", "pcie:1:h2d")),
    ],
)
def test_bytes_go_over_the_wires_that_there_are(
    wiring: Wiring, a: int, b: int, route: tuple[str, ...]
) -> None:
    assert wiring.route(a, b) == route


def test_a_topology_that_cards_can_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown topology 'ring'; known: mesh, nvswitch, pairs, none"):
        Wiring(H100, 4, "ring")
    with pytest.raises(ValueError, match="l40s cards have no NVLink; their topology can only be none"):
        Wiring(L40S, 4, "mesh")
