"""Compiles the NVML library of simulated nodes with the machine's C compiler, once for each version of its source."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from faults.gpu.nvml import header

SONAME = "libnvidia-ml.so.1"  # clients load it by this name alone
CACHE = Path(".brownout") / "nvml"
SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{SONAME}")
_COMPILE_WITHIN_S = 120.0
_DEFINED = re.compile(r"^API [\w *]*?\b(nvml\w+)\(|^[A-Z]+\((nvml\w+)\b", re.MULTILINE)


class NoCompiler(RuntimeError):
    """There is no C compiler, or it doesn't manage; the message says what to install."""


def library(cache: Path = CACHE, extra_flags: tuple[str, ...] = ()) -> Path:
    """The library's absolute path, compiled first if it isn't there. NoCompiler if it can't be.

    LD_LIBRARY_PATH has to name the folder that it lies in.
    """
    sources = {path.name: path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))}
    sources |= {"layout.h": header.text(), "unsupported.c": unsupported()}
    told = repr((sorted(sources.items()), FLAGS, extra_flags, os.environ.get("CC"), os.uname().machine))
    place = cache.absolute() / hashlib.sha256(told.encode()).hexdigest()[:16] / SONAME
    if not place.exists():
        _compile(sources, extra_flags, place)
    return place


def names() -> list[str]:
    """Every function that the library exports."""
    return (SOURCES / "names.txt").read_text().split()


def defined() -> set[str]:
    """The functions that do something, as opposed to saying that they are not supported."""
    text = "".join(path.read_text() for path in SOURCES.glob("*.c"))
    return {one or other for one, other in _DEFINED.findall(text)}


def unsupported() -> str:
    """C for all functions without an implementation. Clients choose by what is there, so none may be missing."""
    done = defined()
    bodies = (f"API Return {name}(void) {{ return unsupported(); }}" for name in names() if name not in done)
    start = '#include "node.h"\nstatic Return unsupported(void) { ENTER(head); return NOT_SUPPORTED; }\n'
    return start + "\n".join(bodies) + "\n"


def _compile(sources: dict[str, str], extra_flags: tuple[str, ...], place: Path) -> None:
    words = shlex.split(os.environ.get("CC") or "cc")
    if not words or shutil.which(words[0]) is None:
        raise NoCompiler(
            f"the NVML library needs a C compiler, and there is no {words[0] if words else 'cc'!r}: install one "
            "(Debian, Ubuntu: apt-get install gcc libc6-dev) or name it in CC"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        units = sorted(name for name in sources if name.endswith(".c"))
        command = [*words, *FLAGS, *extra_flags, "-o", SONAME, *units]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_COMPILE_WITHIN_S, check=False
        )
        if done.returncode:
            raise NoCompiler(
                f"{shlex.join(command[: len(words)])} could not compile the NVML library:\n{done.stderr}"
            )
        # In one step: whoever comes in between finds a whole library or none.
        (Path(folder) / SONAME).replace(place)
