"""Reading one streamed answer: a 200 is not a success."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.load.answer import Answer


def answer(*data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """An answer that got these events, one a second from 1 s on."""
    read = Answer()
    read.head(status, headers or {})
    for second, value in enumerate(data, start=1):
        read.line(
            b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\r\n", second
        )
        read.line(b"\r\n", second)
    return read


def piece(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"text": text, "finish_reason": finish}], **more}


DONE = b"[DONE]"


def test_tokens_are_timed_and_the_closing_chunk_is_none() -> None:
    read = answer(piece("a"), piece(""), piece("b"), piece("", "stop"), DONE)
    assert (read.outcome(), read.text, read.tokens_t, read.first) == ("completed", "ab", [1, 2, 3], 1)


def test_a_server_that_ends_with_its_last_token_is_understood_too() -> None:
    read = answer(piece("a"), piece("b", "length"), DONE)
    assert (read.outcome(), read.tokens_t, read.output_tokens) == ("length", [1, 2], 2)


def test_the_servers_count_of_tokens_goes_before_what_was_seen() -> None:
    read = answer(piece("ab"), piece("", "stop"), {"choices": [], "usage": {"completion_tokens": 2}}, DONE)
    assert read.output_tokens == 2


def test_the_rung_is_read_from_the_header_and_then_from_the_chunks() -> None:
    assert answer(headers={"x-brownout-rung": "full"}).rung == "full"
    assert answer(piece("a", brownout={"rung": "light"}), headers={"x-brownout-rung": "full"}).rung == "light"
    assert answer(piece("a")).rung is None


def test_comments_and_other_fields_of_the_stream_are_passed_over() -> None:
    read = answer(piece("a"), piece("", "stop"))
    for line in (b": ping\n", b"event: x\n", b"\n", b"retry: 3\n", b"data: [DONE]\n"):
        read.line(line, 9)
    assert read.outcome() == "completed"


BROKEN = {
    "an error event": ({"error": {"message": "died", "code": "engine_failed"}}, "engine_failed: died"),
    "an error of vLLM's": (
        {"object": "error", "message": "died", "type": "Internal", "code": 500},
        "500: died",
    ),
    "an error that is a text": ({"error": "died"}, '{"error": "died"}'),
    "no JSON": (b"oops", "not a JSON object in the stream: oops"),
    "no object": ([1], "not a JSON object in the stream: [1]"),
    "no choices": ({"choices": [3]}, 'not a completion chunk: {"choices": [3]}'),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_event_fails_the_answer_even_if_all_else_is_well(what: str) -> None:
    event, error = BROKEN[what]
    read = answer(piece("a"), event, piece("", "stop"), DONE)
    assert (read.outcome(), read.error) == ("failed", error)


def test_an_error_line_outside_the_data_fails_the_answer() -> None:
    read = answer(piece("a"))
    read.line(b'error: {"message": "died", "code": 500}\n', 9)
    assert (read.outcome(), read.error) == ("failed", "500: died")


@pytest.mark.parametrize("finish", ["abort", "content_filter", None])
def test_only_stop_and_length_are_good_ends(finish: str | None) -> None:
    read = answer(piece("a"), piece("", finish), DONE)
    assert (read.outcome(), read.error) == ("failed", f"finish_reason is {finish!r}")


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, "rejected"), (503, "rejected"), (500, "failed"), (404, "failed")]
)
def test_a_refusal_is_told_apart_from_a_failure(status: int, outcome: str) -> None:
    read = answer(status=status)
    read.refusal(b"<html>go away</html>")
    assert (read.outcome(), read.error) == (outcome, "<html>go away</html>")


def test_a_long_error_is_cut() -> None:
    read = answer(status=500)
    read.refusal(b"x" * 10_000)
    assert len(read.error or "") == 500
