"""The report for a terminal: what was asked, what was measured, held or not; then what it stands for.

Nothing depends on colour: a dumb terminal or a file shows the same words.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.verdict import Finding
from reports.summary import Summary

STYLES = {
    "HELD": "green",
    "BROKEN": "bold white on red",
    "INCONCLUSIVE": "yellow",
    "VACUOUS": "magenta",
    "PASS": "bold green",
    "FAIL": "bold white on red",
    "UNKNOWN": "bold yellow",
}
MARKS = {"HELD": "  ", "BROKEN": "✗ ", "INCONCLUSIVE": "? ", "VACUOUS": "∅ "}
PLAIN_WIDTH = 160  # of a report that goes to a file


def print_report(summary: Summary, *, to: TextIO, page: Path | None = None, width: int | None = None) -> None:
    """Print the report; `page` is where its HTML page is."""
    if width is None and not to.isatty():
        width = PLAIN_WIDTH
    console = Console(file=to, width=width, highlight=False, emoji=False, markup=False, safe_box=True)
    console.print(Text.assemble((summary.drill, "bold"), f"  {summary.world} world"))
    console.print(summary.why, style="italic")
    console.print()
    for recovery in summary.recoveries:
        console.print(str(recovery))
    console.print()
    console.print(_table(summary))
    console.print(Text.assemble((f" {summary.status} ", STYLES[summary.status]), f" {summary.counted}"))
    for finding in summary.findings:
        if finding.outcome == "BROKEN":
            console.print(
                Text.assemble(
                    ("  ✗ ", "bold red"),
                    f"{finding.id}: {'; '.join(filter(None, (finding.measured, finding.reason)))}",
                )
            )
    console.print()
    for scope in summary.scopes:
        console.print(f"{scope.step} was {scope.fidelity} ({scope.fault}).", style="bold")
        if scope.certifies:
            console.print(f"  certifies: {scope.certifies}")
        if scope.does_not_certify:
            console.print(f"  does not certify: {scope.does_not_certify}")
    console.print()
    if page is not None:
        console.print(f"page    {page}", soft_wrap=True)
    for command in summary.repeat:
        console.print(f"repeat  {command}", soft_wrap=True)


def text_report(summary: Summary, *, page: Path | None = None, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    out = io.StringIO()
    print_report(summary, to=out, page=page, width=width)
    return out.getvalue()


def _table(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("finding", no_wrap=True)
    table.add_column("asked", ratio=2, overflow="fold")
    table.add_column("measured", ratio=4, overflow="fold")
    for finding in summary.findings:
        outcome = Text(MARKS[finding.outcome] + finding.outcome, style=STYLES[finding.outcome])
        table.add_row(outcome, finding.id, finding.asked, _measured(finding))
    return table


def _measured(finding: Finding) -> Text:
    """With the reason under it unless it held."""
    lines = [finding.measured] if finding.measured else []
    if finding.reason:
        lines.append(finding.reason)
    style = (
        STYLES["BROKEN"].replace(" on red", "").replace("white", "red") if finding.outcome == "BROKEN" else ""
    )
    return Text("\n".join(lines), style=style)
