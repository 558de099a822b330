"""pytest: every drill file is an item, and `drill` is a fixture.

    pytest scenarios/                       each YAML file that is a drill
    def test_it(drill):
        verdict = drill("scenarios/burst-survives-vram-pcie-nvlink.yaml")
        assert verdict.passed, verdict

UNKNOWN is a failure that says UNKNOWN, never a skip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.drill import Drill
    from harness.perform import Performance
    from harness.verdict import Verdict

INTERRUPTED = 130
# A drill file begins its lines with these, so that somebody's other YAML files are left alone.
MARKS = ("\nwhy:", "\nload:")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("brownout", "chaos drills")
    group.addoption("--drill-world", choices=["virtual", "local", "live"], help="run drills in this world")
    group.addoption("--drill-target", metavar="URL", help="drill this OpenAI-compatible server (world live)")
    group.addoption(
        "--drill-set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override one value of each drill",
    )
    group.addoption("--drill-out", default="runs", metavar="DIR", help="where runs are kept (default: runs)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    text = "\n" + file_path.read_text(errors="replace")
    if not all(mark in text for mark in MARKS):
        return None
    collected: pytest.Collector = DrillFile.from_parent(parent, path=file_path)
    return collected


class DrillFile(pytest.File):
    """One YAML file."""

    def collect(self) -> Iterator[pytest.Item]:
        yield DrillItem.from_parent(self, name=self.path.stem)


class DrillItem(pytest.Item):
    """One drill; it passes if its verdict is PASS."""

    def runtest(self) -> None:
        performance = perform_for(self.config, self.path)
        self.user_properties += [
            ("verdict", performance.verdict.status),
            ("run", str(performance.run.folder)),
        ]
        if not performance.verdict.passed:
            raise NotPassed(performance)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from harness.errors import BrownoutError

        if isinstance(excinfo.value, NotPassed | BrownoutError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"drill {self.name}"


class NotPassed(Exception):
    """A drill's verdict is FAIL or UNKNOWN."""

    def __init__(self, performance: Performance) -> None:
        from reports.summary import summarise
        from reports.text import text_report

        asked = performance.asked
        summary = summarise(
            asked.drill, performance.history, performance.verdict, kept=performance.run.drill_yaml
        )
        super().__init__(text_report(summary, page=performance.run.report_html))


@pytest.fixture
def drill(request: pytest.FixtureRequest) -> Callable[[Path | str | Drill], Verdict]:
    """Runs a drill (a file or a value), and returns its verdict."""
    return lambda source: perform_for(request.config, source).verdict


def perform_for(config: pytest.Config, source: Path | str | Drill) -> Performance:
    """Run with the options of this pytest run, and write the reports."""
    from harness.perform import ask, perform
    from reports.files import write_reports

    target = config.getoption("--drill-target")
    sets = (*config.getoption("--drill-set"), *([f"target.url={target}"] if target else []))
    asked = ask(source, world=config.getoption("--drill-world"), sets=sets)
    performance = perform(asked, root=Path(config.getoption("--drill-out")))
    write_reports(performance.run, asked.drill, performance.history, performance.verdict)
    if any(performance.history.of_kind("interrupted")):
        pytest.exit(f"interrupted; what was seen is in {performance.run.folder}", returncode=INTERRUPTED)
    return performance
