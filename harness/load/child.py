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
from harness.children import last_words_in, python_path

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# One user, no web page, no files, no tables on the way; the locustfile decides when it is over.
OPTIONS = ["--headless", "--users=1", "--spawn-rate=1", "--only-summary", "--loglevel=WARNING"]


class Child:
    """Locust, just started. `socket` is our end of the line to it."""

    def __init__(self, config: Mapping[str, Any], run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            self.socket, theirs = socketpair()
            undo.callback(self.socket.close)
            undo.enter_context(theirs)  # the child's end is not ours to keep
            self._stderr: IO[bytes] = tempfile.TemporaryFile(dir=run_dir)  # noqa: SIM115 - open for as long as the child
            undo.callback(self._stderr.close)
            plan = undo.enter_context(
                _write({**config, "fd": theirs.fileno(), "parent": os.getpid()}, run_dir)
            )
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *OPTIONS],
                cwd=run_dir,
                env=_environment(run_dir, plan.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=[theirs.fileno(), plan.fileno()],
            )
            undo.pop_all()
            theirs.close()
            plan.close()

    def close(self) -> None:
        """Forget it: the process is over."""
        self.socket.close()
        self._stderr.close()

    def how_it_ended(self) -> str:
        """In words, with what it last wrote to standard error."""
        code = self.process.returncode
        how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}; {self.last_words()}"

    def last_words(self) -> str:
        """What it last wrote to standard error."""
        return f"its last words: {last_words_in(self._stderr) or 'none'}"


def _write(config: dict[str, Any], folder: Path) -> IO[bytes]:
    """The plan in a file without a name: there is nothing to remove, whoever is killed."""
    plan = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    try:
        plan.write(json.dumps(config).encode())
        plan.seek(0)
    except BaseException:
        plan.close()
        raise
    return plan


def _environment(run_dir: Path, plan_fd: int) -> dict[str, str]:
    """Ours, without what would let someone's own Locust settings (LOCUST_*, ~/.locust.conf) change it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    ours = {"PYTHONPATH": python_path(harness.__file__), "HOME": str(run_dir.absolute())}
    return {**kept, **ours, "BROWNOUT_LOAD_PLAN_FD": str(plan_fd)}
