"""Probes that read on a schedule: the node's telemetry and the service's /metrics. They change nothing.

A probe that can't read leaves a gap among its samples, and what is judged over a gap is inconclusive. Its first
failure is recorded as well: `transient` if whoever is read did not answer, else the probe itself is wrong.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from faults.gpu.base import Gpu
from harness.recorder import Recorder

# What is kept of a scrape: our name, and the series whose values are added up for it.
SERIES = {
    "steps": "brownout_steps_total",
    "computed_tokens": "brownout_computed_tokens_total",
    "computed_kv_bytes": "brownout_computed_kv_bytes_total",
    "direct_dma_bytes": "brownout_direct_dma_bytes_total",
    "staged_dma_bytes": "brownout_staged_dma_bytes_total",
    "preemptions": "vllm:num_preemptions_total",
    "running": "vllm:num_requests_running",
    "queue_depth": "vllm:num_requests_waiting",
    "kv_blocks_held": "brownout_kv_blocks_held",
    "throttled_steps": "brownout_throttled_steps_total",
    "running_limit": "brownout_running_limit",
}
# Kept apart by a label: our name is followed by a dot and the label's value.
LABELLED = {"batch_steps": ("brownout_batch_steps_total", "sequences")}
HEALTH = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "gpu_util_percent")  # of each card
TRANSIENT = (OSError, httpx2.HTTPError)


class Sampler:
    """Calls `read` every `interval_s` on a thread and records what it returns; a failed read is no sample."""

    def __init__(
        self, source: str, read: Callable[[], Mapping[str, float]], interval_s: float, recorder: Recorder
    ) -> None:
        self._source = source
        self._read = read
        self._interval_s = interval_s
        self._recorder = recorder
        self._failures: set[bool] = set()  # the kinds of failure that were recorded
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"sample-{source}", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._take()

    def _loop(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        try:
            self._recorder.note("sample", source=self._source, values=dict(self._read()))
        except Exception as error:  # whatever it is, the thread goes on and the history says so
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        transient = isinstance(error, TRANSIENT)
        if transient in self._failures:
            return
        self._failures.add(transient)
        reason = f"{type(error).__name__}: {error}"
        self._recorder.note("sample_failure", source=self._source, reason=reason, transient=transient)


def node_telemetry(gpu: Gpu) -> Callable[[], dict[str, float]]:
    """Each card's free memory, clock, heat, power and use, and bytes moved over each link since the node began."""
    links = [name for name in gpu.links() if name.startswith(("pcie:", "nvlink:"))]

    def read() -> dict[str, float]:
        values: dict[str, float] = {}
        for card in range(gpu.cards):
            values[f"card{card}.free_bytes"] = gpu.memory(card).free_bytes
            shown = gpu.card(card)
            values |= {f"card{card}.{name}": round(getattr(shown, name), 3) for name in HEALTH}
        for name in links:
            values[f"{name}.bytes"] = round(gpu.link(name).bytes_total)
        return values

    return read


def time_on_cores(pid: int) -> Callable[[], dict[str, float]]:
    """Seconds that a process's threads ran, and were ready to run but waited for a core, by the kernel's count."""

    def read() -> dict[str, float]:
        ran = waited = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                on_core, in_queue, _ = (task / "schedstat").read_text().split()
                ran, waited = ran + int(on_core), waited + int(in_queue)
        return {"service_ran_s": ran / 1e9, "service_waited_s": waited / 1e9}

    return read


@contextmanager
def service_metrics(url: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Reads the service's /metrics, as far as we know its names, while the block lasts."""
    with httpx2.Client(base_url=url, timeout=1.0) as client:

        def read() -> dict[str, float]:
            response = client.get("/metrics")
            response.raise_for_status()
            return parse_exposition(response.text)

        yield read


def parse_exposition(text: str) -> dict[str, float]:
    """Values of `SERIES`, summed over labels, and of `LABELLED`; a series that is absent or NaN is left out."""
    sums: dict[str, float] = {}
    labelled: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        family, _, labels = name.partition("{")
        sums[family] = sums.get(family, 0.0) + float(value)
        for ours, (theirs, label) in LABELLED.items():
            if family == theirs and (found := re.search(rf'(?:^|,){label}="([^"]*)"', labels)):
                key = f"{ours}.{found[1]}"
                labelled[key] = labelled.get(key, 0.0) + float(value)
    read = {ours: sums[theirs] for ours, theirs in SERIES.items() if theirs in sums}
    return {name: value for name, value in (read | labelled).items() if math.isfinite(value)}
