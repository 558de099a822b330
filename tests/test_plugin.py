"""Drills as pytest items, and the `drill` fixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import perform
from harness.drill_file import dump_drill, load_drill
from harness.errors import OwnFailure
from tests.fake_perform import FakePerform

pytest_plugins = ["pytester"]

SCENARIO = Path(__file__).parents[1] / "scenarios" / "burst-survives-vram-pcie-nvlink.yaml"
Fake = Callable[..., FakePerform]


@pytest.fixture
def fake(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Fake:
    """A folder with one drill, and made-up endings in the place of running."""
    for name in ("FAULT_TYPE", "NVLINK_BANDWIDTH_PERCENT", "OOM_TRIGGER_THRESHOLD_MB"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\naddopts = -p no:locust -p no:cacheprovider -p no:hypothesispytest\n")
    (pytester.path / "survives.yaml").write_text(dump_drill(load_drill(SCENARIO)))

    def make(*endings: str | BaseException) -> FakePerform:
        faked = FakePerform(tmp_path_factory.mktemp("runs"), *endings)
        monkeypatch.setattr(perform, "perform", faked)
        return faked

    return make


def test_a_drill_file_is_an_item_and_other_yaml_is_left_alone(pytester: pytest.Pytester, fake: Fake) -> None:
    fake()
    (pytester.path / "compose.yaml").write_text("services:\n  load:\n    image: x\n    why: because\n")
    (pytester.path / "values.yml").write_text("why: it is ours\n")
    (pytester.path / "binary.yaml").write_bytes(bytes(range(256)))
    (pytester.path / "empty.yaml").touch()
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == ["survives.yaml::survives"]


def test_a_drill_that_passes_is_an_item_that_passes(pytester: pytest.Pytester, fake: Fake) -> None:
    faked = fake("PASS")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    assert faked.roots == [Path("runs")]


@pytest.mark.parametrize("status", ["FAIL", "UNKNOWN"])
def test_a_drill_that_does_not_pass_fails_and_shows_its_report_and_no_traceback(
    status: str, pytester: pytest.Pytester, fake: Fake
) -> None:
    fake(status)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f" {status}  *held*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*raise NotPassed*")


def test_unknown_is_never_a_skip(pytester: pytest.Pytester, fake: Fake) -> None:
    fake("UNKNOWN")
    pytester.runpytest_inprocess().assert_outcomes(failed=1, skipped=0)


def test_the_verdict_and_the_runs_folder_are_in_junit_xml(pytester: pytest.Pytester, fake: Fake) -> None:
    fake("UNKNOWN")
    pytester.runpytest_inprocess("--junitxml=out.xml")
    assert '<property name="verdict" value="UNKNOWN"' in (pytester.path / "out.xml").read_text()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--drill-set=timeline.2.fault.percent=130", "*timeline?2?.fault.percent: 130: Input should be*"),
        ("--drill-set=load.keep", "*--set 'load.keep': write PATH=VALUE*"),
        ("--drill-world=live", "*can't run in world live; its worlds: local*"),
        ("--drill-target=http://127.0.0.1:9", "*target.url needs --world live*"),
    ],
)
def test_an_option_that_asks_for_nonsense_fails_the_item_with_one_message(
    option: str, told: str, pytester: pytest.Pytester, fake: Fake
) -> None:
    faked = fake()
    result = pytester.runpytest_inprocess(option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert faked.asked == []


def test_a_world_that_does_not_exist_is_refused_before_any_item(
    pytester: pytest.Pytester, fake: Fake
) -> None:
    fake()
    result = pytester.runpytest_inprocess("--drill-world=moon")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--drill-world: invalid choice: 'moon'*"])


def test_our_own_failure_fails_the_item_with_one_message(pytester: pytest.Pytester, fake: Fake) -> None:
    fake(OwnFailure("the node is gone"))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the node is gone"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_broken_drill_file_fails_its_own_item_only(pytester: pytest.Pytester, fake: Fake) -> None:
    fake("PASS")
    (pytester.path / "broken.yaml").write_text("name: broken\nwhy: it lacks nearly everything\nload: {}\n")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*broken.yaml is not a drill:*", "*load.trace: Field required*"])


FIXTURE_TEST = """
def test_it(drill):
    verdict = drill("survives.yaml")
    assert verdict.passed, verdict
"""


def test_the_fixture_gives_a_verdict(pytester: pytest.Pytester, fake: Fake) -> None:
    faked = fake("PASS")
    pytester.makepyfile(FIXTURE_TEST)
    pytester.runpytest_inprocess("-k", "test_it", "--drill-out=kept").assert_outcomes(passed=1, deselected=1)
    assert faked.roots == [Path("kept")]


def test_an_assertion_on_a_verdict_shows_what_did_not_hold(pytester: pytest.Pytester, fake: Fake) -> None:
    fake("UNKNOWN")
    pytester.makepyfile(FIXTURE_TEST)
    result = pytester.runpytest_inprocess("-k", "test_it")
    result.assert_outcomes(failed=1, deselected=1)
    told = "<UNKNOWN burst-survives-vram: 11 held, 1 inconclusive; INCONCLUSIVE run.complete: the run was cut short>"
    result.stdout.fnmatch_lines([f"E       AssertionError: {told}"])
