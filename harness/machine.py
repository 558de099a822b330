"""Was the machine as free for the service in a window as in the baseline? Bounds relative to the baseline assume it.

The kernel counts, for each thread, how long it ran and how long it was ready to run but waited for a core. A service
that was made to wait much more than in the baseline was slowed down by something else than the fault.
"""

from __future__ import annotations

import math

from harness.history import History, Window
from harness.totals import growth

SLOWER_MOST = 1.15  # by waiting for a core, over the same in the baseline


def busier(history: History, phase: str, step: str | None) -> str | None:
    """In words, if other work slowed the service down more than in the baseline; None if not, or not measured."""
    now, before = history.window(phase, step), history.window("baseline", None)
    if now is None or before is None:
        return None
    slowed, usual = slowdown(history, now), slowdown(history, before)
    if math.isnan(slowed) or math.isnan(usual) or slowed <= usual * SLOWER_MOST:
        return None
    return (
        f"other work kept the service waiting for a core: it took {slowed:.2f} × its time on one, "
        f"{usual:.2f} × in the baseline"
    )


def slowdown(history: History, window: Window) -> float:
    """Time running and waiting for a core ÷ time running; 1 on a free machine, NaN without samples."""
    ran = growth(history, "service_ran_s", window, source="host")
    waited = growth(history, "service_waited_s", window, source="host")
    return 1 + waited / ran if ran > 0 else math.nan
