"""The library as such: what it exports, the layout of its structs, and how it comes to be compiled."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml as nvml
import pytest

from faults.gpu.layout import CARDS_MAX, Layout
from faults.gpu.nvml import build, header
from faults.gpu.telemetry import CARD_FIELDS

# Ours by theirs.
STRUCTS = {
    "Memory": "c_nvmlMemory_t",
    "MemoryV2": "c_nvmlMemory_v2_t",
    "Utilization": "c_nvmlUtilization_t",
    "PciInfo": "nvmlPciInfo_t",
    "PciInfoV2": "nvmlPciInfo_v2_t",
    "PciInfoExt": "nvmlPciInfoExt_v1_t",
    "ProcessInfo": "c_nvmlProcessInfo_v2_t",
    "ProcessDetail": "c_nvmlProcessDetail_v1_t",
    "ProcessDetailList": "c_nvmlProcessDetailList_v1_t",
    "ProcessSample": "c_nvmlProcessUtilizationSample_t",
    "ProcessUtilization": "c_nvmlProcessUtilizationInfo_v1_t",
    "ProcessesUtilization": "c_nvmlProcessesUtilizationInfo_v1_t",
    "Value": "c_nvmlValue_t",
    "FieldValue": "c_nvmlFieldValue_t",
    "ViolationTime": "c_nvmlViolationTime_t",
    "EccErrorCounts": "c_nvmlEccErrorCounts_t",
    "SramEccStatus": "c_nvmlEccSramErrorStatus_v1_t",
    "RemappedRowsV2": "c_nvmlRemappedRowsInfo_v2_t",
    "Temperature": "c_nvmlTemperature_v1_t",
    "MarginTemperature": "c_nvmlMarginTemperature_v1_t",
    "EventData": "c_nvmlEventData_t",
    "FabricInfo": "c_nvmlGpuFabricInfo_t",
    "FabricInfoV2": "c_nvmlGpuFabricInfo_v2_t",
    "FabricInfoV3": "c_nvmlGpuFabricInfo_v3_t",
    "DriverBranch": "c_nvmlSystemDriverBranchInfo_v1_t",
}
BY_NUMBER = {"MemoryV2": 2, "FabricInfoV2": 2, "FabricInfoV3": 3}


@pytest.fixture(scope="module")
def exported(library: Path) -> ctypes.CDLL:
    """The library itself; it opens nothing until it is initialised."""
    return ctypes.CDLL(str(library))


def test_structs_are_as_large_as_those_of_nvidia_ml_py(library: Path, tmp_path: Path) -> None:
    lines = [f'printf("{ours} %zu\\n", sizeof({ours}));' for ours in STRUCTS]
    code = '#include <stdio.h>\n#include "declarations.h"\nint main(void) {' + "".join(lines) + "return 0;}"
    (tmp_path / "sizes.c").write_text(code)
    subprocess.run(["cc", "-I", build.SOURCES, "-o", "sizes", "sizes.c"], cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout

    ours = {name: int(size) for name, size in (line.split() for line in told.splitlines())}
    assert ours == {name: ctypes.sizeof(getattr(nvml, theirs)) for name, theirs in STRUCTS.items()}


def test_versions_of_structs_are_those_of_nvidia_ml_py() -> None:
    theirs = {
        "MemoryV2": nvml.nvmlMemory_v2,
        "FabricInfoV2": nvml.nvmlGpuFabricInfo_v2,
        "FabricInfoV3": nvml.nvmlGpuFabricInfo_v3,
        "Temperature": nvml.nvmlTemperature_v1,
        "MarginTemperature": nvml.nvmlMarginTemperature_v1,
        "SramEccStatus": nvml.nvmlEccSramErrorStatus_v1,
        "ProcessDetailList": nvml.nvmlProcessDetailList_v1,
        "ProcessesUtilization": nvml.ProcessesUtilizationInfo_v1,
        "PciInfoExt": nvml.nvmlPciInfoExt_v1,
        "DriverBranch": nvml.SystemDriverBranchInfo_v1,
    }
    for ours, version in theirs.items():
        size = ctypes.sizeof(getattr(nvml, STRUCTS[ours]))
        assert version == size | BY_NUMBER.get(ours, 1) << 24, ours


def test_every_function_that_pynvml_knows_is_exported(exported: ctypes.CDLL) -> None:
    source = ast.parse(Path(nvml.__file__).read_text())
    wanted = {
        node.args[0].value
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "_nvmlGetFunctionPointer"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(wanted) > 400
    assert [name for name in sorted(wanted) if not hasattr(exported, str(name))] == []


def test_nothing_else_is_exported_than_what_is_listed(library: Path) -> None:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    found = {line.split()[2] for line in told.splitlines() if line.split()[1] in "TBDRVW"}
    assert found == set(build.names())
    assert build.defined() <= set(build.names())
    assert build.names() == sorted(build.names())


def test_before_initialisation_and_after_shutdown_every_function_says_so(exported: ctypes.CDLL) -> None:
    other = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString", "nvmlEventSetFree"}
    pointers = [ctypes.c_void_p()] * 6
    for name in set(build.names()) - other:
        assert getattr(exported, name)(*pointers) in (1, 2, 25), name  # some look at their arguments first


def test_a_struct_of_an_unknown_version_is_refused(ask, attended) -> None:
    done = ask("pynvml_versions.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["25"] * 7


def test_error_texts_are_those_that_pynvml_would_give(exported: ctypes.CDLL) -> None:
    exported.nvmlErrorString.restype = ctypes.c_char_p
    for code, text in nvml.NVMLError._errcode_to_string.items():
        assert exported.nvmlErrorString(code), text
    assert exported.nvmlErrorString(15) == b"GPU is lost"
    assert exported.nvmlErrorString(12345) == b"Unknown Error"


def test_its_name_is_the_one_that_clients_load(library: Path) -> None:
    told = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert re.search(r"SONAME.*\[libnvidia-ml\.so\.1\]", told)


@pytest.mark.parametrize("cards", range(1, CARDS_MAX + 1))
def test_c_reads_a_file_by_the_same_numbers_as_python(cards: int) -> None:
    layout = Layout(cards, 0, 0)
    row = re.findall(r"^    \{(\d[\d, ]*)\},$", header.text(), re.MULTILINE)[cards]
    assert [int(number) for number in row.split(", ")] == [
        layout.owner_pids, layout.owner_starts, layout.owner_busy(0), layout.card(0), layout.event(0), layout.link(0),
    ]  # fmt: skip
    assert f"#define FIELD_{CARD_FIELDS[-1]} {len(CARD_FIELDS) - 1}\n" in header.text()


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something that looks like a compiler, and takes its time; the folder that the library is to be kept in."""
    compiler = tmp_path / "slow-cc"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho half > "$2"\nsleep 0.3\necho whole > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    return tmp_path / "cache"


def test_it_is_compiled_once_for_each_version_of_its_source(
    slow_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = build.library(slow_compiler)
    before = place.stat().st_mtime_ns
    assert build.library(slow_compiler) == place
    assert place.stat().st_mtime_ns == before
    assert [each.name for each in place.parent.iterdir()] == [build.SONAME]
    monkeypatch.setattr(header, "PCI_DEVICES", {})
    assert build.library(slow_compiler) != place


def test_two_at_once_both_get_a_whole_library(slow_compiler: Path) -> None:
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(build.library(slow_compiler).read_text()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert got == ["whole\n"] * 3


def test_without_a_compiler_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NoCompiler, match="apt-get install gcc libc6-dev"):
        build.library(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho no headers here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", f"{broken} -m64")
    with pytest.raises(build.NoCompiler, match="no headers here"):
        build.library(tmp_path / "cache")
    assert list((tmp_path / "cache").rglob("*.so*")) == []


def test_nothing_else_needs_the_compiler(tmp_path: Path) -> None:
    code = (
        "from faults.gpu.dcgm import Exporter; from faults.gpu.sim import SimNode\n"
        "with SimNode.create('node.bin', 'l40s', 1) as node: assert 'DCGM_FI_DEV_SM_CLOCK{' in Exporter(node).text()"
    )
    env = {**os.environ, "CC": "no-such-compiler", "PYTHONPATH": str(build.SOURCES.parents[2])}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True)
