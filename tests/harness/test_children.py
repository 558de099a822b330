"""Child processes: how they say hello, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.children import Child, python_path
from harness.errors import OwnFailure

Start = Callable[[str], Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a piece of Python as a child; what is left of it at the end is killed."""
    children: list[Child] = []
    with tempfile.TemporaryFile() as stderr:

        def run(code: str) -> Child:
            words = [sys.executable, "-c", textwrap.dedent(code)]
            child = Child("the child", words, stderr=stderr, environment={"GREETING": "hi"})
            children.append(child)
            return child

        yield run
        for child in children:
            child.end(0.1)


SLEEP = "import time; time.sleep(60)"


def test_a_greeting_is_the_first_line_as_json_and_its_environment_is_ours_and_more(start: Start) -> None:
    child = start("""
        import json, os, time
        print(json.dumps({"port": 1, "greeting": os.environ["GREETING"], "home": os.environ["HOME"]}), flush=True)
        time.sleep(60)
    """)
    assert child.greeting(10) == {"port": 1, "greeting": "hi", "home": os.environ["HOME"]}
    assert not child.has_ended


def test_a_greeting_may_come_in_pieces_and_with_more_after_it(start: Start) -> None:
    child = start("""
        import os, time
        os.write(1, b'{"po'); time.sleep(0.05); os.write(1, b'rt": 1}\\nand more'); time.sleep(60)
    """)
    assert child.greeting(10) == {"port": 1}


def test_a_child_that_says_nothing_in_time_is_our_failure(start: Start) -> None:
    with pytest.raises(
        OwnFailure, match=r"the child said nothing for 0\.05 s before it was ready: no message"
    ):
        start(SLEEP).greeting(0.05)


def test_a_child_that_ends_early_is_our_failure_with_its_last_words(start: Start) -> None:
    child = start("import sys; sys.exit('x' * 5000 + ' no such model')")
    with pytest.raises(OwnFailure, match=r"the child ended before it was ready: x+ no such model") as failure:
        child.greeting(10)
    assert len(str(failure.value)) < 2200, "only the end of what it said"


def test_a_child_that_greets_with_something_else_is_our_failure(start: Start) -> None:
    child = start("print('Hello there!', flush=True); import time; time.sleep(60)")
    with pytest.raises(OwnFailure, match="the child greeted with b'Hello there!', which is not JSON"):
        child.greeting(10)


def test_a_child_that_listens_ends_in_its_own_way(start: Start, tmp_path: Path) -> None:
    child = start(f"""
        import pathlib, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / "bye")!r}).touch(), sys.exit(3)))
        print('1', flush=True)
        signal.pause()
    """)
    child.greeting(10)
    child.end(10)
    assert child.process.returncode == 3
    assert (tmp_path / "bye").exists()


FAMILY = """
    import os, signal, subprocess, sys, time
    grandchild = subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE)
    grandchild.stdout.readline()
    {deaf}
    print(grandchild.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("deaf", [True, False], ids=["deaf", "obedient"])
def test_of_a_stubborn_family_nobody_is_left(deaf: bool, start: Start) -> None:
    child = start(FAMILY.format(deaf="signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""))
    grandchild = psutil.Process(int(str(child.greeting(10))))
    child.end(0.2)
    assert child.process.returncode == (-9 if deaf else -15)
    wait_until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE)


def test_ending_a_child_twice_or_after_its_death_is_harmless(start: Start) -> None:
    child = start("print(1, flush=True)")
    child.greeting(10)
    child.process.wait(10)
    child.end(0.1)
    child.end(0.1)
    assert child.has_ended


def test_a_child_sees_its_standard_input_close_when_its_owner_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, signal, sys, tempfile
        from harness.children import Child
        code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); open({str(tmp_path / "bye")!r}, 'w')"
        child = Child("x", [sys.executable, "-c", code], stderr=tempfile.TemporaryFile(), environment={{}})
        child.greeting(10)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": python_path(__file__)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, env=environment)
    wait_until((tmp_path / "bye").exists)


def test_the_search_path_has_our_folder_first_and_the_users_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert python_path("/ours/faults/__init__.py") == "/ours:/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert python_path("/ours/faults/__init__.py") == "/ours"


def wait_until(true: Callable[[], bool], within_s: float = 5.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.01)
