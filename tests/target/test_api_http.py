"""The API over plain HTTP: bad requests, clients that leave, and the pages that must always answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from target.request import Token
from tests.target.fake_service import BEGUN, HANG, FakeService, serving


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[httpx2.Client]:
    with serving(service) as url, httpx2.Client(base_url=url, timeout=5) as client:
        yield client


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "big", "prompt": [33, 34], **fields}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "big", "messages": list(messages), **fields}


BAD_COMPLETIONS = {
    "no prompt": ({"model": "big"}, "prompt"),
    "empty prompt": (completion(prompt=""), "prompt"),
    "empty ids": (completion(prompt=[]), "prompt"),
    "negative id": (completion(prompt=[-1]), "prompt"),
    "id beyond the vocabulary": (completion(prompt=[256]), "prompt"),
    "truth as id": (completion(prompt=[True]), "prompt"),
    "mixed prompt": (completion(prompt=[1, "a"]), "prompt"),
    "two prompts": (completion(prompt=["a", "b"]), "prompt"),
    "prompt of a wrong type": (completion(prompt=3), "prompt"),
    "too long": (completion(prompt=[33] * 60, max_tokens=5), "prompt"),
    "max_tokens 0": (completion(max_tokens=0), "max_tokens"),
    "max_tokens as text": (completion(max_tokens="5"), "max_tokens"),
    "max_tokens as truth": (completion(max_tokens=True), "max_tokens"),
    "temperature -1": (completion(temperature=-1), "temperature"),
    "temperature NaN": (completion(temperature=float("nan")), "temperature"),
    "top_p 0": (completion(top_p=0), "top_p"),
    "seed too large": (completion(seed=2**70), "seed"),
    "empty stop": (completion(stop=[""]), "stop.0"),
    "five stops": (completion(stop=list("abcde")), "stop"),
    "n 2": (completion(n=2), "n"),
    "logprobs": (completion(logprobs=3), "logprobs"),
    "logprobs 0": (completion(logprobs=0), "logprobs"),
    "n as truth": (completion(n=True), "n"),
    "echo as number": (completion(echo=0), "echo"),
    "null prompt": (completion(prompt=None), "prompt"),
    "unknown field": (completion(top_k=3), "top_k"),
    "options without a stream": (completion(stream_options={"include_usage": True}), None),
    "unknown stream option": (completion(stream=True, stream_options={"x": 1}), "stream_options.x"),
    "model of a wrong type": (completion(model=7), "model"),
}
BAD_CHATS = {
    "no messages": (chat(), "messages"),
    "unknown role": (chat({"role": "cat", "content": "a"}), "messages.0.role"),
    "no content": (chat({"role": "user"}), "messages.0.content"),
    "null content": (chat({"role": "user", "content": None}), "messages.0.content"),
    "null messages": (chat(messages=None), "messages"),
    "called tools": (
        chat({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}),
        "messages.0.tool_calls",
    ),
    "logprobs": (chat({"role": "user", "content": "a"}, logprobs=True), "logprobs"),
    "audio": (chat({"role": "user", "content": "a"}, modalities=["text", "audio"]), "modalities"),
    "picture": (chat({"role": "user", "content": [{"type": "image_url"}]}), "messages.0.content.0.type"),
    "tools": (chat({"role": "user", "content": "a"}, tools=[{"type": "function"}]), "tools"),
    "too long": (chat({"role": "user", "content": "a" * 70}), "messages"),
}


@pytest.fixture(scope="module")
def refusing() -> Iterator[httpx2.Client]:
    with serving(FakeService()) as url, httpx2.Client(base_url=url, timeout=5) as client:
        yield client


@pytest.mark.parametrize("what", BAD_COMPLETIONS)
def test_a_bad_completion_is_refused_with_the_field_that_is_bad(what: str, refusing: httpx2.Client) -> None:
    body, param = BAD_COMPLETIONS[what]
    assert refused(refusing, "/v1/completions", body, 400)["param"] == param


@pytest.mark.parametrize("what", BAD_CHATS)
def test_a_bad_chat_is_refused_with_the_field_that_is_bad(what: str, refusing: httpx2.Client) -> None:
    body, param = BAD_CHATS[what]
    assert refused(refusing, "/v1/chat/completions", body, 400)["param"] == param


NOT_JSON = {
    "nothing": b"",
    "a brace": b"{",
    "a list": b"[]",
    "a number": b"7",
    "not text": b"\xff",
    "deep": b"[" * 9000,
    "half a character": b'{"prompt": "\\ud800"}',
    "a field of half a character": b'{"\\uD800": 1}',
}


@pytest.mark.parametrize("what", NOT_JSON)
def test_a_body_that_is_no_json_object_is_refused(what: str, refusing: httpx2.Client) -> None:
    answer = refusing.post("/v1/completions", content=NOT_JSON[what])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_an_unknown_model_is_404_and_says_which_there_are(refusing: httpx2.Client) -> None:
    error = refused(refusing, "/v1/completions", completion(model="gpt-9"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "big, small" in error["message"]


def test_a_body_beyond_the_limit_is_413(refusing: httpx2.Client) -> None:
    assert (
        refused(refusing, "/v1/completions", completion(prompt="a" * 20_000), 413)["code"] == "body_too_large"
    )


@pytest.mark.parametrize("timeout", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_timeout_header_that_is_no_time_is_refused(timeout: str, refusing: httpx2.Client) -> None:
    answer = refusing.post("/v1/completions", json=completion(), headers={"timeout": timeout})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


def test_what_is_neutral_or_only_informs_is_accepted(refusing: httpx2.Client) -> None:
    body = completion(n=1, logprobs=None, presence_penalty=0.0, user="me", stop=None, max_tokens=None)
    assert refusing.post("/v1/completions", json=body).status_code == 200


OPTIONAL = (
    *(
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "n",
        "priority",
        "stream",
        "stream_options",
    ),
    *("logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "user", "metadata"),
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "best_of", "echo", "suffix", "store"),
)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_null_is_as_good_as_absent(path: str, client: httpx2.Client, service: FakeService) -> None:
    body = chat({"role": "user", "content": "a", "name": None}) if "chat" in path else completion()
    for fields in (body, body | dict.fromkeys(OPTIONAL)):
        fields = {name: value for name, value in fields.items() if name != "model"} | (
            {"model": None} if len(fields) > 2 else {}
        )
        assert client.post(path, json=fields).status_code == 200
    first, second = service.requests
    assert replace(first, id="", client_id="") == replace(second, id="", client_id="")


def test_options_of_a_stream_may_be_null_and_padding_is_not_a_promise(refusing: httpx2.Client) -> None:
    for options in (
        None,
        {"include_usage": None},
        {"include_obfuscation": True},
        {"include_obfuscation": None},
    ):
        body = completion(stream=True, stream_options=options)
        assert refusing.post("/v1/completions", json=body).status_code == 200


def test_what_can_not_change_an_answer_is_accepted(refusing: httpx2.Client) -> None:
    body = chat(
        {"role": "user", "content": "a"},
        user="me",
        metadata={"a": "b"},
        store=True,
        reasoning_effort="high",
        parallel_tool_calls=False,
        logprobs=False,
        tools=[],
        modalities=["text"],
    )
    assert refusing.post("/v1/chat/completions", json=body).status_code == 200


def test_an_assistants_message_comes_back_as_it_was_got(client: httpx2.Client, service: FakeService) -> None:
    got = {
        "role": "assistant",
        "content": "b",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    silent = {"role": "assistant", "content": None}
    body = chat({"role": "user", "content": "a"}, got, silent, {"role": "user", "content": "c"})
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert bytes(service.requests[0].prompt_ids) == b"uaabauc"


def test_one_model_can_be_asked_about_by_its_name(refusing: httpx2.Client) -> None:
    listed = refusing.get("/v1/models").json()["data"]
    assert refusing.get("/v1/models/small").json() == listed[1]
    answer = refusing.get("/v1/models/gpt/9")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_model_that_is_not_named_is_the_default_one(client: httpx2.Client, service: FakeService) -> None:
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    assert service.requests[0].model is None


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]
)
def test_a_wrong_path_or_method_has_the_same_error_shape(
    method: str, path: str, status: int, refusing: httpx2.Client
) -> None:
    answer = refusing.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_request_id_that_is_unfit_for_a_header_is_replaced(refusing: httpx2.Client) -> None:
    answer = refusing.post("/v1/completions", json=completion(), headers={"X-Request-Id": "x" * 200})
    assert answer.headers["x-request-id"].startswith("req-")


def test_an_error_names_the_request_it_is_about(refusing: httpx2.Client) -> None:
    answer = refusing.post("/v1/completions", json=completion(max_tokens=0), headers={"X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "mine"


def test_tokens_leave_as_they_come(client: httpx2.Client, service: FakeService) -> None:
    service.script = (BEGUN, Token("a", 40, 0), 0.3, Token("b", 41, 1), HANG)
    seen: list[float] = []
    with client.stream("POST", "/v1/completions", json=completion(stream=True)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                seen.append(time.monotonic())
            if len(seen) == 2:
                break
    assert seen[1] - seen[0] > 0.15


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "begun"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_cancels_its_work(
    stream: bool, begun: bool, client: httpx2.Client, service: FakeService
) -> None:
    service.script = (BEGUN, Token("a", 40, 0), HANG) if begun else (HANG,)
    with raw_post(client.base_url, completion(stream=stream)):
        assert service.hanging.wait(5)
        assert service.cancelled == []
    wait_until(lambda: service.cancelled == [service.requests[0].id])


def test_work_that_ended_is_not_cancelled(client: httpx2.Client, service: FakeService) -> None:
    client.post("/v1/completions", json=completion())
    client.post("/v1/completions", json=completion(stream=True))
    assert client.get("/health").status_code == 200
    assert service.cancelled == []


def test_health_metrics_and_models_answer_while_every_request_hangs(
    client: httpx2.Client, service: FakeService
) -> None:
    service.script = (HANG,)
    with raw_post(client.base_url, completion()):
        assert service.hanging.wait(5)
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            started = time.monotonic()
            assert client.get(path).status_code == 200
            assert time.monotonic() - started < 1


def test_an_engine_that_does_not_step_is_unhealthy(client: httpx2.Client, service: FakeService) -> None:
    service.is_stepping = False
    answer = client.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "stalled", "last_step_age_s": 0.25, "detail": "no step for 9 s"}


def test_a_service_that_is_not_ready_says_why(client: httpx2.Client, service: FakeService) -> None:
    service.unready = "loading weights"
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": "loading weights"})


def test_metrics_are_served_in_the_old_text_format_whatever_the_scraper_prefers(
    client: httpx2.Client,
) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.content == b"vllm:num_requests_running 1.0\n"


def refused(client: httpx2.Client, path: str, body: dict[str, Any], status: int) -> dict[str, Any]:
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def raw_post(base_url: httpx2.URL, body: dict[str, Any]) -> socket.socket:
    """A request on a socket of its own; closing it is a client that leaves."""
    raw = json.dumps(body).encode()
    client = socket.create_connection((base_url.host, base_url.port), timeout=5)
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw)
    )
    return client


def wait_until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
