"""Exact bounds on the rate of bad requests, and what they say about the rate that is allowed.

`bad` of `of` requests were bad. Both bounds are one-sided Clopper-Pearson bounds at level `alpha`: the true
rate is below `upper` with confidence 1 − alpha, and above `lower` with confidence 1 − alpha. Requests that go
bad in bursts (a bad step hits a whole batch) carry less news than independent ones: a design effect D divides
both counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ALPHA = 0.05
MORE_THAN_ANYONE_SENDS = 10_000_000


@dataclass(frozen=True)
class Weighed:
    """What a count says: the outcome, both bounds on the true rate, and how many more requests settle it.

    `more` is 0 once it is settled, and None if no number of requests would settle it at this rate.
    """

    outcome: Literal["HELD", "BROKEN", "INCONCLUSIVE"]
    lower: float
    upper: float
    more: int | None


def upper_bound(bad: float, of: float, *, alpha: float = ALPHA, design_effect: float = 1.0) -> float:
    """The least rate that is too high to explain so few bad ones; 1 if nothing is known."""
    from scipy.stats import beta  # heavy: only when something is judged

    _refuse_impossible(bad, of, design_effect)
    if bad >= of:
        return 1.0
    return float(beta.ppf(1 - alpha, bad / design_effect + 1, (of - bad) / design_effect))


def lower_bound(bad: float, of: float, *, alpha: float = ALPHA, design_effect: float = 1.0) -> float:
    """The greatest rate that is too low to explain so many bad ones; 0 if nothing is known."""
    from scipy.stats import beta

    _refuse_impossible(bad, of, design_effect)
    if bad <= 0:
        return 0.0
    return float(beta.ppf(alpha, bad / design_effect, (of - bad) / design_effect + 1))


def weigh(bad: int, of: int, *, allowed: float, alpha: float = ALPHA, design_effect: float = 1.0) -> Weighed:
    """HELD if the true rate is surely at most `allowed`, BROKEN if it is surely above, else INCONCLUSIVE."""
    lower = lower_bound(bad, of, alpha=alpha, design_effect=design_effect)
    upper = upper_bound(bad, of, alpha=alpha, design_effect=design_effect)
    if upper <= allowed:
        return Weighed("HELD", lower, upper, 0)
    if lower > allowed:
        return Weighed("BROKEN", lower, upper, 0)
    more = more_needed(bad, of, allowed=allowed, alpha=alpha, design_effect=design_effect)
    return Weighed("INCONCLUSIVE", lower, upper, more)


def more_needed(
    bad: int, of: int, *, allowed: float, alpha: float = ALPHA, design_effect: float = 1.0
) -> int | None:
    """How many requests beyond `of` settle it if they go bad at the rate seen so far; None if none would."""
    rate = bad / of if of else 0.0

    def held(n: int) -> bool:
        return upper_bound(rate * n, n, alpha=alpha, design_effect=design_effect) <= allowed

    def broken(n: int) -> bool:
        return lower_bound(rate * n, n, alpha=alpha, design_effect=design_effect) > allowed

    least = _least(held if rate <= allowed else broken, start=max(of, 1))
    return None if least is None else least - of


def _least(settled: Callable[[int], bool], *, start: int) -> int | None:
    """The least n from `start` on that settles it; settled(n) stays true once it is."""
    if settled(start):
        return start
    unsettled, n = start, start * 2
    while not settled(n):
        unsettled, n = n, n * 2
        if n > MORE_THAN_ANYONE_SENDS:
            return None
    while n - unsettled > 1:
        middle = (unsettled + n) // 2
        unsettled, n = (unsettled, middle) if settled(middle) else (middle, n)
    return n


def _refuse_impossible(bad: float, of: float, design_effect: float) -> None:
    if not 0 <= bad <= of or not math.isfinite(of):
        raise ValueError(
            f"{bad} bad of {of}: there can't be more bad ones than requests, nor fewer than none"
        )
    if design_effect <= 0:
        raise ValueError(f"a design effect is above 0, got {design_effect}")
