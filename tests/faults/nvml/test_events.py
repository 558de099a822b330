"""Events as they reach a client of NVML, and how long it waits for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from faults.gpu.sim import SimNode

CLIENT = """
import json, sys, time
import pynvml as nvml
nvml.nvmlInit()
first, second = (nvml.nvmlDeviceGetHandleByIndex(n) for n in (0, 1))
events = nvml.nvmlEventSetCreate()
supported = nvml.nvmlDeviceGetSupportedEventTypes(first)
nvml.nvmlDeviceRegisterEvents(first, nvml.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
seen = []
for line in sys.stdin:
    since = time.monotonic()
    try:
        got = nvml.nvmlEventSetWait_v2(events, int(line))
        told = [nvml.nvmlDeviceGetIndex(got.device), got.eventType, got.eventData]
    except nvml.NVMLError as error:
        told = {"error": error.value}
    print(json.dumps({"got": told, "took_s": time.monotonic() - since, "supported": supported}), flush=True)
nvml.nvmlEventSetFree(events)
"""


class Listener:
    """A client that has registered for the Xids of card 0."""

    def __init__(self, library: Path, node: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env={"LD_LIBRARY_PATH": str(library.parent), "BROWNOUT_NODE": str(node)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, timeout_ms: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{timeout_ms}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, object]:
        assert self.process.stdout is not None
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture
def listener(library: Path, attended: SimNode):
    attended.report(0, 31)  # before anybody has registered
    listener = Listener(library, attended.path)
    yield listener
    listener.process.kill()
    listener.process.communicate()


def test_an_xid_arrives_while_somebody_waits(attended: SimNode, listener: Listener) -> None:
    listener.ask(5000)
    attended.report(1, 48)  # of a card that nobody has registered for
    attended.report(0, 79)
    answer = listener.answer()
    assert answer["got"] == [0, 0x8, 79]
    assert attended.events()[-1].data == 79


def test_events_wait_until_they_are_asked_for_in_order(attended: SimNode, listener: Listener) -> None:
    for xid in (63, 94, 95):
        attended.report(0, xid)
    for xid in (63, 94, 95):
        listener.ask(1000)
        assert listener.answer()["got"] == [0, 0x8, xid]


def test_without_an_event_the_whole_time_is_waited(listener: Listener) -> None:
    listener.ask(300)
    answer = listener.answer()
    assert answer["got"] == {"error": 10}
    assert 0.3 <= float(str(answer["took_s"])) < 1.0
    assert int(str(answer["supported"])) & 0x8
