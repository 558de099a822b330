"""A node that processes hammer and die on stays whole, round after round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("BROWNOUT_HAMMER_S", "1.5"))  # of each round


def hammered(path: Path, seconds: float, seed: int) -> dict[str, object]:
    """One round on a new node: how often its processes were killed, and what was wrong."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hammer.py")), str(path), str(seconds), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60 + 2 * seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_node_under_two_hammers_that_are_killed_at_random_stays_whole(path: Path) -> None:
    told = hammered(path, 1.0, seed=0)
    assert told["wrong"] == []
    assert told["kills"] >= 4


@pytest.mark.campaign
def test_twenty_of_twenty_rounds_leave_a_consistent_node(tmp_path: Path) -> None:
    rounds = [hammered(tmp_path / f"node{seed}", SECONDS, seed) for seed in range(1, 21)]
    sys.stdout.write("\n" + "\n".join(map(json.dumps, rounds)) + "\n")
    assert [told["wrong"] for told in rounds] == [[]] * 20
    assert sum(told["amid_a_write"] for told in rounds) > 0  # or the kills proved nothing
