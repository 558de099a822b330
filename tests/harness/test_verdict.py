"""What findings amount to, and how a verdict reads."""

from __future__ import annotations

import json
import math

import pytest

from harness.verdict import Check, Claim, Finding, Outcome, Verdict

CLAIM = Claim("slo.fault.vram.ttft_ms.p90", "ttft_ms p90 keeps within its bound", "≤ 500 ms")


def of(*outcomes: Outcome) -> Verdict:
    return Verdict(
        tuple(Finding(f"f{n}", "it holds", "yes", "", o) for n, o in enumerate(outcomes)), "a-drill"
    )


@pytest.mark.parametrize(
    ("outcomes", "status", "exit_code"),
    [
        (["HELD", "HELD"], "PASS", 0),
        (["HELD", "INCONCLUSIVE"], "UNKNOWN", 2),
        (["HELD", "VACUOUS"], "UNKNOWN", 2),
        (["INCONCLUSIVE", "BROKEN", "VACUOUS"], "FAIL", 1),
        ([], "UNKNOWN", 2),
    ],
    ids=["all-held", "inconclusive", "vacuous", "one-broken", "nothing-found"],
)
def test_the_worst_finding_wins(outcomes: list[Outcome], status: str, exit_code: int) -> None:
    verdict = of(*outcomes)
    assert (verdict.status, verdict.exit_code, verdict.passed) == (status, exit_code, status == "PASS")


def test_a_verdict_reads_as_its_status_and_what_did_not_hold_broken_first() -> None:
    verdict = Verdict(
        (
            CLAIM.held("p90 100 ms"),
            CLAIM.vacuous("", "fault did not take effect"),
            CLAIM.broken("p90 900 ms", "surely at least 13.7% of requests are bad"),
        ),
        "burst",
    )
    assert str(verdict).splitlines() == [
        "FAIL burst: 1 held, 1 broken, 1 vacuous",
        "  BROKEN slo.fault.vram.ttft_ms.p90: ttft_ms p90 keeps within its bound; asked ≤ 500 ms,"
        " measured p90 900 ms (surely at least 13.7% of requests are bad)",
        "  VACUOUS slo.fault.vram.ttft_ms.p90: ttft_ms p90 keeps within its bound; asked ≤ 500 ms,"
        " measured nothing (fault did not take effect)",
    ]


def test_numbers_that_json_cannot_hold_become_null() -> None:
    finding = CLAIM.held("never", value=math.inf, mean=math.nan, of=3, deep=[{"x": -math.inf}])
    plain = Verdict((finding,)).plain()
    assert plain["findings"][0]["numbers"] == {"value": None, "mean": None, "of": 3, "deep": [{"x": None}]}
    json.dumps(plain, allow_nan=False)


def test_a_check_that_raises_is_inconclusive() -> None:
    def look(history: object) -> Finding:
        raise ZeroDivisionError("no requests")

    finding = Check(CLAIM, look)(None)  # type: ignore[arg-type]
    assert (finding.outcome, finding.reason) == (
        "INCONCLUSIVE",
        "the check itself failed: ZeroDivisionError: no requests",
    )


def test_a_finding_that_is_not_there_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="f0, f1"):
        of("HELD", "HELD").finding("f2")
