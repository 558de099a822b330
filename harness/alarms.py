"""What the service must not do: open a breaker without cause, before a fault or on another part's."""

from __future__ import annotations

from harness.history import Event, History
from harness.spans import step_end
from harness.verdict import Check, Claim, Finding


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
            return claim.broken(_told(alarms), "a breaker opened without cause", alarms=len(alarms))
        return claim.held(f"none in {baseline.end - baseline.start:.1f} s", alarms=0)

    return Check(claim, look)


def containment(step: str, expected: frozenset[str]) -> Check:
    """From the step's injection to the next one's, no breaker opened but those it is the cause of."""
    claim = Claim(
        f"response.{step}.containment",
        f"{step} opens no other breaker than its own",
        f"only {', '.join(sorted(expected))}, until the next fault",
        "fault",
        step,
    )

    def look(history: History) -> Finding:
        injecting = history.edge(step, "injecting")
        if injecting is None:
            return claim.vacuous("", "the step was never begun")
        start = float(injecting["t"])
        end = step_end(history, start)
        alarms = [
            move
            for move in history.of_kind("breaker")
            if start <= move["t"] <= end and move["now"] == "open" and move["name"] not in expected
        ]
        if alarms:
            return claim.broken(_told(alarms), "another breaker opened", alarms=len(alarms))
        return claim.held(f"no other in {end - start:.1f} s", alarms=0)

    return Check(claim, look)


def _told(moves: list[Event]) -> str:
    return ", ".join(f"{m['name']} at {m['t']:.1f} s ({m.get('reason') or 'no reason'})" for m in moves)
