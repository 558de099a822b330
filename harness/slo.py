"""Judging an SLO over a history: one check per SLO and window it speaks of.

Requests are a sample of what the service does, so a bound on them is HELD or BROKEN only if the exact
binomial bounds leave no doubt (`binomial`). Totals are counted, so they are simply compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness import observed, totals
from harness.binomial import ALPHA, weigh
from harness.claims import claim_of, relative_bound, said, too_few
from harness.drill import Drill, Slo
from harness.history import Event, History, Window
from harness.metrics import METRICS

# What reports show of single requests is what was judged: this is their door to it.
from harness.observed import value_ms as value_ms
from harness.observed import waited_ms as waited_ms
from harness.verdict import Check, Claim, Finding

CONFIDENCE = 1 - ALPHA
SETTLING_STEP_S = 0.5
KV_COUNTERS = {"direct_dma_ratio": "direct_dma_bytes", "staged_ratio": "staged_dma_bytes"}


def checks(
    drill: Drill, slos: Sequence[Slo], *, name: str = "slo", design_effect: float = 1.0
) -> Iterator[Check]:
    """One check per SLO and step; an SLO that names no step is checked at each of them."""
    taken: set[str] = set()
    for slo in slos:
        each = [slo.step] if slo.step else [step.id for step in drill.timeline]
        for step in [None] if slo.phase == "baseline" else each:
            claim = claim_of(slo, step, name=name, taken=taken)
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
        whole = history.window(self.slo.phase, self.step)
        if whole is None:
            of = f" of {self.step}" if self.step else ""
            return self.claim.vacuous("", f"the run has no {self.slo.phase} phase{of}")
        window = whole.after(self.slo.after_s)
        if window.end <= window.start:
            return self.claim.vacuous("", f"the phase was over before {self.slo.after_s:g} s had passed")
        baseline = self._baseline(history)
        limit = self._limit(baseline)
        if self.slo.max_ratio is not None and METRICS[self.slo.metric].unit == "ratio" and limit >= 1:
            allowed = f"the bound would be {said(self.slo.metric, limit)}, which allows everything"
            return self.claim.inconclusive(f"baseline {said(self.slo.metric, baseline)}", allowed)
        if not math.isfinite(limit):
            reason = f"the baseline has no {self.slo.metric} to compare with"
            return self.claim.inconclusive(f"baseline {said(self.slo.metric, baseline)}", reason)
        if METRICS[self.slo.metric].shape == "total":
            return self._unless_gaps(history, window) or self._compared(
                self._ratio(history, window), baseline, limit
            )
        return self._sampled(history, whole, window, baseline, limit)

    def _unless_gaps(self, history: History, window: Window) -> Finding | None:
        """A total over samples that do not cover their window settles nothing."""
        source = totals.source_of(self.slo.metric)
        if not any(event["source"] == source for event in history.of_kind("sample")):
            return None  # there are none at all, which is told in other words
        compared_with = history.window("baseline", None) if self.slo.max_ratio is not None else None
        for each in filter(None, (window, compared_with)):
            if gap := totals.gap(history, each, source=source):
                return self.claim.inconclusive("", gap)
        return None

    def _compared(self, ratio: totals.Ratio, baseline: float, limit: float) -> Finding:
        """Counted, not sampled: compared as it is."""
        if ratio.missing:
            return self.claim.vacuous("", ratio.missing)
        at_least = self.slo.min is not None
        measured = said(self.slo.metric, ratio.value) + relative_bound(self.slo, baseline, limit)
        numbers = {"value": ratio.value, "part": ratio.part, "whole": ratio.whole, "bound": limit}
        if ratio.value < limit if at_least else ratio.value > limit:
            side = "below" if at_least else "above"
            return self.claim.broken(measured, f"{side} {said(self.slo.metric, limit)}", **numbers)
        if ratio.untested and self.slo.phase == "fault":
            return self.claim.vacuous(measured, ratio.untested, **numbers)
        return self.claim.held(measured, **numbers)

    def _sampled(
        self, history: History, whole: Window, window: Window, baseline: float, limit: float
    ) -> Finding:
        """Each request is good or bad, and so many may be bad."""
        requests = observed.requests_due(history, window)
        judged = [found for r in requests if (found := self._is_bad(r, limit)) is not None]
        if not judged:
            return self.claim.vacuous("", f"no data for {self.slo.metric}: no request in the window has it")
        bad, of, allowed = sum(judged), len(judged), self._allowed(limit)
        value = self._seen(requests)
        weighed = weigh(bad, of, allowed=allowed, design_effect=self.design_effect)
        measured = self._measured(value, bad, of, limit) + relative_bound(self.slo, baseline, limit)
        numbers: dict[str, object] = {
            "metric": self.slo.metric,
            "quantile": self.slo.quantile,
            "value": value,
            "bound": limit,
            "bad": bad,
            "of": of,
            "allowed": allowed,
            "lower": weighed.lower,
            "upper": weighed.upper,
            "design_effect": self.design_effect,  # 1: the confidence assumes independent requests
        }
        if self.slo.phase == "recovery":
            numbers["recovered_s"] = self._recovered_s(history, whole, limit, held=weighed.outcome == "HELD")
        if self.slo.metric == "error_ratio" and (unanswered := observed.why_unanswered(requests)):
            measured += f"; not answered: {unanswered}"
        if weighed.outcome == "HELD":
            return self.claim.held(measured, confidence=CONFIDENCE, **numbers)
        if weighed.outcome == "BROKEN":
            reason = f"surely at least {weighed.lower:.1%} of requests are bad; {allowed:.1%} may be"
            return self.claim.broken(measured, reason, confidence=CONFIDENCE, **numbers)
        reason = too_few(weighed, allowed)
        return self.claim.inconclusive(measured, reason, more_needed=weighed.more, **numbers)

    def _recovered_s(self, history: History, window: Window, limit: float, *, held: bool) -> float | None:
        """From how many seconds after the fault's end on the SLO surely held; None if that was not shown.

        A fixed sequence of tests, from late to early, each on the requests that follow, stopping at the first
        that does not hold: an upper bound of the time to recover, at the confidence of one test. It begins with
        the claim itself if that `held`, else in the middle of the phase.
        """
        allowed = self._allowed(limit)
        if not 0 < allowed < 1:
            return None
        least = math.ceil(math.log(ALPHA) / math.log(1 - allowed) * self.design_effect)  # HELD needs so many
        judged = [(float(r["due"]), self._is_bad(r, limit)) for r in observed.requests_due(history, window)]
        latest_s = self.slo.after_s if held else max(self.slo.after_s, (window.end - window.start) / 2)
        shown: float | None = latest_s if held else None
        for back in range(1 if held else 0, int(latest_s / SETTLING_STEP_S) + 1):
            after_s = latest_s - back * SETTLING_STEP_S
            next_ones = [bad for due, bad in judged if due >= window.start + after_s and bad is not None]
            next_ones = next_ones[: 3 * least]
            weighed = weigh(sum(next_ones), len(next_ones), allowed=allowed, design_effect=self.design_effect)
            if weighed.outcome != "HELD":
                break
            shown = after_s
        return shown

    def _is_bad(self, request: Event, limit: float) -> bool | None:
        """Whether this request is one of those of which only so many may be; None if it says nothing."""
        metric, at_least = self.slo.metric, self.slo.min is not None
        if METRICS[metric].shape == "share":
            one_of_them = observed.counts_as(metric, request)
            return None if one_of_them is None else one_of_them != at_least
        value = value_ms(metric, request)
        if value is not None:
            return value == observed.NEVER or (value < limit if at_least else value > limit)
        cancelled = request["outcome"] == "cancelled" and metric != "tpot_ms" and not at_least
        return True if cancelled and waited_ms(request) > limit else None

    def _allowed(self, limit: float) -> float:
        """The share of requests that may be bad."""
        if METRICS[self.slo.metric].shape == "value":
            return 1 - (self.slo.quantile or 0.0)
        return 1 - limit if self.slo.min is not None else limit

    def _seen(self, requests: Sequence[Event]) -> float:
        """The sample's own quantile or share; NaN if no request has one."""
        if METRICS[self.slo.metric].shape == "value":
            values = (value_ms(self.slo.metric, request) for request in requests)
            return observed.sample_quantile((v for v in values if v is not None), self.slo.quantile or 0.0)
        counted = [yes for r in requests if (yes := observed.counts_as(self.slo.metric, r)) is not None]
        return sum(counted) / len(counted) if counted else math.nan

    def _measured(self, value: float, bad: int, of: int, limit: float) -> str:
        metric, quantile = self.slo.metric, self.slo.quantile
        if METRICS[metric].shape == "share":
            of_them = of - bad if self.slo.min is not None else bad
            return f"{said(metric, value)} ({of_them} of {of} requests)"
        side = "under" if self.slo.min is not None else "over"
        quantile_said = f"p{(quantile or 0) * 100:g} {said(metric, value)}"
        return f"{quantile_said}; {bad} of {of} requests {side} {said(metric, limit)}"

    def _limit(self, baseline: float) -> float:
        """The bound in the metric's unit; NaN or infinite if the baseline it is relative to has no number."""
        if self.slo.max_ratio is not None:
            return self.slo.max_ratio * baseline + self.slo.slack
        return float(self.slo.max if self.slo.max is not None else self.slo.min or 0.0)

    def _baseline(self, history: History) -> float:
        """The same number over the baseline; NaN if there is none, or if nobody asks."""
        window = history.window("baseline", None)
        if window is None or self.slo.max_ratio is None:
            return math.nan
        if METRICS[self.slo.metric].shape == "total":
            return self._ratio(history, window).value
        return self._seen(observed.requests_due(history, window))

    def _ratio(self, history: History, window: Window) -> totals.Ratio:
        metric = self.slo.metric
        if metric in KV_COUNTERS:
            return totals.kv_share(history, window, sent=KV_COUNTERS[metric], metric=metric)
        if metric == "running_most":
            return totals.most_running(history, window)
        steps = [self.drill.step(self.step)] if self.step else list(self.drill.timeline)
        weak = [link for step in steps for link in step.fault.weakens()]
        return totals.weak_links(history, window, weak)
