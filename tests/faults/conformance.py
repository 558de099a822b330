"""What every node does, simulated or real: one body of tests. A class that inherits it has a `backend` fixture.

A neighbour that a node can't have (a missing privilege, hardware that can't do it) is Refused; that test is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pytest

from faults.gpu import sanity
from faults.gpu.base import Gpu, Neighbour
from faults.gpu.refused import Refused
from faults.gpu.sanity import Allowed
from faults.gpu.telemetry import EventType, Throttle
from faults.gpu.topology import pcie
from tests.faults.tenant import NoRoom, Tenant

FLOWS = (1, 2, 4, 8)
H2D = pcie(0, "h2d")


@dataclass
class Backend:
    """A node, and processes that work on it."""

    gpu: Gpu
    tenant: Callable[[], AbstractContextManager[Tenant]]  # one more of them
    one: Tenant
    other: Tenant
    route: Callable[[int, int], Sequence[str]]  # the links from one card to another
    near: float = 0.03  # of what is compared: how exact times are
    spare_bytes: int = 0  # of a card: what can't be had, though it is free
    grain_bytes: int = 0  # what an allocation may take more, or less, than whole pages
    copy_s: float = 0.01  # how long a copy takes alone
    window_s: float = 0.4  # how long work goes on before it shows
    within_s: float = 5.0  # a dead process's memory is free again
    allowed: Allowed = field(default_factory=Allowed)

    def about(self, value: float) -> object:
        return pytest.approx(value, rel=self.near)

    @contextmanager
    def neighbour(self, task: str, **settings: object) -> Iterator[Neighbour]:
        """One that disturbs; the test is skipped if this node can't have it."""
        try:
            block = self.gpu.neighbour(task, **settings)
            other = block.__enter__()
        except Refused as refused:
            pytest.skip(str(refused))
        try:
            yield other
        finally:
            block.__exit__(None, None, None)

    def host_bytes(self) -> int:
        return int(self.gpu.link(H2D).nominal_bytes_per_s * self.copy_s)

    def peer_bytes(self) -> int:
        rates = [self.gpu.link(name).nominal_bytes_per_s for name in self.route(0, 1)]
        return int(min(rates) * self.copy_s)


class Conformance:
    """The body."""

    @pytest.fixture(autouse=True)
    def _makes_sense(self, backend: Backend) -> Iterator[None]:
        """Whatever a test does, what the node tells before and after it breaks no rule."""
        before = sanity.take(backend.gpu)
        yield
        assert sanity.findings([before, sanity.take(backend.gpu)], backend.allowed) == []

    def test_memory_shows_under_its_process_and_is_free_again(self, backend: Backend) -> None:
        gpu, one, page = backend.gpu, backend.one, backend.gpu.profile.page_bytes
        before = gpu.memory(0)
        key = one.alloc(0, 10 * page + 1)
        during = gpu.memory(0)
        taken = pytest.approx(11 * page, abs=backend.grain_bytes)
        assert during.used_by[one.pid] - before.used_by.get(one.pid, 0) == taken
        assert before.free_bytes - during.free_bytes == taken
        assert one.pid in gpu.tenants() - gpu.neighbours()
        one.free(key)
        assert gpu.memory(0).free_bytes == before.free_bytes

    def test_a_full_card_refuses_until_somebody_frees(self, backend: Backend) -> None:
        one, other = backend.one, backend.other
        room = backend.gpu.memory(0).largest_free_bytes - backend.spare_bytes
        with pytest.raises(NoRoom):
            one.alloc(0, backend.gpu.memory(0).total_bytes + 1)
        key = one.alloc(0, room)
        with pytest.raises(NoRoom):
            other.alloc(0, room // 2)
        one.free(key)
        other.free(other.alloc(0, room // 2))

    def test_what_a_killed_process_held_is_free_again(self, backend: Backend) -> None:
        before = backend.gpu.memory(0).free_bytes
        with backend.tenant() as doomed:
            doomed.alloc(0, 20 * backend.gpu.profile.page_bytes)
            doomed.keep_copying(0, "h2d")
            assert backend.gpu.memory(0).free_bytes < before
            doomed.kill()
            until = time.monotonic() + backend.within_s
            while backend.gpu.memory(0).free_bytes != before:
                assert time.monotonic() < until, "what a dead process held is still taken"
                time.sleep(0.01)
            assert doomed.pid not in backend.gpu.memory(0).used_by
            assert doomed.pid not in backend.gpu.link(H2D).streams

    @pytest.mark.parametrize("count", FLOWS)
    @pytest.mark.parametrize("way", ["h2d", "d2h"])
    def test_copies_share_pcie_equally_and_are_counted(self, backend: Backend, way: str, count: int) -> None:
        nbytes, link = backend.host_bytes(), pcie(0, way)
        (alone,) = backend.one.host_copies(0, way, nbytes, 1)
        before = backend.gpu.link(link).bytes_total
        took = backend.one.host_copies(0, way, nbytes, count)
        assert [nbytes / each for each in took] == [backend.about(nbytes / alone / count)] * count
        assert backend.gpu.link(link).bytes_total - before == backend.about(nbytes * count)

    @pytest.mark.parametrize("count", FLOWS)
    def test_copies_from_card_to_card_share_their_way_equally(self, backend: Backend, count: int) -> None:
        if backend.gpu.cards < 2:
            pytest.skip("needs two cards")
        nbytes = backend.peer_bytes()
        (alone,) = backend.one.peer_copies(0, 1, nbytes, 1)
        took = backend.one.peer_copies(0, 1, nbytes, count)
        assert [nbytes / each for each in took] == [backend.about(nbytes / alone / count)] * count

    @pytest.mark.parametrize("count", FLOWS[1:])
    def test_copies_of_other_processes_take_their_share(self, backend: Backend, count: int) -> None:
        nbytes = backend.host_bytes()
        (alone,) = backend.one.host_copies(0, "h2d", nbytes, 1)
        with backend.neighbour("copy", card=0, streams=count - 1, directions=["h2d"]) as other:
            (took,) = backend.one.host_copies(0, "h2d", nbytes, 1)
            assert backend.gpu.link(H2D).streams[other.pid].flows == count - 1
            assert other.pid in backend.gpu.neighbours()
        assert nbytes / took == backend.about(nbytes / alone / count)
        assert backend.one.host_copies(0, "h2d", nbytes, 1) == [backend.about(alone)]

    def test_two_processes_at_work_share(self, backend: Backend) -> None:
        gpu, one, other, nbytes = backend.gpu, backend.one, backend.other, backend.host_bytes()
        keys = [each.alloc(0, gpu.profile.page_bytes) for each in (one, other)]
        assert {one.pid, other.pid} <= gpu.memory(0).used_by.keys() & gpu.tenants()
        (alone,) = one.host_copies(0, "h2d", nbytes, 1)
        other.keep_copying(0, "h2d")
        (took,) = one.host_copies(0, "h2d", nbytes, 1)
        other.stop_copying()
        assert took == backend.about(2 * alone)
        for each, key in zip((one, other), keys, strict=True):
            each.free(key)

    def test_a_degraded_pcie_link_moves_less_until_it_is_restored(self, backend: Backend) -> None:
        nbytes = backend.host_bytes()
        (alone,) = backend.one.host_copies(0, "h2d", nbytes, 1)
        with backend.neighbour("degrade", links=[H2D], factor=0.3):
            (slow,) = backend.one.host_copies(0, "h2d", nbytes, 1)
        assert alone / slow == backend.about(0.3)
        assert backend.one.host_copies(0, "h2d", nbytes, 1) == [backend.about(alone)]

    def test_a_degraded_way_from_card_to_card_moves_less_until_it_is_restored(self, backend: Backend) -> None:
        if backend.gpu.cards < 2:
            pytest.skip("needs two cards")
        nbytes, links = backend.peer_bytes(), backend.route(0, 1)
        (alone,) = backend.one.peer_copies(0, 1, nbytes, 1)
        with backend.neighbour("degrade", links=[links[0]], factor=0.3):
            (slow,) = backend.one.peer_copies(0, 1, nbytes, 1)
        assert alone / slow == backend.about(0.3)
        assert backend.one.peer_copies(0, 1, nbytes, 1) == [backend.about(alone)]

    @pytest.mark.parametrize("share", [0.75, 0.5, 0.25])
    @pytest.mark.parametrize(
        ("lever", "bound", "free"), [("SM_CLOCK_MHZ", "sm", "hbm"), ("MEM_CLOCK_MHZ", "hbm", "sm")]
    )
    def test_kernels_slow_down_with_the_clock_they_are_bound_by(
        self, backend: Backend, lever: str, bound: str, free: str, share: float
    ) -> None:
        gpu, one, work_s = backend.gpu, backend.one, backend.copy_s
        clock = {"sm": "sm_clock", "hbm": "mem_clock"}[bound]
        best = getattr(gpu.card(0), f"{clock}_max_mhz")
        full = {each: one.kernel(0, each, work_s) for each in (bound, free)}
        with backend.neighbour("keep", card=0, levers=[f"{lever}={best * share}"]):
            info = gpu.card(0)
            assert getattr(info, f"{clock}_mhz") == backend.about(best * share)
            assert int(info.throttle) & Throttle.APPLICATIONS_CLOCKS
            assert one.kernel(0, bound, work_s) == backend.about(full[bound] / share)
            assert one.kernel(0, free, work_s) == backend.about(full[free])
        assert one.kernel(0, bound, work_s) == backend.about(full[bound])
        assert getattr(gpu.card(0), f"{clock}_mhz") == best

    def test_work_shows_in_utilisation_and_power(self, backend: Backend) -> None:
        gpu = backend.gpu
        with backend.neighbour("busy", shares=["sm:0"]):
            before = gpu.card(0)
            time.sleep(backend.window_s)
            during = gpu.card(0)
        assert during.gpu_util_percent > 90
        assert during.power_w > gpu.profile.idle_w
        assert during.energy_j > before.energy_j

    def test_what_a_card_reports_is_told_in_order(self, backend: Backend) -> None:
        last = max((event.serial for event in backend.gpu.events()), default=0)
        with backend.neighbour("keep", card=0, xids=[31, 43]):
            told = backend.gpu.events(after=last)
        assert [(event.card, event.type, event.data) for event in told] == [
            (0, EventType.XID, 31),
            (0, EventType.XID, 43),
        ]
        assert backend.gpu.card(0).last_xid == 43
