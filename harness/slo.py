"""Judging an SLO over a history: one check per SLO and window it speaks of.

Requests are a sample of what the service does, so a bound on them is HELD or BROKEN only if the exact
binomial bounds leave no doubt (`binomial`). Totals are counted, so they are simply compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness import observed
from harness.binomial import ALPHA, Weighed, weigh
from harness.drill import Drill, Slo
from harness.history import History, Window
from harness.metrics import METRICS

# What reports show of single requests is what was judged: this is their door to it.
from harness.observed import requests_due as requests_due
from harness.observed import sample_quantile as sample_quantile
from harness.observed import value_ms as value_ms
from harness.observed import waited_ms as waited_ms
from harness.verdict import Check, Claim, Finding

CONFIDENCE = 1 - ALPHA


def checks(
    drill: Drill, slos: tuple[Slo, ...], *, name: str = "slo", design_effect: float = 1.0
) -> Iterator[Check]:
    """One check per SLO and step; an SLO that names no step is checked at each of them."""
    taken: set[str] = set()
    for slo in slos:
        steps = (
            [None] if slo.phase == "baseline" else [slo.step] if slo.step else [s.id for s in drill.timeline]
        )
        for step in steps:
            claim = _claim(slo, step, name, taken)
            taken.add(claim.id)
            yield Check(claim, SloAt(drill, slo, step, claim, design_effect))


@dataclass(frozen=True)
class SloAt:
    """An SLO at one step (None: the baseline)."""

    drill: Drill
    slo: Slo
    step: str | None
    claim: Claim
    design_effect: float = 1.0

    def __call__(self, history: History) -> Finding:
        window = history.window(self.slo.phase, self.step)
        if window is None:
            return self.claim.vacuous(
                "", f"the run has no {self.slo.phase} phase" + (f" of {self.step}" if self.step else "")
            )
        window = window.after(self.slo.after_s)
        if window.end <= window.start:
            return self.claim.vacuous("", f"the phase was over before {self.slo.after_s:g} s had passed")
        weigh_shape = {"value": self._values, "share": self._share, "total": self._total}
        return weigh_shape[METRICS[self.slo.metric].shape](history, window)

    def _values(self, history: History, window: Window) -> Finding:
        """Each request is good or bad by its value; the quantile says how many may be bad."""
        metric, quantile = self.slo.metric, self.slo.quantile or 0.5
        limit = self._limit(history)
        if not math.isfinite(limit):
            return self._no_baseline()
        requests = observed.requests_due(history, window)
        values = [observed.value_ms(metric, request) for request in requests]
        judged = [v for v in values if v is not None]
        overdue = sum(  # cancelled by our client, but only after the bound had passed
            value is None
            and metric != "tpot_ms"
            and self.slo.min is None
            and observed.waited_ms(request) > limit
            for value, request in zip(values, requests, strict=True)
        )
        bad = overdue + sum(
            v < limit or v == observed.NEVER if self.slo.min is not None else v > limit for v in judged
        )
        of = len(judged) + overdue
        if of == 0:
            return self.claim.vacuous("", f"no data for {metric}: no request in the window has one")
        seen = observed.sample_quantile(judged + [observed.NEVER] * overdue, quantile)
        weighed = weigh(bad, of, allowed=1 - quantile, design_effect=self.design_effect)
        side = "under" if self.slo.min is not None else "over"
        measured = (
            f"p{quantile * 100:g} {_said(metric, seen)}; {bad} of {of} requests {side} {_said(metric, limit)}"
            f"{self._relative_to(history)}"
        )
        return self._weighed(weighed, measured, bad, of, allowed=1 - quantile, quantile=seen, bound=limit)

    def _share(self, history: History, window: Window) -> Finding:
        """Each request is one of them or not; the bound is the share itself."""
        limit = self._limit(history)
        if not math.isfinite(limit):
            return self._no_baseline()
        counted = self._counted(history, window)
        of, of_them = len(counted), sum(counted)
        if of == 0:
            return self.claim.vacuous("", f"no data for {self.slo.metric}: no request in the window counts")
        at_least = self.slo.min is not None
        bad, allowed = (of - of_them, 1 - limit) if at_least else (of_them, limit)
        weighed = weigh(bad, of, allowed=allowed, design_effect=self.design_effect)
        measured = (
            f"{_said(self.slo.metric, of_them / of)} ({of_them} of {of} requests){self._relative_to(history)}"
        )
        return self._weighed(weighed, measured, bad, of, allowed=allowed, value=of_them / of, bound=limit)

    def _total(self, history: History, window: Window) -> Finding:
        """Counted, not sampled: compared as it is."""
        limit = self._limit(history)
        ratio = self._ratio(history, window)
        if ratio.missing:
            return self.claim.vacuous("", ratio.missing)
        if not math.isfinite(limit):
            return self._no_baseline()
        measured = f"{_said(self.slo.metric, ratio.value)}{self._relative_to(history)}"
        numbers = {"value": ratio.value, "part": ratio.part, "whole": ratio.whole, "bound": limit}
        if ratio.value < limit if self.slo.min is not None else ratio.value > limit:
            side = "below" if self.slo.min is not None else "above"
            return self.claim.broken(
                measured, f"{side} the bound of {_said(self.slo.metric, limit)}", **numbers
            )
        return self.claim.held(measured, **numbers)

    def _limit(self, history: History) -> float:
        """The bound in the metric's unit; NaN or infinite if the baseline it is relative to has no number."""
        if self.slo.max_ratio is None:
            return float(self.slo.max if self.slo.max is not None else self.slo.min or 0.0)
        return self.slo.max_ratio * self._baseline(history) + self.slo.slack

    def _baseline(self, history: History) -> float:
        """The same number over the baseline; NaN if there is none."""
        window = history.window("baseline", None)
        if window is None:
            return math.nan
        shape = METRICS[self.slo.metric].shape
        if shape == "total":
            return self._ratio(history, window).value
        if shape == "share":
            counted = self._counted(history, window)
            return sum(counted) / len(counted) if counted else math.nan
        values = (observed.value_ms(self.slo.metric, r) for r in observed.requests_due(history, window))
        return observed.sample_quantile((v for v in values if v is not None), self.slo.quantile or 0.5)

    def _counted(self, history: History, window: Window) -> list[bool]:
        counted = (observed.counts_as(self.slo.metric, r) for r in observed.requests_due(history, window))
        return [yes for yes in counted if yes is not None]

    def _ratio(self, history: History, window: Window) -> observed.Ratio:
        if self.slo.metric == "direct_dma_ratio":
            return observed.direct_dma(history, window)
        steps = [self.drill.step(self.step)] if self.step else list(self.drill.timeline)
        weak = [link for step in steps for link in getattr(step.fault, "links", ())]
        return observed.weak_links(history, window, weak)

    def _relative_to(self, history: History) -> str:
        if self.slo.max_ratio is None:
            return ""
        slack = f" + {_said(self.slo.metric, self.slo.slack)}" if self.slo.slack else ""
        base, limit = self._baseline(history), self._limit(history)
        return (
            f"; bound {self.slo.max_ratio:g} × the baseline's {_said(self.slo.metric, base)}{slack}"
            f" = {_said(self.slo.metric, limit)}"
        )

    def _no_baseline(self) -> Finding:
        return self.claim.inconclusive("", f"the baseline has no {self.slo.metric} to compare with")

    def _weighed(
        self, weighed: Weighed, measured: str, bad: int, of: int, *, allowed: float, **numbers: float
    ) -> Finding:
        numbers |= {"bad": bad, "of": of, "allowed": allowed, "lower": weighed.lower, "upper": weighed.upper}
        if weighed.outcome == "HELD":
            return self.claim.held(measured, confidence=CONFIDENCE, **numbers)
        if weighed.outcome == "BROKEN":
            reason = f"surely at least {weighed.lower:.1%} of requests are bad; {allowed:.1%} may be"
            return self.claim.broken(measured, reason, confidence=CONFIDENCE, **numbers)
        return self.claim.inconclusive(
            measured, _too_few(weighed, allowed), more_needed=weighed.more, **numbers
        )


def _claim(slo: Slo, step: str | None, name: str, taken: set[str]) -> Claim:
    """Its id is stable: it changes only if the SLO does."""
    of = f" p{slo.quantile * 100:g}" if METRICS[slo.metric].needs_quantile and slo.quantile else ""
    where = {"baseline": "in the baseline", "fault": f"while {step} is on", "recovery": f"after {step}"}[
        slo.phase
    ]
    later = f", from {slo.after_s:g} s on" if slo.after_s else ""
    parts = [name, *([] if name == "steady-state" else [slo.phase]), step or "", slo.metric, of.strip()]
    base = ".".join(part for part in parts if part)
    ids = [base, f"{base}.{'min' if slo.min is not None else 'max'}", f"{base}.after-{slo.after_s:g}s"]
    free = [i for i in ids if i not in taken] or [
        f"{base}.{n}" for n in range(2, 99) if f"{base}.{n}" not in taken
    ]
    return Claim(
        free[0], f"{slo.metric}{of} keeps within its bound {where}{later}", _asked(slo), slo.phase, step
    )


def _asked(slo: Slo) -> str:
    if slo.max_ratio is not None:
        slack = f" + {_said(slo.metric, slo.slack)}" if slo.slack else ""
        return f"≤ {slo.max_ratio:g} × baseline{slack}"
    return (
        f"≤ {_said(slo.metric, slo.max)}" if slo.max is not None else f"≥ {_said(slo.metric, slo.min or 0.0)}"
    )


def _said(metric: str, value: float) -> str:
    """For people: `412 ms`, `3.1 %`."""
    if value == observed.NEVER:
        return "never"
    if METRICS[metric].unit == "ratio":
        return f"{value * 100:.3g} %"
    return f"{value:.0f} {METRICS[metric].unit}" if value >= 100 else f"{value:.3g} {METRICS[metric].unit}"


def _too_few(weighed: Weighed, allowed: float) -> str:
    between = f"the true share of bad requests is between {weighed.lower:.1%} and {weighed.upper:.1%}"
    if allowed <= 0:
        return f"{between}; no number of requests can show that there is never one: allow a small share"
    if weighed.more is None:
        return f"{between}; this close to the {allowed:.1%} allowed, no number of requests would settle it"
    return f"{between}, {allowed:.1%} may be; about {weighed.more} more requests at this rate would settle it"
