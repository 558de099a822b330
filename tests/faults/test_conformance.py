"""The conformance body, on simulated nodes of several kinds and, with `-m gpu`, on this machine's cards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from faults.gpu.nvidia import NvidiaNode
from faults.gpu.nvidia_tasks import cuda
from faults.gpu.profiles import GIB, MIB
from faults.gpu.refused import Refused
from faults.gpu.sanity import Allowed
from faults.gpu.sim import SimNode
from tests.faults.conformance import Backend, Conformance
from tests.faults.tenant import tenant

NODES = [
    ("pocket", 2, "mesh"),
    ("h100-sxm-80", 2, "nvswitch"),
    ("a100-sxm-80", 4, "pairs"),
    ("l40s", 2, "none"),
]
MORE_NODES = [  # the same code at other sizes
    ("pocket", 4, "pairs"),
    ("h100-sxm-80", 1, "none"),
    ("h100-sxm-80", 8, "nvswitch"),
    ("h200-sxm-141", 4, "mesh"),
    ("a100-sxm-80", 8, "nvswitch"),
]


def named(node: tuple[str, int, str]) -> str:
    return "{} x{} {}".format(*node)


@pytest.fixture(
    scope="module",
    params=[*NODES, *(pytest.param(node, marks=pytest.mark.campaign) for node in MORE_NODES)],
    ids=[named(node) for node in (*NODES, *MORE_NODES)],
)
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    profile, cards, topology = request.param
    path: Path = tmp_path_factory.mktemp("node") / "node"
    another = partial(tenant, "sim_tenant.py", [str(path)])
    with (
        SimNode.create(path, profile, cards, topology=topology) as node,
        another() as one,
        another() as other,
    ):
        yield Backend(gpu=node, tenant=another, one=one, other=other, route=node.route)


class TestSimNode(Conformance):
    """Simulated: exact, but for the moments at which processes come and go."""

    @pytest.fixture
    def backend(self, simulated: Backend) -> Backend:
        return simulated


@pytest.fixture(scope="module")
def real() -> Iterator[Backend]:
    another = partial(tenant, "torch_tenant.py", [])
    try:
        opened = NvidiaNode.open()
        cuda()
    except Refused as refused:
        pytest.skip(str(refused))
    with opened as node, another() as one, another() as other:
        yield Backend(
            gpu=node,
            tenant=another,
            one=one,
            other=other,
            route=node.route,
            near=0.1,  # a card has one copy engine a direction, which takes turns
            spare_bytes=GIB,
            grain_bytes=4 * MIB,
            copy_s=0.2,
            window_s=2.0,
            allowed=Allowed(
                unattributed_bytes=4 * GIB, stale_s=1.5, late_s=1.5, settle_s=5.0, power_over=1.1
            ),
        )


@pytest.mark.gpu
class TestCards(Conformance):
    """This machine's cards. Untested on hardware."""

    @pytest.fixture
    def backend(self, real: Backend) -> Backend:
        return real
