"""The files of a run that people and CI read, beside its history: report.html, report.xml (JUnit), report.json."""

from __future__ import annotations

import json

from harness.drill import Drill
from harness.history import History
from harness.store import Run
from harness.verdict import Verdict
from reports.html import html_page
from reports.json_report import json_object
from reports.junit import junit_xml
from reports.summary import Summary, summarise


def write_reports(run: Run, drill: Drill, history: History, verdict: Verdict) -> Summary:
    """Write all three into the run's folder; what they say is returned for the terminal."""
    summary = summarise(drill, history, verdict, kept=run.drill_yaml)
    run.report_html.write_text(html_page(summary, drill, history), encoding="utf-8")
    run.report_xml.write_text(junit_xml(summary), encoding="utf-8")
    run.report_json.write_text(
        json.dumps(json_object(summary, verdict), indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    return summary
