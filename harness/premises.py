"""What must be so before anything else that was measured means something.

The run got to its end with the service up, and the load was offered as planned (and the fault was really
there: `effect`). If one of these is not so, the drill has not tested the service, whatever the service did.
"""

from __future__ import annotations

from harness.drill import Drill
from harness.history import History
from harness.observed import sample_quantile
from harness.verdict import Check, Claim, Finding

LATEST = 4  # no request may be later than so many times the bound on the p99


def run_complete() -> Check:
    """The run got to its end, uninterrupted."""
    claim = Claim("run.complete", "the run got to its end", "complete, uninterrupted")

    def look(history: History) -> Finding:
        interrupted = next(history.of_kind("interrupted"), None)
        if interrupted is not None:
            by = interrupted.get("signal") or "a signal"
            return claim.inconclusive(
                f"interrupted at {interrupted['t']:.1f} s", f"the run was cut short by {by}"
            )
        failure = next(history.of_kind("failure"), None)
        if failure is not None:
            why = failure.get("reason") or "no reason given"
            return claim.inconclusive(f"failed at {failure['t']:.1f} s", f"the run was cut short: {why}")
        blind = next((e for e in history.of_kind("sample_failure") if not e.get("transient")), None)
        if blind is not None:
            why = f"the {blind.get('source')} samples failed: {blind.get('reason') or 'no reason given'}"
            return claim.inconclusive(f"failed at {blind['t']:.1f} s", why)
        if not history.complete:
            last = (
                f"its last event is at {history.events[-1]['t']:.1f} s"
                if history.events
                else "it has no event"
            )
            return claim.inconclusive(last, "the run was cut short")
        return claim.held(f"complete after {history.events[-1]['t']:.1f} s")

    return Check(claim, look)


def load_kept_up(drill: Drill) -> Check:
    """Every planned request was sent, and on time in each phase: by its own word, and by what was recorded."""
    most = drill.load.lateness_max_ms
    claim = Claim(
        "load.kept-up",
        "the load was offered as planned",
        f"all sent, p99 at most {most:g} ms late in every phase, none over {LATEST * most:g} ms",
    )

    def look(history: History) -> Finding:
        if failed := history.load("failed"):
            return claim.inconclusive(
                "", f"the load generator failed: {failed.get('reason') or 'no reason given'}"
            )
        finished = history.load("finished")
        if finished is None:
            return claim.inconclusive("", "the load generator never finished")
        started = history.load("started") or {}
        planned = finished.get("planned", started.get("planned"))
        sent, late = finished.get("sent"), finished.get("lateness_p99_ms")
        if planned is None or sent is None or late is None:
            return claim.inconclusive(
                "", "the load generator did not say what it planned, sent and how late it was"
            )
        phase, worst, latest = _lateness(history)
        measured = f"{sent} of {planned} sent, p99 {late:.0f} ms late"
        by_phase = f"{measured}; {worst:.0f} ms in {phase}, at most {latest:.0f} ms"
        numbers = {
            "planned": planned,
            "sent": sent,
            "lateness_p99_ms": late,
            "lateness_p99_ms_worst_phase": worst,
            "lateness_max_ms": latest,
        }
        if sent != planned or not late <= most:
            return claim.inconclusive(measured, "the load generator could not keep up", **numbers)
        if worst > most:
            return claim.inconclusive(by_phase, f"the load generator could not keep up in {phase}", **numbers)
        if latest > LATEST * most:
            return claim.inconclusive(by_phase, "the load generator stalled", **numbers)
        return claim.held(measured, **numbers)

    return Check(claim, look)


def _lateness(history: History) -> tuple[str, float, float]:
    """The phase that was offered latest and its p99, and the latest request of all; in ms, by the requests."""
    late = [
        (float(request["due"]), (float(request["sent"]) - float(request["due"])) * 1000)
        for request in history.of_kind("request")
        if request.get("sent") is not None
    ]
    phases = []
    for window in history.windows():
        here = [ms for due, ms in late if due in window]
        if here:
            name = " ".join(filter(None, (window.phase, window.step)))
            phases.append((sample_quantile(here, 0.99), name))
    worst, phase = max(phases, default=(0.0, "no phase"))
    return phase, worst, max((ms for _, ms in late), default=0.0)


def service_stayed_up() -> Check:
    """The bundled service ran until it was told to stop, and said goodbye."""
    claim = Claim("run.service-stayed-up", "the service ran until it was told to stop", "it did not die")

    def look(history: History) -> Finding:
        told = {str(event["event"]): event for event in history.of_kind("service")}
        if died := told.get("died"):
            code, words = died.get("exit_code"), str(died.get("last_words") or "no last words")
            return claim.broken(f"ended by itself before {died['t']:.1f} s, exit code {code}", words[-300:])
        if "stopped" not in told:
            return claim.inconclusive("", "the service did not say goodbye")
        return claim.held(f"said goodbye at {told['stopped']['t']:.1f} s")

    return Check(claim, look)
