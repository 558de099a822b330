"""Runs one drill many times in a row and prints every verdict, and how fast each breaker opened.

    .venv/bin/python bench/drills_in_a_row.py --drills 12 --busy 6

The last `--busy` drills run beside a process that keeps one core busy: they may be UNKNOWN, never FAIL.
Exit code 0 if that holds and every other drill passed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRILL = Path("scenarios/burst-survives-vram-pcie-nvlink.yaml")
ALLOWED_MS = {"vram.memory": 200, "pcie.pcie": 500, "nvlink.nvlink": 1000}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drill", type=Path, default=DRILL)
    parser.add_argument("--drills", type=int, default=12)
    parser.add_argument("--busy", type=int, default=6)
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="PATH=VALUE")
    options = parser.parse_args()
    reports, fine = [], True
    for number in range(1, options.drills + 1):
        busy = number > options.drills - options.busy
        with busy_core() if busy else idle():
            report, seconds = run(options.drill, options.sets)
        status = report["status"]
        fine &= status == "PASS" or (busy and status == "UNKNOWN")
        reports.append((busy, report))
        doubts = [f["id"] for f in report["findings"] if f["outcome"] != "HELD"]
        print(
            f"{number:>3}  {'busy core' if busy else 'quiet':<10} {status:<8} {seconds:6.1f} s  {' '.join(doubts)}",
            flush=True,
        )
    print_detection(reports)
    return 0 if fine else 1


def run(drill: Path, sets: list[str]) -> tuple[dict[str, object], float]:
    """One drill as a user runs it: its JSON object, and how long it took."""
    words = [str(Path(sys.executable).with_name("brownout")), "run", str(drill), "--json"]
    words += [word for text in sets for word in ("--set", text)]
    began = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    seconds = time.monotonic() - began
    return json.loads(done.stdout.splitlines()[-1]), seconds


def print_detection(reports: list[tuple[bool, dict[str, object]]]) -> None:
    """A table: median and worst latency from effect to open breaker, in ms."""
    print(f"\n{'breaker':<14} {'allowed':>8} {'median':>8} {'worst':>8}   of")
    for name, allowed in ALLOWED_MS.items():
        latencies = [
            finding["numbers"]["latency_ms"]
            for _, report in reports
            for finding in report["findings"]  # type: ignore[attr-defined]
            if finding["id"] == f"response.{name}.detected" and "latency_ms" in finding["numbers"]
        ]
        if latencies:
            middle, worst = statistics.median(latencies), max(latencies)
            print(f"{name:<14} {allowed:>5} ms {middle:>5.0f} ms {worst:>5.0f} ms   {len(latencies)}")


@contextmanager
def busy_core() -> Iterator[None]:
    """A process of ours that spins until the block is left."""
    spinner = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    spinner.start()
    try:
        yield
    finally:
        spinner.kill()
        spinner.join()


@contextmanager
def idle() -> Iterator[None]:
    yield


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    sys.exit(main())
