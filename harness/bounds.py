"""Which bounds make sense for a metric: a bound that everything keeps, or nothing can be shown to keep, is none."""

from __future__ import annotations

from harness.metrics import METRICS


def senseless(metric: str, side: str, bound: float) -> str:
    """Why that bound says nothing, or can't be shown to hold; nothing if it can."""
    ratio, counted = METRICS[metric].unit == "ratio", METRICS[metric].shape == "total"
    if not ratio:
        return "" if bound > 0 else f"give a number of {METRICS[metric].unit} above 0"
    if bound == (0 if side == "max" else 1):
        never = "no number of requests can show it: allow a small share, e.g. " + (
            "max: 0.01" if side == "max" else "min: 0.99"
        )
        return "" if counted else never
    if 0 < bound < 1:
        return ""
    if bound in (0, 1):
        return "every ratio keeps within that"
    return f"it is a ratio, {as_share(bound)}"


def as_share(percent: float) -> str:
    """What a ratio is, and what a number that looks like a percentage would be as one."""
    return f"between 0 and 1; write {percent / 100:g} for {percent:g} %" if percent > 1 else "between 0 and 1"
