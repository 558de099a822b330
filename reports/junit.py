"""The verdict as JUnit XML: one test suite per drill, one test case per finding.

BROKEN is a failure. INCONCLUSIVE and VACUOUS are errors, never skips: a CI job that only counts failures
must not take what was not shown for a pass.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from harness.verdict import Finding
from reports.summary import Summary

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(summary: Summary) -> str:
    """The whole document."""
    failures = sum(finding.outcome == "BROKEN" for finding in summary.findings)
    errors = sum(finding.outcome in ("INCONCLUSIVE", "VACUOUS") for finding in summary.findings)
    counts = {
        "tests": str(len(summary.findings)),
        "failures": str(failures),
        "errors": str(errors),
        "skipped": "0",
    }
    suites = ET.Element("testsuites", {"name": "brownout", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": _xml(summary.drill), **counts})
    properties = ET.SubElement(suite, "properties")
    told = {"status": summary.status, "why": summary.why, "world": summary.world} | summary.facts
    told |= {f"recovery {recovery.step}": str(recovery) for recovery in summary.recoveries}
    for name, value in told.items():
        ET.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
    for finding in summary.findings:
        _add_case(suite, finding, summary.drill)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ET.Element, finding: Finding, drill: str) -> None:
    case = ET.SubElement(suite, "testcase", {"name": _xml(finding.id), "classname": _xml(drill), "time": "0"})
    properties = ET.SubElement(case, "properties")
    told = {
        "what": finding.what,
        "asked": finding.asked,
        "measured": finding.measured,
        "outcome": finding.outcome,
    }
    numbers = {name: str(value) for name, value in finding.plain()["numbers"].items()}
    for name, value in (told | numbers).items():
        ET.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
    if finding.outcome != "HELD":
        tag = "failure" if finding.outcome == "BROKEN" else "error"
        short = f"{finding.outcome}: {finding.reason or finding.what}"
        ET.SubElement(case, tag, {"message": _xml(short), "type": finding.outcome}).text = _xml(str(finding))


def _xml(text: str) -> str:
    """Without the control characters that XML can't hold at all."""
    return NOT_XML.sub("\ufffd", text)
