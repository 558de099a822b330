"""What is read of a scrape, and what a read that fails costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.gpu.sim import SimNode
from harness.recorder import Recorder
from harness.sampling import Sampler, node_telemetry, parse_exposition, service_metrics
from tests.load.fake_server import FakeServer


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "history.jsonl", clock=lambda: 0.0)
    yield recorder
    recorder.close()


def samples(recorder: Recorder) -> list[dict[str, Any]]:
    return [event["values"] for event in recorder.history().of_kind("sample")]


def test_a_series_is_summed_over_its_labels_and_others_are_left_out() -> None:
    text = """\
# HELP brownout_steps_total Steps.
# TYPE brownout_steps_total counter
brownout_steps_total 12.0

brownout_computed_tokens_total{model="full"} 100.0
brownout_computed_tokens_total{model="li{g h}t"} 5e1
vllm:num_requests_waiting{model_name="full"} 0.0
python_gc_objects_collected_total{generation="0"} 7.0
"""
    assert parse_exposition(text) == {"steps": 12.0, "computed_tokens": 150.0, "queue_depth": 0.0}


def test_steps_are_kept_apart_by_the_sequences_that_were_computed_together() -> None:
    text = """\
brownout_batch_steps_total{sequences="1"} 10.0
brownout_batch_steps_total{model="full",sequences="4"} 3.0
brownout_batch_steps_total{model="light",sequences="4"} 2.0
brownout_batch_steps_created{sequences="1"} 1.7e9
brownout_throttled_steps_total 7.0
brownout_running_limit 4.0
"""
    assert parse_exposition(text) == {
        "batch_steps.1": 10.0,
        "batch_steps.4": 5.0,
        "throttled_steps": 7.0,
        "running_limit": 4.0,
    }


@pytest.mark.parametrize("wrong", [RuntimeError("a bug"), KeyError("x"), TypeError("y")])
def test_a_probe_that_is_wrong_goes_on_and_is_told(wrong: Exception, recorder: Recorder) -> None:
    reads: list[Exception] = [wrong, wrong]
    enough = threading.Event()

    def read() -> dict[str, float]:
        if reads:
            raise reads.pop()
        enough.set()
        return {"x": 1.0}

    with Sampler("node", read, 0.001, recorder):
        assert enough.wait(5)
    (failure,) = recorder.history().of_kind("sample_failure")
    assert (failure["source"], failure["transient"]) == ("node", False)
    assert failure["reason"].startswith(type(wrong).__name__)


def test_a_value_that_can_not_be_recorded_is_told_as_well(recorder: Recorder) -> None:
    with Sampler("node", lambda: {"x": float("nan")}, 1000.0, recorder):
        pass
    assert [e["transient"] for e in recorder.history().of_kind("sample_failure")] == [False]


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf"])
def test_a_series_that_is_no_number_is_left_out(number: str) -> None:
    text = f'vllm:num_requests_running{{m="a"}} 1\nvllm:num_requests_running{{m="b"}} {number}\n'
    assert parse_exposition(text) == {}


@pytest.mark.parametrize("text", ["<html>not found</html>", "steps twelve", "brownout_steps_total"])
def test_what_is_no_exposition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert string to float"):
        parse_exposition(text)


def test_nothing_says_nothing() -> None:
    assert parse_exposition("") == {}


def test_a_last_sample_is_taken_at_the_end_however_short_the_block_was(recorder: Recorder) -> None:
    with Sampler("node", lambda: {"x": 1.0}, 1000.0, recorder):
        pass
    assert samples(recorder) == [{"x": 1.0}]


def test_a_read_that_fails_is_no_sample_and_the_next_one_is_taken(recorder: Recorder) -> None:
    reads: list[Any] = [OSError("gone"), ValueError("garbage"), {"x": 1.0}, OSError("gone")]
    enough = threading.Event()

    def read() -> dict[str, float]:
        if not reads:
            enough.set()
            return {"x": 2.0}
        result = reads.pop(0)
        if isinstance(result, Exception):
            raise result
        return dict(result)

    with Sampler("target", read, 0.001, recorder):
        assert enough.wait(5)
    failures = list(recorder.history().of_kind("sample_failure"))
    assert [(e["source"], e["reason"], e["transient"]) for e in failures] == [
        ("target", "OSError: gone", True),
        ("target", "ValueError: garbage", False),
    ], "once each"
    told = samples(recorder)
    assert told[0] == {"x": 1.0}
    assert set(map(str, told[1:])) == {"{'x': 2.0}"}


def test_a_service_that_does_not_answer_gives_no_sample(recorder: Recorder) -> None:
    url = "http://127.0.0.1:9"
    with service_metrics(url) as read, Sampler("target", read, 1000.0, recorder):
        pass
    with FakeServer() as server:
        server.behave = lambda index: "500"
        with service_metrics(server.url) as read, Sampler("target", read, 1000.0, recorder):
            pass
    assert samples(recorder) == []
    assert all(event["transient"] for event in recorder.history().of_kind("sample_failure"))


def test_a_node_tells_each_cards_condition_and_the_bytes_over_each_link(tmp_path: Path) -> None:
    with SimNode.create(tmp_path / "node", cards=2) as node:
        values = node_telemetry(node)()
    health = ("free_bytes", "gpu_util_percent", "mem_clock_mhz", "power_w", "sm_clock_mhz", "temperature_c")
    assert sorted(values) == [
        *(f"card{card}.{name}" for card in (0, 1) for name in health),
        "nvlink:0>1.bytes",
        "nvlink:1>0.bytes",
        "pcie:0:d2h.bytes",
        "pcie:0:h2d.bytes",
        "pcie:1:d2h.bytes",
        "pcie:1:h2d.bytes",
    ]
    assert values["card0.free_bytes"] == node_total(tmp_path)
    assert values["nvlink:0>1.bytes"] == 0
    assert (values["card1.sm_clock_mhz"], values["card1.power_w"], values["card1.temperature_c"]) == (
        1980,
        70,
        35,
    )


def node_total(tmp_path: Path) -> int:
    with SimNode.create(tmp_path / "another", cards=1) as node:
        return node.memory(0).total_bytes
