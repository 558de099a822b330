"""How the service recovered from each fault: the first line of every report."""

from __future__ import annotations

from dataclasses import dataclass

from harness.drill import Step
from harness.history import ANSWERED, History
from harness.verdict import Finding, Verdict


@dataclass(frozen=True)
class Recovery:
    """How one step went; times are seconds after the fault was gone where nothing else is said.

    `recovered_s` is the last of what is known: breaker closed, last lower-rung answer, SLOs shown to hold.
    None: one of them did not come about before the next step or the end, or nothing is known.
    """

    step: str
    fault: str
    on_s: float | None  # how long it was on at its full dose; None: never
    detected_ms: float | None  # breaker open, after the effect
    breaker_closed_s: float | None
    last_downgraded_s: float | None  # 0: none was
    slo_kept_s: float | None  # from when on the recovery's SLOs were shown to hold
    recovered_s: float | None
    missing: tuple[str, ...] = ()  # what did not come about
    injected: bool = True

    @property
    def headline(self) -> str:
        """`recovered in 3.1 s`, `not shown to recover`, `no effect` or `never injected`."""
        if not self.injected:
            return "never injected"
        if self.on_s is None:
            return "no effect"
        return (
            "not shown to recover" if self.recovered_s is None else f"recovered in {self.recovered_s:.1f} s"
        )

    @property
    def details(self) -> str:
        """What the headline rests on."""
        parts = [
            (self.detected_ms, "breaker open after {:.0f} ms"),
            (self.breaker_closed_s, "closed {:.1f} s after the fault"),
            (self.last_downgraded_s or None, "last lower-rung answer due at {:.1f} s"),
            (self.slo_kept_s, "SLOs kept from {:.1f} s on"),
        ]
        told = [words.format(value) for value, words in parts if value is not None]
        return ", ".join([*told, *self.missing]) if self.injected else ""

    def __str__(self) -> str:
        after = f" after {self.on_s:.1f} s of {self.fault}" if self.on_s is not None else f" of {self.fault}"
        return f"{self.step}: {self.headline}{after}" + (f" ({self.details})" if self.details else "")


def recovery_of(step: Step, history: History, verdict: Verdict) -> Recovery:
    """What a history and its verdict say about the recovery from one step."""
    active, undo = (history.edge(step.id, edge) for edge in ("active", "rolling_back"))
    on_s = float((undo or history.events[-1])["t"] - active["t"]) if active else None
    missing: list[str] = []

    responses = [f for f in verdict.findings if f.id.startswith(f"response.{step.id}.")]
    detected = _worst(responses, "latency_ms", "breaker not opened", missing, among=".detected")
    closed = _worst(responses, "took_s", "breaker not closed", missing, among=".closed-again")
    slos = [f for f in verdict.findings if f.id.startswith(f"slo.recovery.{step.id}.") and "of" in f.numbers]
    kept = _worst(slos, "recovered_s", "SLOs not shown to hold again", missing)
    downgraded, still = _downgraded(step.id, history)
    if still:
        missing.append("the last answer is still a lower rung's")

    known = [seconds for seconds in (closed, downgraded, kept) if seconds is not None]
    gone = history.edge(step.id, "gone") is not None
    recovered = max(known) if gone and known and not missing else None
    return Recovery(
        step.id,
        step.fault.kind,
        on_s,
        detected,
        closed,
        downgraded,
        kept,
        recovered,
        tuple(missing),
        history.edge(step.id, "injecting") is not None,
    )


def _worst(
    findings: list[Finding], number: str, otherwise: str, missing: list[str], *, among: str = ""
) -> float | None:
    """The largest of that number; None if there is none, or if a finding lacks it, which is then missing."""
    numbers = [finding.numbers.get(number) for finding in findings if finding.id.endswith(among)]
    known = [float(n) for n in numbers if n is not None]
    if len(known) < len(numbers):
        missing.append(otherwise)
        return None
    return max(known, default=None)


def _downgraded(step: str, history: History) -> tuple[float | None, bool]:
    """When the last lower-rung answer of the recovery was due, and whether it is the last answer of all."""
    window = history.window("recovery", step)
    answers = [
        (float(request["due"]), request["rung"] != "full")
        for request in history.of_kind("request")
        if window and request["due"] in window and request["outcome"] in ANSWERED and request.get("rung")
    ]
    if window is None or not answers:
        return None, False
    lower = [due - window.start for due, is_lower in answers if is_lower]
    return max(lower, default=0.0), max(answers)[1]
