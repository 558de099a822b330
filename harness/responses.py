"""What the service must do: open the right breaker in time, close it again, and raise no false alarm.

Detection is counted from the moment the fault had taken effect, closing from the moment it was gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.drill import Response
from harness.history import Event, History
from harness.premises import effect_time
from harness.verdict import Check, Claim, Finding


@dataclass(frozen=True)
class Span:
    """One breaker's moves while one step concerns it: from the injection to the next step's or the end."""

    start: float
    end: float
    before: str  # its state at the start
    moves: tuple[Event, ...]

    @classmethod
    def of(cls, history: History, breaker: str, start: float) -> Span:
        later = [
            float(e["t"]) for e in history.of_kind("fault") if e["edge"] == "injecting" and e["t"] > start
        ]
        end = min(later, default=float(history.events[-1]["t"]))
        moves = [move for move in history.of_kind("breaker") if move["name"] == breaker and move["t"] <= end]
        earlier = [str(move["now"]) for move in moves if move["t"] < start]
        return cls(
            start, end, earlier[-1] if earlier else "closed", tuple(m for m in moves if m["t"] >= start)
        )

    @property
    def flaps(self) -> int:
        """How often it opened from closed, beyond the first time."""
        opened = sum(move["now"] == "open" and move.get("was") == "closed" for move in self.moves)
        return int(max(opened - 1, 0))

    def state(self, t: float) -> str:
        """Its state just before `t`."""
        return next((str(move["now"]) for move in reversed(self.moves) if move["t"] < t), self.before)

    def closed_for_good(self) -> float | None:
        """From when on it is closed until the span's end; None if it ends otherwise."""
        if self.state(float("inf")) != "closed":
            return None
        unclosed = [i for i, move in enumerate(self.moves) if move["now"] != "closed"]
        first_closed = unclosed[-1] + 1 if unclosed else 0
        if not unclosed and self.before == "closed":
            return self.start
        return float(self.moves[first_closed]["t"])


def detected(response: Response) -> Check:
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
        opened = next((move for move in span.moves if move["now"] == "open"), None)
        if opened is None and span.before != "closed":
            return claim.inconclusive("", f"the breaker was already {span.before} when the fault began")
        if opened is None:
            return claim.broken("", "breaker never opened", flaps=0)
        late_ms = (float(opened["t"]) - effect_time(active)) * 1000
        numbers = {"latency_ms": max(late_ms, 0.0), "opened_t": opened["t"], "flaps": span.flaps}
        early = f" ({-late_ms:.0f} ms before the full dose)" if late_ms < 0 else ""
        measured = f"opened after {max(late_ms, 0.0):.0f} ms{early}"
        if late_ms > response.detected_within_ms:
            return claim.broken(measured, "breaker opened too late", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def closed_again(response: Response) -> Check:
    """The breaker closed within its time from the fault's end, and stayed closed."""
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
        if span.before == "closed" and not any(move["now"] == "open" for move in span.moves):
            return claim.vacuous("", "the breaker never opened, so there was nothing to close")
        closed, watched_s = span.closed_for_good(), span.end - float(gone["t"])
        if closed is None:
            state = span.state(float("inf"))
            measured = f"still {state} {watched_s:.1f} s after the fault was gone"
            if watched_s < response.closed_within_s:
                return claim.inconclusive(
                    measured, "nobody watched for as long as it may take", flaps=span.flaps
                )
            return claim.broken(measured, f"breaker still {state}", watched_s=watched_s, flaps=span.flaps)
        took_s = max(closed - float(gone["t"]), 0.0)
        numbers = {"took_s": took_s, "closed_t": closed, "flaps": span.flaps}
        measured = f"closed {took_s:.1f} s after the fault was gone" + (
            f", {span.flaps} flaps" if span.flaps else ""
        )
        if took_s > response.closed_within_s:
            return claim.broken(measured, "breaker closed too late", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def no_false_alarm() -> Check:
    """No breaker opened while nothing was wrong."""
    claim = Claim(
        "response.no-false-alarm", "no breaker opens before a fault", "none in the baseline", "baseline"
    )

    def look(history: History) -> Finding:
        baseline = history.window("baseline", None)
        if baseline is None:
            return claim.inconclusive("", "the run has no baseline")
        alarms = [m for m in history.of_kind("breaker") if m["t"] < baseline.end and m["now"] == "open"]
        if alarms:
            told = ", ".join(
                f"{m['name']} at {m['t']:.1f} s ({m.get('reason') or 'no reason'})" for m in alarms
            )
            return claim.broken(told, "a breaker opened without cause", alarms=len(alarms))
        return claim.held(f"none in {baseline.end - baseline.start:.1f} s", alarms=0)

    return Check(claim, look)
