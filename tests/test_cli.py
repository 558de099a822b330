"""The command line: what it says, its exit codes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from faults.kinds import KINDS
from harness import cli, perform
from harness.errors import OwnFailure, UsageError
from harness.store import Run, new_run
from tests.builders import a_history
from tests.fake_perform import DRILL, ENDINGS, FakePerform

ROOT = Path(__file__).parents[1]
THREE = ROOT / "scenarios" / "burst-survives-vram-pcie-nvlink.yaml"
STEADY = ROOT / "scenarios" / "burst-is-served-steadily.yaml"
USAGE = 64


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without variables that steer a drill."""
    monkeypatch.chdir(tmp_path)
    for name in ("FAULT_TYPE", "NVLINK_BANDWIDTH_PERCENT", "OOM_TRIGGER_THRESHOLD_MB"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def brownout(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def refused(here: Path, *words: object, told: str) -> None:
    """The request is refused with that message, and nothing was made."""
    before = sorted(here.rglob("*"))
    result = brownout(*words)
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert told in result.stderr
    assert "Traceback" not in result.output
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("command", [None, *sorted(cli.main.commands)])
def test_the_help_of_each_command_has_an_example(command: str | None) -> None:
    result = brownout(*([command] if command else []), "--help")
    assert result.exit_code == 0
    _, _, example = result.stdout.partition("Example")
    assert f"brownout {command or 'run'}" in example


HEAVY = (
    "pydantic",
    "torch",
    "scipy",
    "numpy",
    "rich",
    "yaml",
    "httpx2",
    "jinja2",
    "pytest",
    "locust",
    "psutil",
)


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from click.testing import CliRunner
from harness.cli import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_a_refusal_reaches_the_shell_as_one_message_on_standard_error(tmp_path: Path) -> None:
    script = "from harness.cli import main; main()"
    words = [sys.executable, "-c", script, "run", str(THREE), "--set", "timeline.2.fault.percent=130"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == (
        f"brownout: {THREE} is not a drill:\n"
        "  timeline[2].fault.percent: 130: Input should be less than or equal to 99\n"
    )
    assert list(tmp_path.iterdir()) == []


BAD: dict[str, tuple[list[Any], str]] = {
    "unknown kind": (
        [THREE, "--set", "timeline.0.fault.kind=gamma"],
        "timeline[0].fault: unknown fault kind 'gamma'; known: alloc_failure, clock_lock, ",
    ),
    "percent": (
        [THREE, "--set", "timeline.2.fault.percent=130"],
        "timeline[2].fault.percent: 130: Input should be less than or equal to 99",
    ),
    "dose that the card can't have": (
        [THREE, "--set", "timeline.0.fault.free_mb=99999"],
        "timeline[0].fault of vram: free_mb: 99999: the card has 81920 MiB in all",
    ),
    "links that the node lacks": (
        [THREE, "--set", "node.topology=nvswitch"],
        "timeline[2].fault of nvlink: this node has no nvlink:0>1: nvlink_degrade wants links from card to card",
    ),
    "metric": (
        [THREE, "--set", "slos.0.metric=joy"],
        "slos[0]: unknown metric 'joy'; known: direct_dma_ratio, downgraded_ratio",
    ),
    "seed": ([THREE, "--seed", -1], "seed: -1: Input should be greater than or equal to 0"),
    "override": ([THREE, "--set", "load.keep"], "--set 'load.keep': write PATH=VALUE"),
    "no file": (["nope.yaml"], "nope.yaml: No such file or directory"),
    "folder": ([ROOT / "scenarios"], "Is a directory"),
    "one bad of two": ([STEADY, "nope.yaml"], "nope.yaml: No such file or directory"),
    "no server": (
        [STEADY, "--target", "http://127.0.0.1:9"],
        "target.url: http://127.0.0.1:9 can't be reached: ",
    ),
    "no URL": ([STEADY, "--target", "nonsense"], "target.url: nonsense is no http:// or https:// address: "),
    "world": ([THREE, "--world", "live"], "can't run in world live; its worlds: local"),
    "world to come": (
        [THREE, "--world", "virtual", "--set", "worlds=[virtual]"],
        "world virtual is not built yet; there are: local, live",
    ),
    "live without a server": ([STEADY, "--world", "live"], "world live needs a server: --target http://HOST:PORT"),
    "model": ([THREE, "--set", "target.model=nowhere"], "target.model: 'nowhere' has no config.json"),
    "trace": ([THREE, "--set", "load.trace=nope.csv"], "nope.csv: can't be read: No such file or directory"),
    "empty window": (
        [THREE, "--set", "load.offset_s=99999"],
        "no row of the trace lies in it",
    ),
    "no file given": ([], "Missing argument 'FILES...'"),
    "unknown option": ([THREE, "--frobnicate"], "No such option '--frobnicate'"),
    "no such world": ([THREE, "--world", "moon"], "'moon' is not one of 'virtual', 'local', 'live'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_refused_before_anything_is_made(mistake: str, here: Path) -> None:
    words, told = BAD[mistake]
    refused(here, "run", *words, told=told)


def test_a_port_that_is_in_use_is_refused(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"target.port: {port} is in use on 127.0.0.1; take another, or end what uses it"
        refused(here, "run", THREE, "--set", f"target.port={port}", told=told)
        refused(here, "serve", "--port", port, told=f"--port: {port} is in use on 127.0.0.1")


def test_a_row_that_is_no_number_is_refused_by_its_line(here: Path) -> None:
    lines = (ROOT / "traces" / "azure_llm_2023_code.csv").read_text().splitlines()
    lines[41] = lines[41].rpartition(",")[0] + ",many"
    (here / "bad.csv").write_text("\n".join(lines) + "\n")
    told = "bad.csv:42: GeneratedTokens 'many' is not a count; allowed: a whole number from 0 to 999999999"
    refused(here, "run", THREE, "--set", "load.trace=bad.csv", told=told)


def test_a_variable_that_the_drill_has_no_fault_for_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_TYPE", "gamma")
    told = "FAULT_TYPE=gamma: burst-survives-vram-pcie-nvlink has no such fault; it has: nvlink_degrade"
    refused(here, "run", THREE, told=told)


def test_a_folder_for_runs_that_cannot_be_made_is_refused(here: Path) -> None:
    (here / "file").touch()
    refused(here, "run", THREE, "--out", here / "file" / "runs", told="can't keep runs in ")


def test_check_says_what_would_happen_and_touches_nothing(here: Path) -> None:
    result = brownout("check", THREE, "--set", "timeline.0.fault.free_mb=512", "--seed", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("burst-survives-vram-pcie-nvlink in the local world, seed 3\n")
    assert "  fault   vram at 36.4 s for 8 s: vram_oom (card 0, free_mb 512.0)\n" in result.stdout
    assert (
        "  fault   nvlink at 94.2 s for 8 s: nvlink_degrade (links ['0-1'], percent 30.0)\n" in result.stdout
    )
    assert "  load    " in result.stdout
    assert list(here.iterdir()) == []


def test_check_says_what_the_environment_changes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVLINK_BANDWIDTH_PERCENT", "10")
    told = "  note    NVLINK_BANDWIDTH_PERCENT=10 sets nvlink_degrade.percent of nvlink\n"
    assert told in brownout("check", THREE).stdout


def test_list_names_drills_fault_kinds_and_metrics(here: Path) -> None:
    told = brownout("list", ROOT / "scenarios").stdout
    assert f"  {THREE}  (local)\n" in told
    assert "\n  vram_oom           Another process takes a card's memory" in told
    assert "\n  ttft_ms            [ms] time to first token, from the intended send time\n" in told


def test_list_faults_shows_each_kind_with_its_dose_its_undo_and_its_label_in_each_world(here: Path) -> None:
    told = brownout("list", "faults").stdout
    for kind, fault in KINDS.items():
        _, _, after = told.partition(f"\n  {kind:<18} ")
        lines = [line.strip() for line in after.splitlines()[1:4]]
        assert lines[0] == f"dose   {fault.dose}"
        assert lines[1] == f"undo   {fault.undo}"
        assert lines[2].startswith(f"worlds local {fault.fidelity['local']}, virtual ")
    assert "ttft_ms" not in told


def test_list_metrics_and_drills_show_nothing_else(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert brownout("list", "metrics").stdout.startswith("metrics\n  ttft_ms ")
    monkeypatch.chdir(ROOT)
    told = brownout("list", "drills").stdout
    assert told.startswith("drills\n  scenarios/")
    assert "fault kinds" not in told


def test_a_thing_that_cannot_be_listed_is_refused(here: Path) -> None:
    refused(here, "list", "nope", told="'nope' is none of faults, drills and metrics, and no folder")


CODES = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}


def stored(root: Path, status: str) -> Run:
    run = new_run(DRILL, root=root, at=datetime(2026, 5, 4, 12, 0, 0))
    a_history(drill=DRILL, **ENDINGS[status]).write(run.history_jsonl)
    return run


@pytest.mark.parametrize("status", CODES)
def test_judge_gives_a_stored_runs_verdict_as_its_exit_code_and_writes_nothing(
    status: str, here: Path
) -> None:
    run = stored(here / "runs", status)
    before = sorted(here.rglob("*"))
    result = brownout("judge", run.folder)
    assert result.exit_code == CODES[status]
    assert f" {status} " in result.stdout
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("status", CODES)
def test_with_json_standard_output_is_one_object_and_the_report_is_beside_it(status: str, here: Path) -> None:
    run = stored(here / "runs", status)
    result = brownout("judge", "--json", run.folder)
    (line,) = result.stdout.splitlines()
    told = json.loads(line)
    assert (told["drill"], told["status"], told["exit_code"]) == (DRILL.name, status, CODES[status])
    assert f" {status} " in result.stderr


@pytest.mark.parametrize("status", CODES)
def test_report_writes_the_reports_again(status: str, here: Path) -> None:
    run = stored(here / "runs", status)
    assert brownout("report", here / "runs" / DRILL.name).exit_code == CODES[status]
    written = {path.name for path in run.folder.iterdir()}
    assert written == {"drill.yaml", "history.jsonl", "report.html", "report.json", "report.xml"}
    assert json.loads(run.report_json.read_text())["status"] == status


@pytest.mark.parametrize("command", ["judge", "report"])
def test_a_run_that_is_not_there_is_refused(command: str, here: Path) -> None:
    refused(here, command, "runs/nope", told="no run at runs/nope")


@pytest.fixture
def fake(here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts made-up endings in the place of running."""

    def make(*endings: str | BaseException) -> FakePerform:
        faked = FakePerform(tmp_path_factory.mktemp("runs"), *endings)
        monkeypatch.setattr(perform, "perform", faked)
        return faked

    return make


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        (["PASS", "PASS"], 0),
        (["PASS", "UNKNOWN"], 2),
        (["UNKNOWN", "FAIL"], 1),
        (["FAIL", "UNKNOWN"], 1),
        (["FAIL", "interrupted"], 130),
    ],
)
def test_of_several_drills_the_worst_decides(endings: list[str], code: int, fake: Any) -> None:
    faked = fake(*endings)
    result = brownout("run", THREE, STEADY, "--json")
    assert result.exit_code == code
    assert len(result.stdout.splitlines()) == len(faked.asked) == 2


def test_ctrl_c_in_one_drill_ends_those_after_it_too(fake: Any) -> None:
    faked = fake("interrupted", "PASS")
    assert brownout("run", THREE, STEADY).exit_code == 130
    assert len(faked.asked) == 1


@pytest.mark.parametrize(
    ("problem", "code", "told"),
    [
        (OwnFailure("the node is gone"), 70, "brownout: the node is gone\n"),
        (UsageError("no such thing"), 64, "brownout: no such thing\n"),
        (OSError(28, "No space left on device", "x"), 70, "brownout: [Errno 28] No space left on device: 'x'\n"),
        (LookupError("a bug"), 70, "brownout: that is a mistake of brownout's own, not a verdict\n"),
        (KeyboardInterrupt(), 130, "brownout: interrupted\n"),
        (click.Abort(), 130, "brownout: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
def test_no_error_has_the_exit_code_of_a_verdict(problem: Any, code: int, told: str, fake: Any) -> None:
    fake(problem)
    result = brownout("run", THREE)
    assert result.exit_code == code
    assert result.stderr.endswith(told)
    assert ("Traceback" in result.stderr) == isinstance(problem, LookupError)


def test_a_bad_option_of_the_program_itself_has_no_verdicts_exit_code(here: Path) -> None:
    refused(here, "--frobnicate", told="No such option '--frobnicate'")
    refused(here, "explain", told="No such command 'explain'")


def test_serve_is_given_its_options_and_gives_its_exit_code(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def serve(**how: Any) -> int:
        given.append(how)
        return 3

    monkeypatch.setitem(sys.modules, "harness.serve", SimpleNamespace(serve=serve))
    assert brownout("serve", "--port", 8123, "--cards", 2).exit_code == 3
    assert given == [{"host": "127.0.0.1", "port": 8123, "seed": 0, "model": None, "cards": 2}]
