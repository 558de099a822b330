"""The README's code blocks run as printed, its links lead somewhere, and each fault kind is documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from faults.catalogue import section, with_kinds
from faults.kinds import KINDS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line[2:] for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
# They run whole drills or the tests themselves; what `make test` and `.ci/run` do need not be done inside them.
LONG = ("make ", "brownout run", "brownout judge", "pytest ", "brownout serve", "curl ")
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
DRILL = "scenarios/burst-survives-vram-pcie-nvlink.yaml"


def shell(command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def drilled(command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A command that ends in a verdict. UNKNOWN is no defect, on a machine that was too busy: it is asked once more."""
    done = shell(command, timeout_s)
    return shell(command, timeout_s) if done.returncode and " UNKNOWN " in done.stdout else done


def test_every_console_line_is_a_command() -> None:
    lines = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]

    assert lines
    assert all(line.startswith("$ ") for line in lines)


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(LONG)])
def test_a_short_command_of_the_readme_runs_as_printed(command: str) -> None:
    done = shell(command)

    assert done.returncode == 0, done.stderr


def test_the_python_of_the_readme_compiles() -> None:
    for kind, block in BLOCKS:
        if kind == "python":
            compile(block, "README.md", "exec")


def test_the_links_of_the_readme_lead_to_files() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_fault_kind_has_its_section_in_the_docs() -> None:
    page = (ROOT / "docs/faults.md").read_text()

    assert all(section(kind) in page for kind in KINDS), (
        "write them: python -m faults.catalogue docs/faults.md"
    )
    assert with_kinds(page) == page


def test_every_fault_kind_but_the_no_op_has_a_scenario() -> None:
    used = {
        step["fault"]["kind"]
        for file in (ROOT / "scenarios").glob("*.yaml")
        for step in yaml.safe_load(file.read_text()).get("timeline", [])
    }

    assert used == set(KINDS) - {"noop"}


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert version
    assert f"## {version[1]} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.campaign
def test_make_drill_and_judging_its_run_show_the_findings_that_the_readme_prints() -> None:
    done = drilled("make drill", timeout_s=400)
    assert done.returncode == 0, done.stdout + done.stderr

    printed = next(block for kind, block in BLOCKS if kind == "text")
    for finding in re.findall(r"^  HELD\s+(\S+)", printed, re.MULTILINE):
        assert f"  {finding} " in done.stdout

    again = shell(next(command for command in COMMANDS if command.startswith("brownout judge")))
    assert again.returncode == 0, again.stdout
    assert " PASS " in again.stdout


def test_every_scenario_is_a_pytest_item() -> None:
    done = shell(f"{next(c for c in COMMANDS if c.startswith('pytest '))} --collect-only -q")

    assert done.returncode == 0, done.stdout
    assert all(file.name in done.stdout for file in SCENARIOS)


@pytest.mark.campaign
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_every_scenario_passes_as_a_pytest_item(file: Path) -> None:
    done = drilled(f"{next(c for c in COMMANDS if c.startswith('pytest '))}{file.name}", timeout_s=400)

    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.campaign
def test_the_python_of_the_readme_passes(tmp_path: Path) -> None:
    (tmp_path / "test_readme.py").write_text(next(block for kind, block in BLOCKS if kind == "python"))

    done = drilled(f"pytest -c pyproject.toml --rootdir . {tmp_path / 'test_readme.py'}", timeout_s=400)

    assert done.returncode == 0, done.stdout


@pytest.mark.campaign
def test_ones_own_server_can_be_asked_whether_it_serves_the_burst_steadily() -> None:
    with served():
        answer = shell(next(command for command in COMMANDS if command.startswith("curl")))
        assert '"brownout-full"' in answer.stdout

        done = drilled(next(c for c in COMMANDS if "--target" in c), timeout_s=200)
        assert done.returncode == 0, done.stdout


@contextmanager
def served() -> Iterator[None]:
    """The README's server, until the block is left."""
    words = next(command for command in COMMANDS if command.startswith("brownout serve")).rstrip(" &").split()
    server = subprocess.Popen([str(Path(sys.executable).with_name(words[0])), *words[1:]], cwd=ROOT)
    try:
        for _ in range(120):
            if shell("curl -sf localhost:8000/ready").returncode == 0:
                break
            time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait(timeout=30)
