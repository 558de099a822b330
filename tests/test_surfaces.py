"""One drill, many spellings: a file, a value, `--set`, pytest's options. They mean the same, and run the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from harness import perform
from harness.cli import main
from harness.drill import Drill
from harness.drill_file import dump_drill, load_drill
from harness.perform import ask
from tests.fake_perform import FakePerform

pytest_plugins = ["pytester"]

TRACE = Path(__file__).parents[1] / "traces" / "azure_llm_2023_code.csv"
PLAIN: dict[str, Any] = {
    "name": "weak-link",
    "why": "one link is weak for a while",
    "seed": 7,
    "load": {"trace": str(TRACE), "offset_s": 849, "span_s": 34, "keep": 0.2},
    "timeline": [
        {"id": "link", "at_s": 10, "hold_s": 5, "fault": {"kind": "nvlink_degrade", "percent": 30}},
    ],
    "steady_state": [{"phase": "baseline", "metric": "error_ratio", "max": 0.1}],
    "slos": [{"phase": "fault", "step": "link", "metric": "ttft_ms", "quantile": 0.7, "max_ratio": 3.0}],
    "blast_radius": {"cards_max": 2},
}
VALUE = Drill.model_validate(PLAIN)
# What each of these asks for, starting from another drill.
OTHER = {
    **PLAIN,
    "seed": 1,
    "load": {**PLAIN["load"], "keep": 1.0},
    "timeline": [{**PLAIN["timeline"][0], "fault": {"kind": "noop"}}],
}
SETS = ("seed=7", "load.keep=0.2", "timeline.0.fault={kind: nvlink_degrade, percent: 30}")


@pytest.fixture
def other(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the other drill, in a folder of its own."""
    for name in ("FAULT_TYPE", "NVLINK_BANDWIDTH_PERCENT", "OOM_TRIGGER_THRESHOLD_MB"):
        monkeypatch.delenv(name, raising=False)
    path = pytester.path / "other.yaml"
    path.write_text(yaml.safe_dump(OTHER))
    pytester.makeini("[pytest]\naddopts = -p no:locust -p no:cacheprovider -p no:hypothesispytest\n")
    return path


@pytest.fixture
def faked(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakePerform:
    faked = FakePerform(tmp_path_factory.mktemp("runs"), "PASS", "PASS")
    monkeypatch.setattr(perform, "perform", faked)
    return faked


def test_yaml_json_and_a_python_value_are_the_same_drill(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(PLAIN))
    (tmp_path / "b.yaml").write_text(json.dumps(PLAIN))
    (tmp_path / "c.yaml").write_text(dump_drill(VALUE))
    assert {load_drill(tmp_path / f"{name}.yaml") for name in "abc"} == {VALUE}


def test_an_override_of_a_file_and_of_a_value_mean_the_same(other: Path) -> None:
    assert Drill.model_validate(OTHER) != VALUE
    assert ask(other, sets=SETS, environment={}).drill == VALUE
    assert ask(Drill.model_validate(OTHER), sets=SETS, environment={}).drill == VALUE


def test_an_empty_environment_is_empty_and_not_the_process_s(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVLINK_BANDWIDTH_PERCENT", "10")
    assert ask(VALUE, environment={}).steered == ()
    assert ask(VALUE).drill.timeline[0].fault.model_dump()["percent"] == 10


def test_the_command_line_performs_the_drill_that_its_options_spell(other: Path, faked: FakePerform) -> None:
    words = ["run", str(other), "--seed", "7"]
    for text in SETS[1:]:
        words += ["--set", text]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert [asked.drill for asked in faked.asked] == [VALUE]


def test_a_pytest_item_performs_the_drill_that_its_options_spell(
    other: Path, faked: FakePerform, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest_inprocess(*(f"--drill-set={text}" for text in SETS))
    result.assert_outcomes(passed=1)
    assert [asked.drill for asked in faked.asked] == [VALUE]


def test_the_fixture_performs_the_same_for_a_file_and_for_a_value(
    other: Path, faked: FakePerform, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        from harness.drill_file import load_drill

        def test_both(drill):
            assert drill("other.yaml").passed
            assert drill(load_drill("other.yaml")).passed
        """
    )
    result = pytester.runpytest_inprocess("-k", "test_both", *(f"--drill-set={text}" for text in SETS))
    result.assert_outcomes(passed=1, deselected=1)
    assert [asked.drill for asked in faked.asked] == [VALUE, VALUE]


def test_the_environment_steers_every_surface_alike(
    other: Path, faked: FakePerform, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "other.yaml").write_text(yaml.safe_dump(PLAIN))
    monkeypatch.setenv("NVLINK_BANDWIDTH_PERCENT", "10")
    assert CliRunner().invoke(main, ["run", str(other)]).exit_code == 0
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    by_command, by_item = faked.asked
    assert by_command.drill == by_item.drill
    assert by_command.steered == by_item.steered == (
        "NVLINK_BANDWIDTH_PERCENT=10 sets nvlink_degrade.percent of link",
    )  # fmt: skip
    assert by_command.environment == {"NVLINK_BANDWIDTH_PERCENT": "10"}


def test_every_surface_chooses_the_same_world() -> None:
    assert ask(VALUE, environment={}).world.name == "local"
    assert ask(VALUE, world="local", environment={}).world.name == "local"
