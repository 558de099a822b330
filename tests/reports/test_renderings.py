"""One run in four renderings: text, page, JUnit, JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from harness.judge import judge
from reports.html import html_page
from reports.json_report import json_line
from reports.junit import junit_xml
from reports.summary import Summary, summarise
from reports.text import text_report
from tests.builders import a_drill, a_history, a_lost_request, a_response, an_slo, breaker, requests

DRILL = a_drill(
    slos=[an_slo(quantile=0.9, max=500), an_slo("direct_dma_ratio", max=0.1)], responses=[a_response()]
)
EVIL = "</script><script>alert(1)</script>"


def told(**history: Any) -> tuple[Summary, Any, Any]:
    """By default: a breaker that stays open, and a metric without data."""
    made = a_history(drill=DRILL, **({"breakers": [breaker(10.6, "open")]} | history))
    next(made.of_kind("drill"))["file"] = "scenarios/burst-survives-vram.yaml"
    verdict = judge(DRILL, made)
    return summarise(DRILL, made, verdict), made, verdict


def test_the_text_begins_with_the_recovery_and_tells_what_was_asked_and_measured() -> None:
    text = text_report(told()[0], page=Path("runs/x/report.html"), width=160)
    lines = text.splitlines()
    assert lines[0] == "burst-survives-vram  local world"
    assert lines[3].startswith("vram: not shown to recover after 10.0 s of vram_oom")
    assert re.search(
        r"✗ BROKEN +response.vram.memory.closed-again +within 5 s +still open 22.0 s after", text
    )
    assert re.search(r"∅ VACUOUS +slo.fault.vram.direct_dma_ratio +≤ 10 %", text)
    assert re.search(
        r"  HELD +slo.fault.vram.ttft_ms.p90 +≤ 500 ms +p90 100 ms; 0 of 105 requests over 500 ms", text
    )
    assert " FAIL  14 held, 1 broken, 1 vacuous" in text


def test_the_text_says_what_the_run_stands_for_and_how_to_repeat_it() -> None:
    text = text_report(told()[0], page=Path("runs/x/report.html"))
    assert "vram was simulated (vram_oom)." in text
    assert "  certifies: " in text
    assert "  does not certify: " in text
    assert text.splitlines()[-3:] == [
        "page    runs/x/report.html",
        "repeat  brownout run scenarios/burst-survives-vram.yaml --world local --seed 0",
        "repeat  pytest scenarios/burst-survives-vram.yaml",
    ]


def test_the_text_has_no_escape_codes_where_there_is_no_terminal() -> None:
    assert "\x1b" not in text_report(told()[0])


def test_square_brackets_in_what_was_measured_are_shown_as_they_are() -> None:
    assert "processes: ['hog']" in text_report(told(leftover={"processes": ["hog"]})[0])


def test_junit_has_a_case_per_finding_and_what_was_not_shown_is_an_error() -> None:
    summary, _, verdict = told()
    suites = ET.fromstring(junit_xml(summary))
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("16", "1", "1")
    cases = {case.get("name"): case for case in suites.iter("testcase")}
    assert list(cases) == [finding.id for finding in verdict.findings]
    failure = cases["response.vram.memory.closed-again"].find("failure")
    error = cases["slo.fault.vram.direct_dma_ratio"].find("error")
    assert failure is not None
    assert error is not None
    assert failure.get("message") == "BROKEN: breaker still open"
    assert error.get("type") == "VACUOUS"
    properties = {p.get("name"): p.get("value") for p in cases["load.kept-up"].iter("property")}
    assert properties["measured"] == "400 of 400 sent, p99 4 ms late"
    assert properties["planned"] == "400"


def test_junit_survives_control_characters() -> None:
    broken = [{"kind": "fidelity", "t": 41.0, "id": "r\x00\x1b1", "equal": False}]
    ET.fromstring(junit_xml(told(more=broken)[0]))


def test_json_is_one_line_that_strict_readers_read() -> None:
    lost = requests(100, start=10.5, make=a_lost_request)
    outage = [*requests(105), *lost, *requests(195, start=20.5)]  # its p90 is infinite
    summary, _, verdict = told(requests=outage)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json_line(summary, verdict)
    read = json.loads(line, parse_constant=refuse)
    assert "\n" not in line
    assert (read["status"], read["exit_code"], read["drill"]) == ("FAIL", 1, "burst-survives-vram")
    finding = next(f for f in read["findings"] if f["id"] == "slo.fault.vram.ttft_ms.p90")
    assert (finding["numbers"]["value"], finding["numbers"]["bad"]) == (None, 100)
    assert read["recovery"][0]["recovered_s"] is None


class Page(HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.policy = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.links += [told[name] or "" for name in ("src", "href", "action", "srcset") if name in told]
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"] or ""
        if tag == "script" and told.get("type") != "application/json":
            self._script = ""

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self._script += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._script is not None:
            self.scripts.append(self._script)
            self._script = None


def test_the_page_fetches_nothing_and_runs_only_its_own_two_scripts() -> None:
    summary, history, _ = told()
    page = Page(html_page(summary, DRILL, history))
    assert all(link == "data:," or link.startswith("#") for link in page.links)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert len(hashes) == 2
    assert all(f"'sha256-{digest}'" in page.policy for digest in hashes)
    assert page.policy.startswith("default-src 'none';")
    assert "unsafe" not in page.policy


def test_the_page_begins_with_the_recovery_and_has_every_finding() -> None:
    summary, history, verdict = told()
    text = html_page(summary, DRILL, history)
    assert text.index("not shown to recover") < text.index("<h1>")
    assert all(f'id="{finding.id}"' in text for finding in verdict.findings)
    assert "brownout run scenarios/burst-survives-vram.yaml" in text
    assert len(text) < 300_000


@pytest.mark.parametrize("field", ["model", "rung", "id"])
def test_what_a_service_says_cannot_become_part_of_the_page(field: str) -> None:
    made = requests(20)
    made[0] |= {field: EVIL}
    unequal = {"kind": "fidelity", "t": 41.0, "id": EVIL, "equal": False}
    summary, history, _ = told(requests=made, more=[unequal])
    assert len(Page(html_page(summary, DRILL, history)).scripts) == 2


def test_a_history_with_nothing_in_it_still_makes_every_report() -> None:
    from harness.history import History

    history = History.of([{"kind": "drill", "t": 0.0, "drill": {}}])
    verdict = judge(DRILL, history)
    summary = summarise(DRILL, history, verdict)
    assert "UNKNOWN" in text_report(summary)
    assert "UNKNOWN" in html_page(summary, DRILL, history)
    assert "INCONCLUSIVE" in junit_xml(summary)
    assert json.loads(json_line(summary, verdict))["status"] == "UNKNOWN"


def test_a_drill_without_faults_is_reported_too() -> None:
    drill = a_drill(timeline=[])
    history = a_history(drill=drill, faults=[], breakers=[])
    summary = summarise(drill, history, judge(drill, history))
    assert " PASS  9 held" in text_report(summary)
    assert "PASS" in html_page(summary, drill, history)


def test_a_drill_that_came_from_no_file_is_repeated_by_what_the_run_kept_of_it() -> None:
    made = a_history(drill=DRILL)
    kept = Path("runs/x/drill.yaml")
    assert summarise(DRILL, made, judge(DRILL, made), kept=kept).repeat == (
        "brownout run runs/x/drill.yaml --world local",
        "pytest runs/x/drill.yaml --drill-world local",
    )
