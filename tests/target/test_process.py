"""The service as a process on a simulated node: it answers, drains, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from faults.gpu.profiles import MIB
from faults.gpu.sim import SimNode

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "def main() -> int:"


@dataclass
class Service:
    """A running `python -m target`."""

    process: subprocess.Popen[bytes]
    url: str
    node: SimNode
    journal: Path

    def ask(self, max_tokens: int = 8, **body: Any) -> Any:
        whole = {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0} | body
        return httpx2.post(f"{self.url}/v1/completions", json=whole, timeout=30)

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, timeout=30)

    def wait(self) -> int:
        return self.process.wait(15)

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [line for line in lines if line.get("event") == event]


Start = Callable[..., Service]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the built-in checkpoints are written, once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Iterator[Start]:
    """Starts a service on a new node of four cards; what is left of it in the end is killed."""
    node = SimNode.create(tmp_path / "node")
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str, **settings: Any) -> Service:
        journal = tmp_path / "journal.jsonl"
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "target", "--node", str(node.path), "--home", str(home)),
                *("--journal", str(journal), "--settings", json.dumps(settings), *words),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read().decode() if process.stderr else ""
        return Service(process, json.loads(line)["url"], node, journal)

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    node.destroy()


def used(node: SimNode) -> list[int]:
    """Bytes that others hold, by card."""
    return [sum(node.memory(card).used_by.values()) for card in range(node.cards)]


def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"it did not come true within {seconds:g} s"
        time.sleep(0.01)


def test_it_answers_by_name_of_model_and_gives_all_memory_back_when_it_is_told_to_end(start: Start) -> None:
    service = start("--until-stdin-closes", drain_s=1)
    assert min(used(service.node)) > 20 * MIB
    assert service.get("/health").json()["status"] == "ok"
    assert service.get("/ready").json() == {"ready": True, "reason": ""}
    models = {card["id"]: card["brownout"]["rung"] for card in service.get("/v1/models").json()["data"]}
    assert models == {"brownout-full": "full", "brownout-light": "light"}

    answers = {name: service.ask(model=name) for name in (None, "brownout-full", "brownout-light")}
    assert [answer.status_code for answer in answers.values()] == [200] * 3
    texts = {name: answer.json()["choices"][0]["text"] for name, answer in answers.items()}
    assert texts[None] == texts["brownout-full"] != texts["brownout-light"]
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers.values()} == {8}
    assert answers["brownout-light"].json()["model"] == "brownout-light"
    assert answers["brownout-light"].headers["x-brownout-rung"] == "light"

    with ThreadPoolExecutor(6) as pool:
        together = [a.json()["choices"][0]["text"] for a in pool.map(lambda _: service.ask(), range(6))]
    assert set(together) == {texts[None]}
    assert service.ask(model="huge").status_code == 404
    assert service.ask(max_tokens=10_000).status_code == 400
    metrics = service.get("/metrics").text
    assert 'vllm:request_success_total{finished_reason="length",model_name="brownout-full"} 8.0' in metrics

    service.process.send_signal(signal.SIGTERM)
    assert service.wait() == 0
    assert service.process.stderr is not None
    assert service.process.stderr.read() == b""
    assert used(service.node) == [0] * 4
    (stopped,) = service.events("stopped")
    assert stopped["kv_blocks"] == 0
    lines = [json.loads(line) for line in service.journal.read_text().splitlines()]
    assert [line["n"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1] == stopped
    assert len(service.events("admitted")) == len(service.events("terminal")) == 9


def test_a_stream_under_way_may_finish_after_the_signal_and_no_new_request_is_let_in(start: Start) -> None:
    service = start(drain_s=10)
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stream": True}
    with httpx2.stream("POST", f"{service.url}/v1/completions", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        service.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert service.wait() == 0
    with pytest.raises(httpx2.ConnectError):
        service.ask()
    assert [end["reason"] for end in service.events("terminal")] == ["length"]


def test_a_draining_service_says_so_before_its_port_closes_and_sends_new_requests_elsewhere(
    start: Start,
) -> None:
    service = start(drain_s=2, drain_ready_s=1.5)
    service.process.send_signal(signal.SIGTERM)
    until(lambda: service.get("/ready").status_code == 503)
    assert service.get("/ready").json() == {"ready": False, "reason": "draining"}
    answer = service.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"
    assert service.get("/health").status_code == 200
    assert 'brownout_rejected_total{code="draining"} 1.0' in service.get("/metrics").text
    assert service.wait() == 0
    assert service.events("admitted") == []


def test_what_is_left_at_the_end_of_the_drain_ends_with_an_error_that_says_so_and_memory_comes_back(
    start: Start,
) -> None:
    service = start(drain_s=0)
    body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "stream": True}
    seen: list[str] = []
    with (
        httpx2.stream("POST", f"{service.url}/v1/completions", json=body, timeout=30) as answer,
        contextlib.suppress(httpx2.HTTPError),
    ):
        for line in answer.iter_lines():
            if not seen:
                service.process.send_signal(signal.SIGTERM)
            seen.append(line)
    assert seen
    assert "data: [DONE]" not in seen
    last = json.loads([line for line in seen if line][-1].removeprefix("data: "))
    assert last["error"]["code"] == "cancelled"
    assert last["error"]["message"] == "the service is stopping"
    assert service.wait() == 0
    assert used(service.node) == [0] * 4
    assert [end["reason"] for end in service.events("terminal")] == ["cancelled"]


def test_a_client_that_disconnects_stops_the_work(start: Start) -> None:
    service = start()
    body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "stream": True}
    with httpx2.stream("POST", f"{service.url}/v1/completions", json=body, timeout=30) as answer:
        next(answer.iter_lines())
    until(lambda: bool(service.events("terminal")))
    (end,) = service.events("terminal")
    assert end["reason"] == "cancelled"
    assert end["output_tokens"] < 200
    assert 'brownout_kv_blocks_held{model_name="brownout-full"} 0.0' in service.get("/metrics").text


def test_it_ends_with_its_owner_whose_death_closes_standard_input(start: Start) -> None:
    service = start("--until-stdin-closes", drain_s=1)
    assert service.process.stdin is not None
    service.process.stdin.close()
    assert service.wait() == 0
    assert used(service.node) == [0] * 4


def test_a_killed_service_leaves_memory_and_port_to_the_next_one(start: Start) -> None:
    service = start()
    port = int(service.url.rsplit(":", 1)[1])
    service.process.send_signal(signal.SIGKILL)
    assert service.wait() == -signal.SIGKILL
    service.node.reclaim()
    assert used(service.node) == [0] * 4
    again = start("--port", str(port))
    assert again.ask().status_code == 200


def test_a_port_in_use_is_refused_before_anything_is_loaded(start: Start, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="Address already in use"):
            start("--port", str(taken.getsockname()[1]))


def test_settings_that_are_not_known_are_refused_by_name(start: Start) -> None:
    with pytest.raises(AssertionError, match="max_runing"):
        start(max_runing=3)
