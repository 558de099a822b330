"""As much of torch as neighbours on real cards use, on the cards of a JSON file. FAKE_TORCH says what is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import state

if os.environ.get("FAKE_TORCH") == "missing":
    raise ImportError("no torch here")

__version__ = "9.9"
version = SimpleNamespace(cuda=None if os.environ.get("FAKE_TORCH") == "without CUDA" else "12.8")
uint8, float16 = 1, 2


class OutOfMemoryError(RuntimeError):
    pass


class Tensor:
    def copy_(self, source: Tensor, non_blocking: bool) -> None:
        assert non_blocking


def empty(*shape: int, dtype: int, device: str = "cpu", pin_memory: bool = False) -> Tensor:
    assert (device == "cpu") == pin_memory
    nbytes = dtype
    for size in shape:
        nbytes *= size
    if device != "cpu":
        with state.state() as told:
            card = told["cards"][state.visible()[int(device.removeprefix("cuda:"))]]
            if nbytes > state.free(card):
                raise OutOfMemoryError
            pid = str(os.getpid())
            card["used"][pid] = card["used"].get(pid, 0) + nbytes
    return Tensor()


zeros = empty


def matmul(a: Tensor, b: Tensor, out: Tensor) -> None: ...


class Event:
    def synchronize(self) -> None:
        time.sleep(0.001)


class Stream:
    def __init__(self, place: int) -> None:
        assert place < len(state.visible())

    def record_event(self) -> Event:
        return Event()


@contextmanager
def _on(stream: Stream) -> Iterator[None]:
    yield


def _mem_get_info(place: int) -> tuple[int, int]:
    with state.state() as told:
        card = told["cards"][state.visible()[place]]
        return state.free(card), card["total"]


def _can_device_access_peer(one: int, other: int) -> bool:
    with state.state() as told:
        return bool(told["peers"])


cuda = SimpleNamespace(
    is_available=lambda: os.environ.get("FAKE_TORCH") != "sees none",
    mem_get_info=_mem_get_info,
    can_device_access_peer=_can_device_access_peer,
    Stream=Stream,
    stream=_on,
)
