"""What the service must do: open the right breaker in time, keep it open, and close it again.

Detection is counted from the moment the fault had taken effect, closing from the moment it was gone. Flapping,
and a breaker that trusts the node while its fault is still on, are as wrong as a breaker that is too slow.
"""

from __future__ import annotations

from typing import Any

from harness.drill import Response, Step
from harness.history import History, effect_time
from harness.spans import Span
from harness.verdict import Check, Claim, Finding

EARLY_S = 0.001  # the card and the service date a moment to within this
SHORT = 0.05  # an open time may be shorter by this share


def detected(response: Response, step: Step) -> Check:
    """The breaker opened within its time from the fault's effect."""
    claim = Claim(
        f"response.{response.step}.{response.breaker}.detected",
        f"the {response.breaker} breaker opens on {response.step}",
        f"within {response.detected_within_ms:g} ms",
        "fault",
        response.step,
    )

    def look(history: History) -> Finding:
        active, injecting = (history.edge(response.step, edge) for edge in ("active", "injecting"))
        if active is None:
            return claim.vacuous("", "the step has no effect to detect")
        span = Span.of(history, response.breaker, float((injecting or active)["t"]))
        if span.before != "closed":
            return claim.inconclusive("", f"the breaker was already {span.before} when the fault began")
        effect, opened = effect_time(active), span.opened
        late_ms = None if opened is None else (float(opened["t"]) - effect) * 1000
        in_time = late_ms is not None and late_ms <= response.detected_within_ms
        if not in_time and not _under_way(history, effect, effect + response.detected_within_ms / 1000):
            return claim.vacuous("", "no work touched it: no request was under way")
        if opened is None or late_ms is None:
            return claim.broken("", "breaker never opened", flaps=0)
        numbers = {"latency_ms": max(late_ms, 0.0), "opened_t": opened["t"], "flaps": span.flaps}
        early = f" ({-late_ms:.0f} ms before the full dose)" if late_ms < 0 else ""
        measured = f"opened after {max(late_ms, 0.0):.0f} ms{early}"
        if late_ms > response.detected_within_ms:
            return claim.broken(measured, "breaker opened too late", **numbers)
        if late_ms < -EARLY_S * 1000 and not step.fault.builds_up:
            return claim.broken(measured, "opened before the fault took effect", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def stays_open(response: Response, time_scale: float) -> Check:
    """Each time it opens, it stays open for as long as the response matrix says."""
    least_s = (response.open_for_s or 0.0) * time_scale
    scaled = f" ({response.open_for_s:g} s × {time_scale:g})" if time_scale != 1 else ""
    claim = Claim(
        f"response.{response.step}.{response.breaker}.stays-open",
        f"the {response.breaker} breaker stays open each time it opens on {response.step}",
        f"at least {least_s:g} s{scaled}, less {SHORT:.0%}",
        "fault",
        response.step,
    )

    def look(history: History) -> Finding:
        injecting = history.edge(response.step, "injecting")
        if injecting is None:
            return claim.vacuous("", "the step was never begun")
        spans = Span.of(history, response.breaker, float(injecting["t"])).open_for()
        if not spans:
            return claim.vacuous("", "the breaker never opened")
        numbers: dict[str, Any] = {"open_s": [seconds for seconds, _ in spans]}
        measured = f"open for {', '.join(f'{seconds:.1f} s' for seconds, _ in spans)}"
        short = [(seconds, known) for seconds, known in spans if seconds < least_s * (1 - SHORT)]
        if any(known for _, known in short):
            return claim.broken(measured, "the breaker did not stay open for its time", **numbers)
        if short:
            return claim.inconclusive(measured, "nobody watched until it moved on", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def closed_again(response: Response) -> Check:
    """The breaker closed within its time from the fault's end, not before it, and stayed closed."""
    claim = Claim(
        f"response.{response.step}.{response.breaker}.closed-again",
        f"the {response.breaker} breaker closes after {response.step} and stays closed",
        f"within {response.closed_within_s:g} s",
        "recovery",
        response.step,
    )

    def look(history: History) -> Finding:
        injecting, gone = (history.edge(response.step, edge) for edge in ("injecting", "gone"))
        if injecting is None or gone is None:
            return claim.vacuous("", "the fault's end is not known")
        span = Span.of(history, response.breaker, float(injecting["t"]))
        if span.before == "closed" and span.opened is None:
            return claim.vacuous("", "the breaker never opened, so there was nothing to close")
        # After the undo began, the fault may have been gone before we saw it.
        undo = float((history.edge(response.step, "rolling_back") or gone)["t"])
        if (early := span.closed_before(undo)) is not None:
            measured = f"closed {undo - early:.1f} s before the undo"
            return claim.broken(measured, "breaker closed while the fault was on", took_s=0.0)
        closed = span.closed_for_good()
        if closed is None:
            return _not_closed(claim, response, history, span, float(gone["t"]))
        took_s = max(closed - float(gone["t"]), 0.0)
        numbers = {"took_s": took_s, "closed_t": closed, "flaps": span.flaps}
        measured = f"closed {took_s:.1f} s after the fault was gone" + (
            f", {span.flaps} flaps" if span.flaps else ""
        )
        if span.flaps:
            return claim.broken(measured, "breaker opened again after it had closed", **numbers)
        if took_s > response.closed_within_s:
            return claim.broken(measured, "breaker closed too late", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def _not_closed(claim: Claim, response: Response, history: History, span: Span, gone: float) -> Finding:
    """Why it did not close: nobody waited, nobody asked, or it does not want to."""
    state, watched_s = span.state(float("inf")), span.end - gone
    measured = f"still {state} {watched_s:.1f} s after the fault was gone"
    if watched_s < response.closed_within_s:
        return claim.inconclusive(measured, "nobody watched for as long as it may take", flaps=span.flaps)
    since = max((float(move["t"]) for move in span.moves if move["now"] == state), default=span.start)
    asked = any(since <= request["due"] <= span.end for request in history.of_kind("request"))
    if state == "half_open" and not asked:
        return claim.inconclusive(measured, "nothing probed it: no request was due", flaps=span.flaps)
    return claim.broken(measured, f"breaker still {state}", watched_s=watched_s, flaps=span.flaps)


def _under_way(history: History, start: float, end: float) -> bool:
    """Whether any request was due or in flight in that time."""
    return any(request["due"] <= end and request["t"] >= start for request in history.of_kind("request"))
