"""What no fault excuses."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history import Event
from harness.invariants import fidelity, nothing_left, truthful_labels
from tests.builders import a_drill, a_history, a_lost_request, a_request, service_side

DRILL = a_drill()


@pytest.mark.parametrize(("label", "value"), [("rung", None), ("model", "")])
def test_an_answer_without_its_labels_is_broken(label: str, value: Any) -> None:
    finding = truthful_labels(DRILL).look(a_history(requests=[a_request(4, **{label: value})]))
    assert (finding.outcome, finding.reason) == ("BROKEN", f"r4 lacks {label}")


def test_a_request_that_was_not_answered_needs_no_label() -> None:
    history = a_history(requests=[a_request(0), a_lost_request(1)])
    assert truthful_labels(DRILL).look(history).measured == "all 1 answers"


def test_an_answer_that_names_another_rung_than_the_service_recorded_is_broken() -> None:
    told = service_side([a_request(0), a_request(1, rung="light")])
    finding = truthful_labels(DRILL).look(a_history(requests=[a_request(0), a_request(1)], service=told))
    assert (finding.outcome, finding.reason) == ("BROKEN", "r1 says full and was made by light")


def test_labels_that_no_record_confirms_are_inconclusive() -> None:
    bare = [{name: v for name, v in e.items() if name != "rung"} for e in service_side([a_request(0)])]
    finding = truthful_labels(DRILL).look(a_history(requests=[a_request(0)], service=bare))
    assert finding.outcome == "INCONCLUSIVE"


def test_a_server_by_url_owes_no_rung() -> None:
    by_url = a_drill(target={"url": "http://localhost:8000"})
    assert truthful_labels(by_url).look(a_history(requests=[a_request(0, rung=None)])).outcome == "HELD"


def test_answers_asked_again_are_equal() -> None:
    assert fidelity(DRILL).look(a_history()).measured == "all 24 equal"


def test_one_answer_with_other_tokens_is_broken_and_named() -> None:
    wrong = {"kind": "fidelity", "t": 41.5, "id": "r77", "equal": False, "rung": "full"}
    finding = fidelity(DRILL).look(a_history(more=[wrong]))
    assert (finding.outcome, finding.measured, finding.reason) == ("BROKEN", "1 of 25 differ", "r77")


def asked_again(*equal: bool | None, rung: str | None = "full") -> list[Event]:
    kind = {"kind": "fidelity", "rung": rung, "reason": "HTTP status 503"}
    return [{"t": 41.5, "id": f"r{100 + n}", "equal": told, **kind} for n, told in enumerate(equal)]


@pytest.mark.parametrize("told", [[None], [True, None]])
def test_one_answer_that_could_not_be_had_again_is_inconclusive(told: list[bool | None]) -> None:
    finding = fidelity(DRILL).look(a_history(more=asked_again(*told)))
    assert finding.outcome == "INCONCLUSIVE"
    assert finding.reason == "1 could not be asked again: HTTP status 503"


def test_one_that_differs_is_broken_also_if_others_could_not_be_had_again() -> None:
    assert fidelity(DRILL).look(a_history(more=asked_again(None, False))).outcome == "BROKEN"


def test_fewer_than_were_to_be_compared_is_inconclusive() -> None:
    assert fidelity(DRILL).look(a_history(fidelity=23)).outcome == "INCONCLUSIVE"
    few = [a_request(n) for n in range(5)]
    assert fidelity(DRILL).look(a_history(requests=few, fidelity=5)).outcome == "HELD", "all there are"


def test_a_rung_that_answered_and_was_not_compared_is_inconclusive() -> None:
    both = [*(a_request(n) for n in range(30)), a_request(30, rung="light")]
    finding = fidelity(DRILL).look(a_history(requests=both))
    assert (finding.outcome, finding.reason) == ("INCONCLUSIVE", "no answer of light was among them")
    compared = fidelity(DRILL).look(a_history(requests=both, more=asked_again(True, rung="light")))
    assert compared.outcome == "HELD"


def test_without_rungs_a_difference_may_be_float_noise() -> None:
    told = a_history(fidelity=0, more=asked_again(*[True] * 23, False, rung=None))
    assert fidelity(DRILL).look(told).outcome == "INCONCLUSIVE"


def test_fidelity_that_nobody_checked_is_inconclusive() -> None:
    assert fidelity(DRILL).look(a_history(fidelity=0)).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("left", "outcome", "measured"),
    [
        ({"kv_blocks": 0, "processes": []}, "HELD", "no kv_blocks, processes"),
        ({"kv_blocks": 2, "memory_bytes": 4096}, "BROKEN", "kv_blocks: 2, memory_bytes: 4096"),
        ({"processes": ["hog"]}, "BROKEN", "processes: ['hog']"),
        ({"flows": 1}, "BROKEN", "flows: 1"),
        ({}, "INCONCLUSIVE", ""),
        ({"kv_blocks": "unknown: no goodbye", "ports": []}, "INCONCLUSIVE", ""),
        ({"kv_blocks": None, "ports": [8000]}, "BROKEN", "ports: [8000]"),
    ],
    ids=["nothing", "memory", "process", "flows", "untold", "unknown", "unknown-and-left"],
)
def test_what_is_left_behind_is_named(left: Event, outcome: str, measured: str) -> None:
    finding = nothing_left().look(a_history(leftover=left))
    assert (finding.outcome, finding.measured) == (outcome, measured)
