"""One fault from off to on to off, on a clock that moves only when somebody waits."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from faults.base import Effect, Fault
from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode
from faults.noop import Noop
from faults.nvlink import NvlinkDegrade
from faults.pcie import PcieSaturation
from faults.vram import VramOom
from harness.drill import Step
from harness.effect import took_effect
from harness.errors import OwnFailure
from harness.history import Event
from harness.lifecycle import HELD_LOOK_EVERY_S, LOOK_EVERY_S, Lifecycle
from harness.recorder import Recorder
from harness.run import Interrupted

HOLD_S, WITHIN_S = 8.0, 5.0


@dataclass
class Card:
    """Stands in for a node, and for the clock and the waiting as well. Remembers what was done to it."""

    now: float = 1000.0
    disturbed: bool = False
    since: float = -math.inf  # when that last changed
    looks: int = 0
    waited: list[float] = field(default_factory=list)
    interrupt_at: float = math.inf  # from then on every wait raises

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, until: float) -> None:
        if until >= self.interrupt_at:
            self.now = max(self.now, self.interrupt_at)
            raise Interrupted("SIGINT")
        self.waited.append(until)
        self.now = max(self.now, until)

    def disturb(self, on: bool) -> None:
        self.disturbed, self.since = on, self.now


class Scripted(Fault):
    """A fault that shows late, never, or for too long, and fails where it is told to."""

    kind: Literal["scripted"] = "scripted"
    shows_after_s: float = 0.5
    fades_after_s: float = 0.25
    fail_at: Literal["inject", "effect", "undo", "after"] | None = None
    measures: bool = True
    lost_s: tuple[float, float] | None = None  # when it is off while it is held, after it was injected
    left_for_s: float = 0.0  # for how long something of it is left after the undo
    unreadable_from_s: float = 1e9

    @contextmanager
    def inject(self, gpu: Any) -> Iterator[None]:
        if self.fail_at == "inject":
            raise RuntimeError("no such lever")
        gpu.disturb(True)
        try:
            yield
        finally:
            gpu.disturb(False)
            if self.fail_at == "undo":
                raise RuntimeError("the lever is stuck")

    def took_effect(self, gpu: Any) -> Effect:
        gpu.looks += 1
        if self.fail_at == ("effect" if gpu.disturbed else "after"):
            raise RuntimeError("telemetry is gone")
        past = gpu.now - gpu.since
        if gpu.disturbed and past >= self.unreadable_from_s:
            raise RuntimeError("telemetry is gone")
        left = 0.0 if gpu.disturbed or past >= self.left_for_s else 3.0
        if gpu.disturbed and self.lost_s and self.lost_s[0] <= past < self.lost_s[1]:
            return Effect(False, 0.8, 0.1, "share", None, "lost")
        visible = past >= self.shows_after_s if gpu.disturbed else past < self.fades_after_s
        dose = 0.9 if self.measures else math.nan
        since_s = gpu.since + self.shows_after_s if visible else None
        return Effect(visible, 0.8, dose if visible else 0.1, "share", since_s, "as told", left)


def a_step(fault: Fault | None = None, **settings: Any) -> Step:
    """A step with a fault that is no kind of a drill's."""
    given: dict[str, Any] = {
        "id": "one",
        "at_s": 0.0,
        "hold_s": HOLD_S,
        "effect_within_s": WITHIN_S,
    } | settings
    given["fault"] = fault or Scripted()
    return Step.model_construct(None, **given)


@pytest.fixture
def card() -> Card:
    return Card()


@pytest.fixture
def recorder(tmp_path: Path, card: Card) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "history.jsonl", card.clock)
    yield recorder
    recorder.close()


@pytest.fixture
def play(card: Card, recorder: Recorder) -> Callable[..., list[Event]]:
    """Runs a step to its end and gives the edges, in order."""

    def run(fault: Fault | None = None, **settings: Any) -> list[Event]:
        gpu: Any = card
        Lifecycle(gpu, recorder, card.wait, card.clock, card.sleep).run(a_step(fault, **settings))
        return edges_of(recorder)

    return run


def edges_of(recorder: Recorder) -> list[Event]:
    return list(recorder.history().of_kind("fault"))


def names(edges: list[Event]) -> list[str]:
    return [edge["edge"] for edge in edges]


def test_a_fault_is_injected_held_from_when_it_shows_undone_and_seen_to_be_gone(play: Any) -> None:
    edges = play()
    assert names(edges) == ["injecting", "active", "rolling_back", "gone"]
    injecting, active, undo, gone = edges
    assert injecting["fault"]["kind"] == "scripted"
    assert active["effect_t"] == 0.5
    assert {name: active[name] for name in ("asked", "measured", "unit", "detail")} == {
        "asked": 0.8, "measured": 0.9, "unit": "share", "detail": "as told",
    }  # fmt: skip
    assert undo["t"] - active["t"] == pytest.approx(HOLD_S)
    assert 0.25 <= gone["t"] - undo["t"] <= 0.25 + 2 * LOOK_EVERY_S


def test_a_fault_that_lasts_is_seen_to_until_the_undo(play: Any, card: Card) -> None:
    undo = play()[2]
    assert (undo["held"], undo["weakest"]) == (True, 0.9)
    assert undo["looks"] == pytest.approx(HOLD_S / HELD_LOOK_EVERY_S, abs=2)


def test_a_fault_that_is_lost_while_it_is_held_is_told_and_held_on(play: Any) -> None:
    edges = play(Scripted(lost_s=(3.0, 99.0)))
    assert names(edges) == ["injecting", "active", "lost", "rolling_back", "gone"]
    lost, undo = edges[2:4]
    assert lost["t"] == pytest.approx(3.0, abs=2 * HELD_LOOK_EVERY_S)
    assert lost["measured"] == 0.1
    assert lost["reason"].startswith("no longer visible at the asked dose")
    assert (undo["held"], undo["weakest"]) == (False, 0.1)
    assert undo["t"] - edges[1]["t"] == pytest.approx(HOLD_S)


def test_a_fault_that_comes_back_was_lost_all_the_same(play: Any) -> None:
    edges = play(Scripted(lost_s=(3.0, 4.0)))
    assert names(edges) == ["injecting", "active", "lost", "rolling_back", "gone"]
    assert (edges[3]["held"], edges[3]["weakest"]) == (True, 0.1)


def test_a_fault_that_can_no_longer_be_looked_at_is_not_told_as_held(play: Any, card: Card) -> None:
    edges = play(Scripted(unreadable_from_s=3.0))
    assert names(edges) == ["injecting", "active", "rolling_back", "broken", "gone"]
    assert edges[2]["held"] is False
    assert not card.disturbed


def test_a_fault_of_which_something_is_left_is_not_gone(play: Any) -> None:
    undo, gone = play(Scripted(left_for_s=2.0))[2:]
    assert gone["edge"] == "gone"
    assert gone["t"] - undo["t"] == pytest.approx(2.0, abs=2 * LOOK_EVERY_S)
    edges = play(Scripted(left_for_s=99))
    assert edges[-1]["edge"] == "broken"
    assert edges[-1]["reason"] == "some of it is left (3) 5 s after the undo"


def test_a_fault_that_never_shows_is_waited_for_as_long_as_the_step_says_and_not_held(
    play: Any, card: Card
) -> None:
    edges = play(Scripted(shows_after_s=99))
    assert names(edges) == ["injecting", "no_effect", "rolling_back", "gone"]
    assert edges[1]["measured"] == 0.1
    assert edges[1]["t"] - edges[0]["t"] == pytest.approx(WITHIN_S, abs=2 * LOOK_EVERY_S)
    assert not card.disturbed


def test_a_fault_that_cannot_be_injected_is_broken_with_its_reason_and_still_looked_for(play: Any) -> None:
    edges = play(Scripted(fail_at="inject"))
    assert names(edges) == ["injecting", "broken", "rolling_back", "gone"]
    assert edges[1]["reason"] == "RuntimeError: no such lever"


def test_a_fault_whose_effect_cannot_be_read_is_undone(play: Any, card: Card) -> None:
    edges = play(Scripted(fail_at="effect"))
    assert names(edges) == ["injecting", "rolling_back", "broken", "gone"]
    assert edges[2]["reason"] == "RuntimeError: telemetry is gone"
    assert not card.disturbed


def test_an_undo_that_raises_is_broken_even_if_the_effect_goes(play: Any) -> None:
    edges = play(Scripted(fail_at="undo"))
    assert names(edges) == ["injecting", "active", "rolling_back", "broken", "gone"]
    assert edges[3]["reason"] == "RuntimeError: the lever is stuck"


def test_an_effect_that_stays_after_the_undo_is_broken_with_its_dose(play: Any) -> None:
    edges = play(Scripted(fades_after_s=99))
    assert names(edges) == ["injecting", "active", "rolling_back", "broken"]
    assert (edges[3]["reason"], edges[3]["measured"]) == ("still there 5 s after the undo", 0.9)
    assert edges[3]["t"] - edges[2]["t"] == pytest.approx(WITHIN_S, abs=2 * LOOK_EVERY_S)


def test_an_end_that_nobody_can_see_is_broken_not_gone(play: Any) -> None:
    edges = play(Scripted(fail_at="after"))
    assert names(edges) == ["injecting", "active", "rolling_back", "broken"]
    assert edges[3]["reason"] == "can't see whether it is gone: RuntimeError: telemetry is gone"


def test_a_dose_that_is_no_number_is_told_as_none(play: Any) -> None:
    edges = play(Scripted(measures=False))
    assert names(edges) == ["injecting", "active", "rolling_back", "gone"]
    assert edges[1]["measured"] is None


MOMENTS = {
    "while the effect is awaited": (0.2, ["injecting", "rolling_back", "gone"]),
    "while it is held": (4.0, ["injecting", "active", "rolling_back", "gone"]),
    "while its end is awaited": (8.7, ["injecting", "active", "rolling_back", "gone"]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_undoes_the_fault_sees_it_gone_and_then_goes_on(
    moment: str, play: Any, card: Card, recorder: Recorder
) -> None:
    after_s, expected = MOMENTS[moment]
    card.interrupt_at = card.now + after_s
    with pytest.raises(Interrupted, match="SIGINT"):
        play()
    edges = edges_of(recorder)
    assert names(edges) == expected
    assert not card.disturbed
    assert edges[-1]["t"] - edges[-2]["t"] <= 0.25 + 2 * LOOK_EVERY_S


def test_an_interruption_does_not_hide_that_the_effect_stays(
    play: Any, card: Card, recorder: Recorder
) -> None:
    card.interrupt_at = card.now + 4.0
    with pytest.raises(Interrupted):
        play(Scripted(fades_after_s=99))
    assert names(edges_of(recorder)) == ["injecting", "active", "rolling_back", "broken"]


def test_a_fault_whose_intent_is_not_on_disk_is_not_injected(
    play: Any, card: Card, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_file", FullDisk())
    with pytest.raises(OwnFailure, match="No space left on device"):
        play()
    assert names(edges_of(recorder)) == ["injecting", "gone"]
    assert edges_of(recorder)[1]["reason"] == "it was not injected: its intent is not on disk"
    assert card.since == -math.inf, "it was injected"


def test_a_disk_that_fills_up_while_the_fault_is_on_does_not_keep_it_on(
    play: Any, card: Card, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = card.wait

    def full_from_now_on(until: float) -> None:
        wait(until)
        monkeypatch.setattr(recorder, "_file", FullDisk())

    monkeypatch.setattr(card, "wait", full_from_now_on)
    assert names(play()) == ["injecting", "active", "rolling_back", "gone"]
    assert not card.disturbed
    with pytest.raises(OwnFailure):
        recorder.check()


@pytest.mark.parametrize(
    ("fail_at", "expected"),
    [
        (None, ["injecting", "no_effect", "rolling_back", "gone"]),
        ("inject", ["injecting", "broken", "rolling_back", "gone"]),
        ("effect", ["injecting", "rolling_back", "broken", "broken"]),
        ("undo", ["injecting", "no_effect", "rolling_back", "broken", "gone"]),
    ],
)
def test_the_no_op_fault_fails_where_it_is_told_to_and_each_time_it_shows(
    fail_at: Any, expected: list[str], play: Any
) -> None:
    assert names(play(Noop(fail_at=fail_at))) == expected


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_and_whenever_it_is_interrupted_no_fault_is_left_on(
    seed: int, play: Any, card: Card, recorder: Recorder
) -> None:
    stream = random.Random(seed)
    for n in range(5):
        card.interrupt_at = card.now + stream.choice([math.inf, stream.uniform(0, 15)])
        scripted = Scripted(
            shows_after_s=stream.choice([0, 0.5, 99]),
            fades_after_s=stream.choice([0, 0.25, 99]),
            fail_at=stream.choice([None, "inject", "effect", "undo", "after"]),
        )
        noop = Noop(fail_at=stream.choice([None, "inject", "effect", "undo"]))
        before = len(edges_of(recorder))
        try:
            play(stream.choice([scripted, noop]), id=f"step-{n}")
        except Interrupted:
            assert card.now >= card.interrupt_at
        told = names(edges_of(recorder))[before:]
        assert not card.disturbed
        assert told[0] == "injecting"
        assert told[-1] in ("gone", "broken")
        assert told.count("rolling_back") == 1


@pytest.mark.parametrize(
    "fault", [VramOom(), PcieSaturation(), NvlinkDegrade()], ids=lambda fault: fault.kind
)
@pytest.mark.parametrize("killed", [False, True])
def test_on_a_node_a_fault_lasts_until_the_undo_unless_its_neighbour_is_killed(
    killed: bool, fault: Fault, tmp_path: Path
) -> None:
    """And a service that frees memory, or copies a lot, does not make it look lost."""
    recorder = Recorder(tmp_path / "history.jsonl")
    with SimNode.create(tmp_path / "node", cards=2) as node:
        ours = node.alloc(0, 10 * MIB)

        def wait(until: float) -> None:
            nonlocal ours
            time.sleep(max(until - time.monotonic(), 0.0))
            if recorder.history().edge("one", "active") and ours:
                node.free(ours)
                ours = None
                node.start([("pcie:0:h2d", math.inf)] * 5)
                for pid in node.neighbours() if killed else ():
                    os.kill(pid, signal.SIGKILL)

        Lifecycle(node, recorder, wait).run(a_step(fault, hold_s=0.5))
    recorder.close()
    edges = edges_of(recorder)
    assert ("lost" in names(edges)) == killed
    assert names(edges)[-1] == "gone"
    undo = recorder.history().edge("one", "rolling_back")
    assert undo is not None
    assert undo["held"] is not killed
    outcome = took_effect(a_step(fault)).look(recorder.history()).outcome
    assert outcome == ("INCONCLUSIVE" if killed else "HELD")


class FullDisk:
    """A file on a full disk."""

    closed = False

    def write(self, line: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        pass
