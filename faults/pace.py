"""How fast something moves that a card only counts, from what was seen of it at the looks before.

A card has counters of replays, retries and corrected errors, and no rates. They never go back, so a fault that
moves one is there while it moves and gone when it stands still: that takes two looks, some time apart.
"""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

from faults.gpu.base import Gpu

WINDOW_S = 0.5  # the rate is over the latest such window
LEAST = 0.4  # over less than that of a window, it says nothing
STALE_S = 3.0  # a look so long ago belongs to another question
REACHED = 0.8  # of the asked rate: a window holds whole errors, and its ends are not theirs


class Pace:
    """Rates of counters, by the looks at them. What is remembered is gone once nobody looks for a while."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: WeakKeyDictionary[Gpu, dict[object, deque[tuple[float, float]]]] = WeakKeyDictionary()

    def per_s(self, gpu: Gpu, counter: object, count: float) -> float:
        """Take a look in: the counter stands at `count`. Its rate over the window; 0 if too little was seen."""
        now = node_now(gpu)
        looks = self._looks.setdefault(gpu, {}).setdefault(counter, deque())
        if looks and (now - looks[-1][0] > STALE_S or count < looks[-1][1]):
            looks.clear()
        looks.append((now, count))
        while len(looks) > 2 and now - looks[1][0] >= self._window_s:
            looks.popleft()
        then, before = looks[0]
        return (count - before) / (now - then) if now - then >= LEAST * self._window_s else 0.0


def node_now(gpu: Gpu) -> float:
    """The time on the node's clock."""
    return gpu.link(gpu.links()[0]).read_s
