"""What neighbours do to real cards, with torch. Each task is a generator, as those for simulated nodes are.

Untested on hardware. What it does before its first yield makes it ready; it yields how many seconds it rests, and is
then gone on with. Cards are numbered as CUDA_VISIBLE_DEVICES has them; `wish.cards` has the node's own numbers.
"""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from faults.gpu.base import AllocMark, Stream
from faults.gpu.nvidia_report import Report
from faults.gpu.profiles import MIB
from faults.gpu.refused import Refused
from faults.gpu.topology import nvlink, pcie

GRAIN_BYTES = 2 * MIB  # what cudaMalloc hands out
CHUNK_BYTES = 256 * MIB  # taken at a time
COPY_BYTES = 16 * MIB  # moved at a time
WORK_BYTES = 256 * MIB  # read and written by a kernel that is bound by memory
MATRIX = 4096  # rows and columns of what a kernel bound by compute multiplies
DEPTH = 2  # rounds under way, so that the card never waits for the host


def cuda() -> Any:
    """torch with CUDA; Refused if it is missing, built without, or sees no card."""
    try:
        import torch
    except ImportError:
        raise Refused("disturbing real cards takes torch with CUDA: pip install torch") from None
    if torch.version.cuda is None:
        raise Refused(
            f"torch {torch.__version__} is built without CUDA: install one that is "
            "(pip install torch --index-url https://download.pytorch.org/whl/cu128)"
        )
    if not torch.cuda.is_available():
        raise Refused(
            "torch sees no CUDA device: is the driver recent enough for it, and may this user use the card?"
        )
    return torch


def hold(torch: Any, wish: Namespace, report: Report) -> Iterator[float]:
    """Allocate until no more than `leave_bytes` of the card are free; don't chase what is freed later."""
    held: list[Any] = []
    chunk = CHUNK_BYTES
    while chunk >= GRAIN_BYTES and (excess := free_bytes(torch) - wish.leave_bytes) > 0:
        chunk = min(chunk, -(-excess // GRAIN_BYTES) * GRAIN_BYTES)
        try:
            held.append(taken(torch, chunk, wish, report))
        except torch.OutOfMemoryError:
            chunk //= 2
    while True:
        yield 1.0


def leak(torch: Any, wish: Namespace, report: Report) -> Iterator[float]:
    """Take `bytes_per_s` of the card, until `floor_bytes` are left."""
    held: list[Any] = []
    grains, began = 0, time.monotonic()
    while True:
        due = int((time.monotonic() - began) * wish.bytes_per_s / GRAIN_BYTES)
        spare = (free_bytes(torch) - wish.floor_bytes) // GRAIN_BYTES
        if (more := min(due - grains, spare)) > 0:
            with contextlib.suppress(torch.OutOfMemoryError):  # somebody was faster
                held.append(taken(torch, more * GRAIN_BYTES, wish, report))
                grains += more
        yield 0.02


def copy(torch: Any, wish: Namespace, report: Report) -> Iterator[float]:
    """Copy between pinned host memory and the card without pause, `streams` copies at a time each way."""
    room(torch, wish, len(wish.directions) * wish.streams * COPY_BYTES)
    lanes: list[Callable[[], object]] = []
    for way in wish.directions:
        for _ in range(wish.streams):
            host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
            there = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda:0")
            to, source = (there, host) if way == "h2d" else (host, there)
            lanes.append(_lane(torch, torch.cuda.Stream(0), to, source))
    links = [pcie(wish.cards[0], way) for way in wish.directions]
    yield from without_pause(torch, lanes, dict.fromkeys(links, wish.streams), COPY_BYTES, report)


def peer_copy(torch: Any, wish: Namespace, report: Report) -> Iterator[float]:
    """Copy from one card to another and back without pause, `streams` copies at a time each way."""
    if not torch.cuda.can_device_access_peer(0, 1):
        raise Refused(f"cards {wish.cards[0]} and {wish.cards[1]} can't reach each other's memory")
    for place in (0, 1):
        room(torch, wish, 2 * wish.streams * COPY_BYTES, place)
    lanes, links = [], {}
    for source, to in ((0, 1), (1, 0)):
        links[nvlink(wish.cards[source], wish.cards[to])] = wish.streams
        for _ in range(wish.streams):
            ends = [torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{end}") for end in (to, source)]
            lanes.append(_lane(torch, torch.cuda.Stream(source), *ends))
    yield from without_pause(torch, lanes, links, COPY_BYTES, report)


def busy(torch: Any, wish: Namespace, report: Report) -> Iterator[float]:
    """Run kernels without end, `streams` at a time on each of `shares`: matrix products, or copies within the card."""
    lanes, links = [], {}
    for share in wish.shares:
        links[share] = wish.streams
        place = wish.cards.index(int(share.partition(":")[2]))
        device = f"cuda:{place}"
        for _ in range(wish.streams):
            stream = torch.cuda.Stream(place)
            if share.startswith("sm:"):
                room(torch, wish, 3 * 2 * MATRIX * MATRIX, place)
                a, b, out = (
                    torch.zeros(MATRIX, MATRIX, dtype=torch.float16, device=device) for _ in range(3)
                )
                lanes.append(_product(torch, stream, a, b, out))
            else:
                room(torch, wish, 2 * WORK_BYTES, place)
                ends = [torch.empty(WORK_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
                lanes.append(_lane(torch, stream, *ends))
    yield from without_pause(torch, lanes, links, None, report)


def without_pause(
    torch: Any,
    lanes: Sequence[Callable[[], object]],
    links: dict[str, int],
    nbytes: int | None,
    report: Report,
) -> Iterator[float]:
    """Round after round of all lanes, DEPTH of them under way. What moved is bytes, or seconds if `nbytes` is None."""
    began = time.monotonic()
    report.streams = {link: Stream(flows, began) for link, flows in links.items()}
    under_way: deque[Any] = deque()
    while True:
        under_way.append([lane() for lane in lanes])
        if len(under_way) >= DEPTH:
            for event in under_way.popleft():
                event.synchronize()
            for link, flows in links.items():
                so_far = report.moved.get(link, 0.0)
                report.moved[link] = so_far + flows * nbytes if nbytes else time.monotonic() - began
            yield 0.0


def free_bytes(torch: Any, place: int = 0) -> int:
    """What a card has free."""
    return int(torch.cuda.mem_get_info(place)[0])


def taken(torch: Any, nbytes: int, wish: Namespace, report: Report) -> Any:
    """So many bytes of the first card, and that they were taken."""
    block, card = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0"), wish.cards[0]
    report.held[card] = report.held.get(card, 0) + nbytes
    report.marks[card] = AllocMark(time.monotonic(), free_bytes(torch))
    return block


def room(torch: Any, wish: Namespace, nbytes: int, place: int = 0) -> None:
    """Refused if what a task works with would leave less than `floor_bytes` free."""
    left = free_bytes(torch, place) - nbytes
    if left < wish.floor_bytes:
        raise Refused(
            f"its buffers of {nbytes // MIB} MiB would leave {max(0, left) // MIB} MiB of card "
            f"{wish.cards[place]} free; at least {wish.floor_bytes // MIB} MiB must stay"
        )


def _lane(torch: Any, stream: Any, to: Any, source: Any) -> Callable[[], Any]:
    def go() -> Any:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
            return stream.record_event()

    return go


def _product(torch: Any, stream: Any, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    def go() -> Any:
        with torch.cuda.stream(stream):
            torch.matmul(a, b, out=out)
            return stream.record_event()

    return go
