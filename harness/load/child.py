"""The process that plays a load: how it is started, and what it is told. It cannot outlive its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from socket import socketpair
from typing import IO, Any

import harness

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# One user, no web page, no files, no tables on the way; the locustfile decides when it is over.
OPTIONS = ["--headless", "--users=1", "--spawn-rate=1", "--only-summary", "--loglevel=WARNING"]
STDERR_TAIL = 2000  # bytes


class Child:
    """Locust, just started. `socket` is our end of the line to it."""

    def __init__(self, config: Mapping[str, Any], run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            self.socket, theirs = socketpair()
            undo.callback(self.socket.close)
            undo.enter_context(theirs)  # the child's end is not ours to keep
            self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the child
            undo.callback(self._stderr.close)
            self._plan_file = _write({**config, "fd": theirs.fileno(), "parent": os.getpid()}, run_dir)
            undo.callback(self._plan_file.unlink, missing_ok=True)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *OPTIONS],
                cwd=run_dir,
                env=_environment(run_dir, self._plan_file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
            undo.pop_all()
            theirs.close()

    def close(self) -> None:
        """Forget it: the process is over. Its plan file goes too."""
        self.socket.close()
        self._stderr.close()
        self._plan_file.unlink(missing_ok=True)

    def how_it_ended(self) -> str:
        """In words, with what it last wrote to standard error."""
        code = self.process.returncode
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}; {self.last_words()}"

    def last_words(self) -> str:
        """What it last wrote to standard error."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - STDERR_TAIL, 0))
        return f"its last words: {self._stderr.read().decode(errors='replace').strip() or 'none'}"


def _write(config: dict[str, Any], run_dir: Path) -> Path:
    with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix="load-", suffix=".json", delete=False) as out:
        json.dump(config, out)
    return Path(out.name).absolute()


def _options(url: str) -> list[str]:
    """One user, no web page, no files, no tables on the way; the locustfile decides when it is over."""
    return [
        "--headless",
        "--users=1",
        "--spawn-rate=1",
        "--only-summary",
        "--loglevel=WARNING",
        f"--host={url}",
    ]


def _environment(run_dir: Path, plan_file: Path) -> dict[str, str]:
    """Ours, without what would let someone's own Locust settings (LOCUST_*, ~/.locust.conf) change it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    root = str(Path(harness.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (root, kept.get("PYTHONPATH")) if part)
    return {**kept, "PYTHONPATH": path, "HOME": str(run_dir.absolute()), "BROWNOUT_LOAD_PLAN": str(plan_file)}
