"""What the folders promise each other: who imports whom, what the engine keeps out, and how big things get."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]
PACKAGES = ("harness", "faults", "target", "reports")
FILES = sorted(
    path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")
)
TESTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py"))


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def imported(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each dotted name that is imported anywhere in a file, and whether it is at the top of it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in module.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"line {node.lineno}: write the whole path of what is imported"
            yield node.module, node in module.body
            yield from ((f"{node.module}.{alias.name}", node in module.body) for alias in node.names)


def tops(file: str) -> set[str]:
    return {name.partition(".")[0] for name, _ in imported(tree(file))}


def test_the_import_contracts_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


# Where a third party may be imported: files, or folders that end in a slash.
DOORS = {
    "locust": ["harness/load/locustfile.py"],
    "gevent": ["harness/load/locustfile.py"],
    "geventhttpclient": ["harness/load/locustfile.py"],
    "torch": ["target/models/", "faults/gpu/nvidia_tasks.py"],
    "safetensors": ["target/models/"],
    "tokenizers": ["target/models/"],
    "starlette": ["target/api/"],
    "uvicorn": ["target/api/"],
    "prometheus_client": ["target/exposition.py"],
    "click": ["harness/cli.py", "harness/exit_codes.py", "harness/gpu/commands.py"],
    "pytest": ["harness/plugin.py"],
    "rich": ["reports/", "harness/gpu/"],
    "jinja2": ["reports/", "target/models/tokenizer.py"],
    "markupsafe": ["reports/"],
    "yaml": ["harness/drill_file.py", "harness/store.py"],
    "httpx2": ["harness/fidelity.py", "harness/sampling.py", "harness/worlds/live.py"],
    "pynvml": ["faults/gpu/nvidia_library.py"],
    "requests": [],
    "importlinter": [],
    "hypothesis": [],
}


@pytest.mark.parametrize("third_party", DOORS)
def test_a_third_party_comes_in_by_its_own_door_only(third_party: str) -> None:
    users = [file for file in FILES if third_party in tops(file)]
    doors = DOORS[third_party]
    assert [
        file
        for file in users
        if not any(file == d or (d.endswith("/") and file.startswith(d)) for d in doors)
    ] == []
    assert [d for d in doors if not any(file.startswith(d) for file in users)] == [], (
        "a door that nobody uses"
    )


def test_nothing_else_is_imported_than_the_standard_library_ourselves_and_what_is_declared() -> None:
    known = {
        *sys.stdlib_module_names,
        *PACKAGES,
        *DOORS,
        "pydantic",
        "scipy",
        "numpy",
        "psutil",
        "uvloop",
        "httptools",
    }
    assert {file: tops(file) - known for file in FILES if tops(file) - known} == {}


CORE = (
    *("admission", "answers", "breaker", "config", "counts", "device", "engine", "host_tier", "kv", "ladder"),
    *("links", "plan", "records", "request", "scheduler", "sequence", "text", "transfers"),
)
OUTSIDE = {
    *("socket", "ssl", "select", "selectors", "http", "urllib", "subprocess", "multiprocessing", "signal"),
    *("threading", "queue", "asyncio", "concurrent", "contextvars"),
    *("time", "datetime", "random", "secrets", "uuid", "os", "sys", "pathlib", "io", "tempfile", "logging"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORE)
def test_the_engine_is_told_everything_and_asks_the_world_nothing(name: str) -> None:
    file = f"target/{name}.py"
    assert tops(file) & OUTSIDE == set()
    ours = {name for name, _ in imported(tree(file)) if name.startswith("target.")}
    assert {name.split(".")[1] for name in ours} <= set(CORE), "the core reaches beyond itself"


@pytest.mark.parametrize("name", CORE)
def test_the_engine_opens_prints_and_sleeps_nowhere(name: str) -> None:
    calls = {
        node.func.id
        for node in ast.walk(tree(f"target/{name}.py"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls & {"open", "print", "input", "exec", "eval", "__import__", "hash", "id"} == set()


@pytest.mark.parametrize(
    "file",
    [
        "harness/__init__.py",
        "harness/cli.py",
        "harness/exit_codes.py",
        "harness/gpu/__init__.py",
        "harness/gpu/commands.py",
        "harness/plugin.py",
    ],
)
def test_what_every_command_and_every_pytest_run_loads_imports_nothing_heavy_at_its_top(file: str) -> None:
    light = {*sys.stdlib_module_names, "click", "pytest"}
    parts = [name.split(".") for name, top in imported(tree(file)) if top]
    ours = (["harness", "exit_codes"], ["harness", "gpu", "commands"])
    assert [
        ".".join(part)
        for part in parts
        if part[0] not in light and not any(part[: len(o)] == o for o in ours)
    ] == []


# A package whose __init__ is empty needs no docstring.
@pytest.mark.parametrize("file", [file for file in (*FILES, *TESTS) if (ROOT / file).stat().st_size > 0])
def test_every_file_says_in_its_first_line_what_it_is_for(file: str) -> None:
    told = ast.get_docstring(tree(file)) or ""
    assert len(told.split("\n")[0].split()) >= 3, f"{file} has no docstring that says something"


VAGUE = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "shared",
    "core",
    "base_utils",
    "tools",
    "lib",
}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [file for file in (*FILES, *TESTS) if Path(file).stem in VAGUE] == []


LONGEST_FILE, LONGEST_FUNCTION = 260, 60
# Longer ones, and how long they may be. Only ever make these smaller.
RATCHET: dict[str, int] = {}


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_read_in_one_sitting(file: str) -> None:
    lines = len((ROOT / file).read_text().splitlines())
    assert lines <= RATCHET.get(file, LONGEST_FILE)


def test_the_ratchet_holds_only_files_that_need_it() -> None:
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in RATCHET}
    assert {file: n for file, n in lines.items() if n <= LONGEST_FILE or n < RATCHET[file] - 60} == {}


def test_a_function_is_seen_on_one_screen() -> None:
    lengths = {
        f"{file}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def test_an_import_is_seen_wherever_it_hides() -> None:
    hidden = ast.parse("from __future__ import annotations\nimport a.b\ndef f():\n    from c.d import e\n")
    assert dict(imported(hidden)) == {
        "__future__": True,
        "__future__.annotations": True,
        "a.b": True,
        "c.d": False,
        "c.d.e": False,
    }
