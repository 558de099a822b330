"""From tokens to text: whole characters, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target.text import TextStream


def by_bytes(tokens: Sequence[int]) -> str:
    """A token is a byte of UTF-8."""
    return bytes(tokens).decode(errors="replace")


def pushed(words: Sequence[str], *stops: str) -> tuple[list[str], TextStream]:
    """What each word of an answer gave, and the stream after it."""
    stream = TextStream(lambda tokens: "".join(words[token] for token in tokens), stops)
    given: list[str] = []
    for token in range(len(words)):
        given.append(stream.push(token))
        if stream.stopped:
            break
    return given, stream


def test_without_stops_text_comes_with_its_token() -> None:
    given, stream = pushed(["Hel", "lo", " world"])
    assert given == ["Hel", "lo", " world"]
    assert stream.finish() == ""


def test_a_stop_string_ends_the_text_before_it() -> None:
    given, stream = pushed(["one", " two", " STOP three"], "STOP")
    assert given == ["one", " two", " "]
    assert stream.stopped
    assert stream.finish() == ""


def test_a_stop_string_is_found_across_tokens() -> None:
    given, stream = pushed(["one ", "S", "TO", "P", "more"], "STOP")
    assert given == ["one ", "", "", ""]
    assert stream.stopped


def test_text_that_turns_out_not_to_be_a_stop_is_given_after_all() -> None:
    given, stream = pushed(["one ", "ST", "ART"], "STOP")
    assert given == ["one ", "", "START"]
    assert not stream.stopped


def test_text_held_back_at_the_end_comes_with_the_end() -> None:
    given, stream = pushed(["one ", "ST"], "STOP")
    assert given == ["one ", ""]
    assert stream.finish() == "ST"


def test_the_earliest_of_several_stops_wins() -> None:
    given, stream = pushed(["a\nb END"], "END", "\n")
    assert given == ["a"]
    assert stream.stopped


def test_a_stop_may_begin_inside_another_ones_beginning() -> None:
    given, stream = pushed(["x", "a", "a", "b", "y"], "aab")
    assert "".join(given) == "x"
    assert stream.stopped


def test_empty_stops_are_no_stops() -> None:
    given, stream = pushed(["a", "b"], "")
    assert given == ["a", "b"]
    assert not stream.stopped


def test_a_character_that_is_cut_waits_for_its_other_bytes() -> None:
    stream = TextStream(by_bytes)
    assert [stream.push(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_a_character_that_stays_cut_is_shown_as_such_at_the_end() -> None:
    stream = TextStream(by_bytes)
    assert [stream.push(byte) for byte in "€".encode()[:2]] == ["", ""]
    assert stream.finish() == "�"


@pytest.mark.parametrize("stop", ["€", "x€", "😀"])
def test_a_stop_of_several_bytes_is_found(stop: str) -> None:
    stream = TextStream(by_bytes, [stop])
    given = [stream.push(byte) for byte in f"ax{stop}"[:8].encode() if not stream.stopped]
    assert stream.stopped
    assert "".join(given) == f"ax{stop}"[: f"ax{stop}".find(stop)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("ab€", min_size=0, max_size=3), max_size=12),
    st.lists(st.text("ab€", min_size=1, max_size=3), max_size=2),
)
def test_the_stream_is_the_whole_text_up_to_the_first_stop(words: list[str], stops: list[str]) -> None:
    given, stream = pushed(words, *stops)
    whole = "".join(words)
    ends = [at for at in (whole.find(stop) for stop in stops) if at >= 0]
    assert stream.stopped == bool(ends)
    seen = "".join(
        words[: len(given)]
    )  # a stop that is complete earlier ends it, even if another began before
    cut = min((at for at in (seen.find(stop) for stop in stops) if at >= 0), default=len(seen))
    assert "".join(given) + stream.finish() == seen[:cut]
