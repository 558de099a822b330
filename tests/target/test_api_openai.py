"""The API as OpenAI's own client sees it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from target.request import Accepted, Finished, Rejected, Token
from tests.target.fake_service import BEGUN, HELLO, FakeService, serving

DIED = Finished("failed", 3, 1, "small", "light", "CUDA error: device lost")


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[openai.OpenAI]:
    with (
        serving(service) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=5) as client,
    ):
        yield client


def test_a_completion_comes_whole_with_its_usage_and_rung(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="small", prompt=[33, 34, 35], max_tokens=2, temperature=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.model) == (
        "hello",
        "stop",
        "small",
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        3,
        2,
        5,
    )
    assert answer.model_extra == {"brownout": {"rung": "light"}}


def test_a_completion_comes_token_by_token_and_its_usage_last(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="small", prompt="abc", stream=True, stream_options={"include_usage": True}
        )
    )
    assert [chunk.choices[0].text for chunk in chunks[:-1]] == ["hel", "lo", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.model_extra == {"brownout": {"rung": "light"}} for chunk in chunks)


def test_usage_is_streamed_only_to_those_who_ask(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="small", prompt="abc", stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_a_chat_answer_comes_whole(client: openai.OpenAI, service: FakeService) -> None:
    answer = client.chat.completions.create(
        model="small",
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", "hello")
    assert bytes(service.requests[0].prompt_ids) == b"ssuab"


def test_a_chat_answer_streams_its_role_first(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "a"}], stream=True
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.content for delta in deltas[1:]] == ["hel", "lo", None]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_what_the_client_asks_for_reaches_the_service(client: openai.OpenAI, service: FakeService) -> None:
    client.completions.create(
        model="big",
        prompt="ab",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop="\n",
        extra_body={"priority": -2},
        extra_headers={"X-Request-Id": "mine", "timeout": "2.5"},
    )
    (request,) = service.requests
    assert (request.prompt_ids, request.max_tokens, request.model) == ((97, 98), 7, "big")
    assert (request.temperature, request.top_p, request.seed, request.stop) == (0.5, 0.9, 3, ("\n",))
    assert (request.priority, request.client_id) == (-2, "mine")
    assert request.deadline_s is not None
    assert request.id != "mine"


def test_equal_client_ids_are_different_requests_to_the_engine(
    client: openai.OpenAI, service: FakeService
) -> None:
    for _ in range(2):
        raw = client.completions.with_raw_response.create(
            model="big", prompt="a", extra_headers={"X-Request-Id": "twice"}
        )
        assert raw.headers["x-request-id"] == "twice"
        assert raw.headers["x-brownout-rung"] == "light"
    assert len({request.id for request in service.requests}) == 2


def test_the_models_are_listed_the_default_one_first(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["big", "small"]


def test_one_model_is_found_and_an_unknown_one_is_not(client: openai.OpenAI) -> None:
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_refusal_is_429_and_says_when_to_come_back(
    client: openai.OpenAI, service: FakeService, stream: bool
) -> None:
    service.script = (Rejected(429, "queue_full", "64 requests are waiting", 1.2),)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="small", prompt="abc", stream=stream)
    assert caught.value.code == "queue_full"
    assert caught.value.type == "rate_limit_error"
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.response.headers["retry-after-ms"] == "1200"
    assert service.cancelled == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (DIED, 500, "engine_failed"),
        (Finished("deadline", 3, 0, "small", "light"), 504, "deadline_exceeded"),
        (Finished("cancelled", 3, 0, "small", "light"), 503, "cancelled"),
        (Rejected(503, "no_memory", "no room", 3.0), 503, "no_memory"),
        (RuntimeError("a bug"), 500, "engine_failed"),
    ],
    ids=["failed", "deadline", "cancelled", "no room", "bug"],
)
def test_what_ends_before_its_first_token_has_a_status_of_its_own(
    client: openai.OpenAI,
    service: FakeService,
    end: Finished | Rejected | Exception,
    status: int,
    code: str,
    stream: bool,
) -> None:
    service.script = (end,)
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="small", prompt="abc", stream=stream)
    assert (caught.value.status_code, caught.value.code) == (status, code)


@pytest.mark.parametrize("end", [DIED, RuntimeError("a bug"), None], ids=["failed", "bug", "silence"])
def test_a_failure_in_mid_stream_raises_in_the_client(
    client: openai.OpenAI, service: FakeService, end: Finished | Exception | None
) -> None:
    service.script = (BEGUN, Token("hel", 40, 0), *(() if end is None else (end,)))
    stream = client.completions.create(model="small", prompt="abc", stream=True)
    with pytest.raises(openai.APIError, match=r"device lost|broke off"):
        assert [chunk.choices[0].text for chunk in stream] == ["hel"]


def test_a_whole_answer_that_fails_on_the_way_is_an_error_not_a_part_of_an_answer(
    client: openai.OpenAI, service: FakeService
) -> None:
    service.script = (BEGUN, Token("hel", 40, 0), DIED)
    with pytest.raises(openai.InternalServerError, match="device lost"):
        client.completions.create(model="small", prompt="abc")


def test_the_rung_that_ends_an_answer_is_the_one_that_is_told(
    client: openai.OpenAI, service: FakeService
) -> None:
    service.script = (Accepted("big", "full"), Token("a", 40, 0), *HELLO)
    chunks = list(client.completions.create(model="big", prompt="abc", stream=True))
    assert [chunk.model for chunk in chunks] == ["big", "small", "small", "small"]
