"""The bundled service alone, for trying it by hand or with one's own client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults
from faults.gpu.sim import SimNode
from harness.children import python_path
from harness.errors import OwnFailure
from harness.worlds.local import HOME, refuse_cards, refuse_port_in_use


def serve(host: str, port: int, seed: int, model: Path | None, cards: int) -> int:
    """Run it until SIGINT or SIGTERM; its exit code."""
    if model is None:
        refuse_cards(cards, "--cards")
    refuse_port_in_use(port, "--port", host)
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME, prefix="node-") as folder:
        node = SimNode.create(Path(folder) / "node.bin", cards=cards)
        settings = {"seed": seed, "model": str(model) if model else None}
        words = [
            sys.executable, "-P", "-m", "target", "--node", str(node.path), "--host", host, "--port", str(port),
            "--home", str(HOME), "--settings", json.dumps(settings), "--until-stdin-closes",
        ]  # fmt: skip
        child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(faults.__file__)},
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: child.terminate())
        while child.poll() is None:
            time.sleep(0.1)
        node.destroy()
    return 0 if child.returncode == 0 else OwnFailure.exit_code
