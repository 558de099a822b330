"""A verdict: the findings, in order, and their worst.

A finding is one claim about a run, with what was asked, what was measured and how it came out:

    HELD           shown to be so
    BROKEN         shown not to be so
    INCONCLUSIVE   too little evidence, or evidence that can't be trusted
    VACUOUS        nothing happened that could have tested it

A verdict is FAIL if anything is BROKEN, else UNKNOWN if anything is not HELD, else PASS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness.history import History

Outcome = Literal["HELD", "BROKEN", "INCONCLUSIVE", "VACUOUS"]
Status = Literal["PASS", "FAIL", "UNKNOWN"]
EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}


@dataclass(frozen=True)
class Finding:
    """One claim, weighed. `asked`, `measured` and `reason` are for people, `numbers` for machines.

    `confidence` is that of HELD and BROKEN where they rest on a sample, and None where they were counted.
    """

    id: str
    what: str
    asked: str
    measured: str
    outcome: Outcome
    reason: str = ""
    phase: str = "run"
    step: str | None = None
    confidence: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """JSON-ready; a number that JSON can't hold (NaN, infinity) is null."""
        return {name: _finite(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        measured = self.measured or "nothing"
        said = f"{self.outcome} {self.id}: {self.what}; asked {self.asked}, measured {measured}"
        return f"{said} ({self.reason})" if self.reason else said


@dataclass(frozen=True)
class Claim:
    """What a finding is about, before anyone looked."""

    id: str
    what: str
    asked: str
    phase: str = "run"
    step: str | None = None

    def held(self, measured: str, /, *, confidence: float | None = None, **numbers: Any) -> Finding:
        return self._found("HELD", measured, "", confidence, numbers)

    def broken(
        self, measured: str, reason: str, /, *, confidence: float | None = None, **numbers: Any
    ) -> Finding:
        return self._found("BROKEN", measured, reason, confidence, numbers)

    def inconclusive(self, measured: str, reason: str, /, **numbers: Any) -> Finding:
        return self._found("INCONCLUSIVE", measured, reason, None, numbers)

    def vacuous(self, measured: str, reason: str, /, **numbers: Any) -> Finding:
        return self._found("VACUOUS", measured, reason, None, numbers)

    def _found(
        self, outcome: Outcome, measured: str, reason: str, confidence: float | None, numbers: dict[str, Any]
    ) -> Finding:
        return Finding(
            self.id,
            self.what,
            self.asked,
            measured,
            outcome,
            reason,
            self.phase,
            self.step,
            confidence,
            numbers,
        )


@dataclass(frozen=True)
class Check:
    """A claim and how to look at a history for it. A look that fails settles nothing."""

    claim: Claim
    look: Callable[[History], Finding]

    def __call__(self, history: History) -> Finding:
        try:
            return self.look(history)
        except Exception as error:
            return self.claim.inconclusive("", f"the check itself failed: {type(error).__name__}: {error}")


@dataclass(frozen=True, repr=False)
class Verdict:
    """The findings of one run of one drill, and what they amount to."""

    findings: tuple[Finding, ...]
    drill: str = ""

    @property
    def status(self) -> Status:
        outcomes = {finding.outcome for finding in self.findings}
        if "BROKEN" in outcomes:
            return "FAIL"
        return "PASS" if outcomes == {"HELD"} else "UNKNOWN"

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 2 UNKNOWN."""
        return EXIT_CODES[self.status]

    def of_outcome(self, *outcomes: Outcome) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome in outcomes]

    def finding(self, finding_id: str) -> Finding:
        """The finding of that id; KeyError naming those there are."""
        for finding in self.findings:
            if finding.id == finding_id:
                return finding
        raise KeyError(f"no finding {finding_id!r}; there are {', '.join(f.id for f in self.findings)}")

    def count(self) -> str:
        """How many of each outcome, e.g. `12 held, 1 broken`."""
        counted = [
            (len(self.of_outcome(o)), o.lower()) for o in ("HELD", "BROKEN", "INCONCLUSIVE", "VACUOUS")
        ]
        return ", ".join(f"{number} {outcome}" for number, outcome in counted if number) or "no findings"

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "drill": self.drill,
            "status": self.status,
            "exit_code": self.exit_code,
            "findings": [finding.plain() for finding in self.findings],
        }

    def __str__(self) -> str:
        """The status, then what is not HELD, the broken ones first."""
        return "\n".join([self._head(), *(f"  {finding}" for finding in self._unsettled())])

    def __repr__(self) -> str:
        """One short line, which is what pytest shows of `assert verdict.passed`."""
        unsettled = self._unsettled()
        why = f"; {unsettled[0].outcome} {unsettled[0].id}: {unsettled[0].reason}" if unsettled else ""
        more = f" and {len(unsettled) - 1} more" if len(unsettled) > 1 else ""
        return f"<{self._head()}{why}{more}>"

    def _head(self) -> str:
        return f"{self.status} {self.drill}".strip() + f": {self.count()}"

    def _unsettled(self) -> list[Finding]:
        return self.of_outcome("BROKEN") + self.of_outcome("INCONCLUSIVE", "VACUOUS")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
