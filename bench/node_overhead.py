"""What a process that allocates and copies on an undisturbed simulated node pays over the modelled time.

    .venv/bin/python bench/node_overhead.py

Wall time of `alloc`, a copy and `free`, over the time that the node's own model gives for the copy; medians over
several runs. The overhead is what Python, the file lock and the kernel's timers cost a call, so it weighs as much less
as the copy takes longer; the last column is that cost itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode

ALLOWED = 0.02  # over the modelled time, from FROM_BYTES on
FROM_BYTES = 1 * MIB
RUNS, LONGEST_S = 15, 15.0  # runs of one size, and how long they may take together
CASES = {
    ("pocket", "mesh"): {
        "pcie:0:h2d": (MIB, 4 * MIB, 16 * MIB),
        "nvlink:0>1": (MIB, 4 * MIB, 16 * MIB),
    },
    ("h100-sxm-80", "nvswitch"): {
        "pcie:0:h2d": (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
        "0 to 1": (MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    kept = True
    print(f"{'card':<12} {'way':<11} {'MiB':>5} {'modelled ms':>12} {'wall ÷ modelled':>16} {'cost µs':>8}")
    for (profile, topology), ways in CASES.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            SimNode.create(Path(folder) / "node", profile, 4, topology=topology) as node,
        ):
            for way, sizes in ways.items():
                links = node.route(0, 1) if way == "0 to 1" else (way,)
                for nbytes in sizes:
                    modelled, ratio = measured(node, links, nbytes, options.runs)
                    told = f"{ratio:>16.4f} {(ratio - 1) * modelled * 1e6:>8.0f}"
                    print(
                        f"{profile:<12} {way:<11} {nbytes // MIB:>5} {modelled * 1e3:>12.3f} {told}",
                        flush=True,
                    )
                    kept &= ratio <= 1 + ALLOWED or profile != "pocket"
    return 0 if kept else 1


def measured(node: SimNode, links: tuple[str, ...], nbytes: int, runs: int) -> tuple[float, float]:
    """The modelled time of a copy, and how many times longer an allocation, the copy and the free took."""
    walls, modelled = [], 0.0
    until = time.monotonic() + LONGEST_S
    while len(walls) < runs and (len(walls) < 3 or time.monotonic() < until):
        began = time.perf_counter()
        held = node.alloc(0, nbytes)
        timings = node.transfer([(link, nbytes) for link in links])
        node.free(held)
        walls.append(time.perf_counter() - began)
        modelled = max(timing.elapsed_s for timing in timings)
    return modelled, statistics.median(walls) / modelled


if __name__ == "__main__":
    sys.exit(main())
