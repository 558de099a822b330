"""What the runner tells the engine of during a step: every transfer, with the driver's lock and clock added."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Many

from target.device import LinkReading
from target.plan import Route
from target.transfers import Transfers


class Watch:
    """The engine's ears during a step, with lock and clock added."""

    def __init__(self, transfers: Transfers, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self._transfers, self._lock, self._clock = transfers, lock, clock

    def begin_copy(self) -> int | None:
        with self._lock:
            return self._transfers.begin_copy(self._clock())

    def saw_copy(self, readings: Many[LinkReading]) -> None:
        with self._lock:
            self._transfers.saw_copy(readings, self._clock())

    def route(self) -> Route:
        with self._lock:
            return self._transfers.route(self._clock())

    def saw_exchange(self, readings: Many[LinkReading]) -> None:
        with self._lock:
            self._transfers.saw_exchange(readings, self._clock())
