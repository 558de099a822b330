"""A tenant of real cards, told what to do line by line; it works with torch. Untested on hardware."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # what is freed is the card's again at once

import torch

from tests.faults.tenant import serve

CHUNK = 4 * 2**20  # copies that share are given out in turns of so many bytes
MATRIX = 4096
WORK_BYTES = 256 * 2**20
COMPUTE_PER_S, MEMORY_PER_S = (
    600.0,
    4000.0,
)  # rounds of a kernel that stand for one second of work; only ratios count


class TorchTenant:
    """What `tests.faults.tenant.Tenant` asks for, on real cards."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}
        self._ending = threading.Event()
        self._copying: threading.Thread | None = None
        torch.zeros(1, device="cuda:0")  # the context's own memory is not an allocation of ours

    def alloc(self, card: int, nbytes: int) -> int:
        block = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{card}")
        self._held[id(block)] = block
        return id(block)

    def free(self, key: int) -> None:
        del self._held[key]
        torch.cuda.synchronize()

    def host_copies(self, card: int, way: str, nbytes: int, count: int) -> list[float]:
        pairs = [self._host_pair(card, way) for _ in range(count)]
        return self._together(card, pairs, nbytes)

    def peer_copies(self, source: int, to: int, nbytes: int, count: int) -> list[float]:
        pairs = [(self._chunk(f"cuda:{to}"), self._chunk(f"cuda:{source}")) for _ in range(count)]
        return self._together(source, pairs, nbytes)

    def kernel(self, card: int, bound: str, work_s: float) -> float:
        device = f"cuda:{card}"
        if bound == "sm":
            a, b, out = (torch.zeros(MATRIX, MATRIX, dtype=torch.float16, device=device) for _ in range(3))
            return self._timed(card, lambda: torch.matmul(a, b, out=out), round(work_s * COMPUTE_PER_S) + 20)
        to, source = (torch.empty(WORK_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
        return self._timed(card, lambda: to.copy_(source), round(work_s * MEMORY_PER_S) + 20)

    def keep_copying(self, card: int, way: str) -> None:
        self._ending.clear()
        self._copying = threading.Thread(target=self._copy_until_told, args=(card, way), daemon=True)
        self._copying.start()

    def stop_copying(self) -> None:
        assert self._copying is not None
        self._ending.set()
        self._copying.join()

    def _copy_until_told(self, card: int, way: str) -> None:
        (to, source), stream = self._host_pair(card, way), torch.cuda.Stream(card)
        while not self._ending.is_set():
            with torch.cuda.stream(stream):
                for _ in range(8):
                    to.copy_(source, non_blocking=True)
            stream.synchronize()

    def _together(self, card: int, pairs: list[tuple[Any, Any]], nbytes: int) -> list[float]:
        """Copies of each pair on a stream of its own, chunk by chunk in turn, timed by the device."""
        streams = [torch.cuda.Stream(card) for _ in pairs]
        begun, ended = ([torch.cuda.Event(enable_timing=True) for _ in pairs] for _ in range(2))
        for stream, event in zip(streams, begun, strict=True):
            event.record(stream)
        for _ in range(max(1, nbytes // CHUNK)):
            for stream, (to, source) in zip(streams, pairs, strict=True):
                with torch.cuda.stream(stream):
                    to.copy_(source, non_blocking=True)
        for stream, event in zip(streams, ended, strict=True):
            event.record(stream)
        torch.cuda.synchronize(card)
        return [a.elapsed_time(b) / 1000 for a, b in zip(begun, ended, strict=True)]

    @staticmethod
    def _timed(card: int, act: Callable[[], object], rounds: int) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(card):
            act()
            begun.record()
            for _ in range(rounds):
                act()
            ended.record()
            torch.cuda.synchronize()
        return begun.elapsed_time(ended) / 1000

    def _host_pair(self, card: int, way: str) -> tuple[Any, Any]:
        host = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)
        there = self._chunk(f"cuda:{card}")
        return (there, host) if way == "h2d" else (host, there)

    @staticmethod
    def _chunk(device: str) -> Any:
        return torch.empty(CHUNK, dtype=torch.uint8, device=device)


if __name__ == "__main__":
    serve(TorchTenant(), torch.OutOfMemoryError)
