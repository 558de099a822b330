"""How an SLO is put into words: the id of its finding, the sentence it claims, and its numbers with units."""

from __future__ import annotations

from collections.abc import Collection

from harness.binomial import Weighed
from harness.drill import Slo
from harness.metrics import METRICS
from harness.observed import NEVER
from harness.verdict import Claim


def claim_of(slo: Slo, step: str | None, *, name: str, taken: Collection[str] = ()) -> Claim:
    """The claim of an SLO at a step. Its id changes only if the SLO does, and is none of those `taken`."""
    of = f"p{slo.quantile * 100:g}" if METRICS[slo.metric].needs_quantile and slo.quantile else ""
    where = {"baseline": "in the baseline", "fault": f"while {step} is on", "recovery": f"after {step}"}
    what = f"{' '.join(filter(None, (slo.metric, of)))} keeps within its bound {where[slo.phase]}"
    later = f", from {slo.after_s:g} s on" if slo.after_s else ""
    phase = "" if name == "steady-state" else slo.phase
    base = ".".join(filter(None, (name, phase, step, slo.metric, of)))
    side = "min" if slo.min is not None else "max"
    names = [
        base,
        f"{base}.{side}",
        f"{base}.after-{slo.after_s:g}s",
        *(f"{base}.{n}" for n in range(2, 100)),
    ]
    free = next(name for name in names if name not in taken)
    return Claim(free, what + later, _asked(slo), slo.phase, step)


def said(metric: str, value: float) -> str:
    """A number of that metric, for people: `412 ms`, `3.1 %`, `never`."""
    if value == NEVER:
        return "never"
    if METRICS[metric].unit == "ratio":
        return f"{value * 100:.3g} %"
    return f"{value:.0f} {METRICS[metric].unit}" if value >= 100 else f"{value:.3g} {METRICS[metric].unit}"


def relative_bound(slo: Slo, baseline: float, limit: float) -> str:
    """Where a relative bound comes from, with both numbers; nothing for an absolute one."""
    if slo.max_ratio is None:
        return ""
    slack = f" + {said(slo.metric, slo.slack)}" if slo.slack else ""
    base = f"{slo.max_ratio:g} × the baseline's {said(slo.metric, baseline)}"
    return f"; bound {base}{slack} = {said(slo.metric, limit)}"


def too_few(weighed: Weighed, allowed: float) -> str:
    """Why a count settles nothing, and what would."""
    between = f"the true share of bad requests is between {weighed.lower:.1%} and {weighed.upper:.1%}"
    if allowed <= 0:
        return f"{between}; no number of requests can show that there is never one: allow a small share"
    if weighed.more is None:
        return f"{between}; this close to the {allowed:.1%} allowed, no number of requests would settle it"
    return f"{between}, {allowed:.1%} may be; about {weighed.more} more requests at this rate would settle it"


def _asked(slo: Slo) -> str:
    if slo.max_ratio is not None:
        slack = f" + {said(slo.metric, slo.slack)}" if slo.slack else ""
        return f"≤ {slo.max_ratio:g} × baseline{slack}"
    return (
        f"≤ {said(slo.metric, slo.max)}" if slo.max is not None else f"≥ {said(slo.metric, slo.min or 0.0)}"
    )
