"""Asking again: which answers, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.fidelity import ask_again, chosen
from harness.history import Event, History
from harness.load.plan import Arrival, prompt_ids
from harness.recorder import Recorder
from harness.run import Interrupted
from tests.builders import a_drill, a_history, a_lost_request, a_request
from tests.harness.fake_stage import AlsoPlain

HISTORY = a_history(drill=a_drill())  # 400 answers, of which 105 were due while the fault was on
DURING = range(105, 210)


def indices(events: list[Event]) -> list[int]:
    return [event["index"] for event in events]


def test_the_same_history_and_seed_choose_the_same_answers_and_another_seed_others() -> None:
    assert chosen(HISTORY, 24, seed=7) == chosen(History.of(list(HISTORY.events)), 24, seed=7)
    assert chosen(HISTORY, 24, seed=7) != chosen(HISTORY, 24, seed=8)


@pytest.mark.parametrize("seed", range(5))
def test_half_of_them_are_from_while_a_fault_was_on_and_none_is_chosen_twice(seed: int) -> None:
    picked = indices(chosen(HISTORY, 24, seed))
    assert len(set(picked)) == 24
    assert all(index in DURING for index in picked[:12])
    assert len([index for index in picked if index in DURING]) >= 12


def test_where_there_are_fewer_answers_all_are_chosen_once() -> None:
    few = a_history(requests=[a_request(n) for n in (0, 1, 110)])
    assert sorted(indices(chosen(few, 24, seed=7))) == [0, 1, 110]


def test_a_drill_without_a_fault_draws_from_anywhere() -> None:
    quiet = a_history(faults=[], breakers=[])
    assert len(chosen(quiet, 24, seed=7)) == 24


def test_only_answers_are_chosen() -> None:
    lost = [
        a_lost_request(n, outcome=how) for n, how in enumerate(("failed", "rejected", "timeout", "cancelled"))
    ]
    assert indices(chosen(a_history(requests=[*lost, a_request(9)]), 24, seed=7)) == [9]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "history.jsonl", clock=lambda: 0.0)
    yield recorder
    recorder.close()


ARRIVALS = (Arrival(0, 0.0, 4, 2, "0/prompt/0/0"),)
ANSWERED = History.of([a_request(0, text="t0 t1 ", model="light", rung="light")])


def asked(server: AlsoPlain, recorder: Recorder) -> list[Event]:
    ask_again(server.url, ANSWERED, ARRIVALS, 24, 7, recorder)
    return list(recorder.history().of_kind("fidelity"))


def test_an_equal_text_is_told_without_the_texts(recorder: Recorder) -> None:
    with AlsoPlain(again=lambda: "t0 t1 ") as server:
        (event,) = asked(server, recorder)
    assert event == {"t": 0.0, "kind": "fidelity", "id": "r0", "rung": "light", "equal": True}


@pytest.mark.parametrize("again", ["t0 t2 ", "", "t0 t1"])
def test_an_unequal_text_is_told_with_both(again: str, recorder: Recorder) -> None:
    with AlsoPlain(again=lambda: again) as server:
        (event,) = asked(server, recorder)
    assert (event["equal"], event["expected"], event["got"]) == (False, again, "t0 t1 ")


def test_the_model_that_answered_is_asked_for_the_same_prompt_greedily(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[object] = []

    def post(self: object, url: str, json: object) -> None:
        bodies.append(json)
        raise ValueError

    monkeypatch.setattr("httpx2.Client.post", post)
    ask_again("http://127.0.0.1:9", ANSWERED, ARRIVALS, 24, 7, recorder)
    assert bodies == [
        {"model": "light", "prompt": prompt_ids(ARRIVALS[0]), "max_tokens": 2, "temperature": 0}
    ]


def test_a_server_that_is_gone_is_told_and_so_no_pass(recorder: Recorder) -> None:
    ask_again("http://127.0.0.1:9", ANSWERED, ARRIVALS, 24, 7, recorder)
    (event,) = recorder.history().of_kind("fidelity")
    assert (event["id"], event["rung"], event["equal"]) == ("r0", "light", None)
    assert event["reason"] == "ConnectError"


@pytest.mark.parametrize("seed", range(5))
def test_each_rung_is_asked_again_however_rarely_it_answered(seed: int) -> None:
    many = [a_request(n) for n in range(300)]
    rare = a_history(requests=[*many, a_request(300, rung="light"), a_request(301, rung="int4")])
    assert {"full", "light", "int4"} == {event["rung"] for event in chosen(rare, 24, seed)}


def test_the_key_is_sent_and_never_recorded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    def post(self: Any, url: str, json: object) -> None:
        sent.append(self.headers.get("Authorization"))
        raise ValueError(f"it holds {sent[-1]}")

    monkeypatch.setenv("BROWNOUT_API_KEY", "of-nobody")
    monkeypatch.setattr("httpx2.Client.post", post)
    ask_again("http://127.0.0.1:9", ANSWERED, ARRIVALS, 24, 7, recorder)
    assert sent == ["Bearer of-nobody"]
    assert "of-nobody" not in str(recorder.history().events)


def test_a_key_that_can_be_no_header_is_not_recorded_either(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWNOUT_API_KEY", "of\nnobody")
    with AlsoPlain() as server:
        (event,) = asked(server, recorder)
    assert event["equal"] is None
    assert "nobody" not in str(recorder.history().events)


def test_asking_stops_as_soon_as_the_drill_is_interrupted(recorder: Recorder) -> None:
    def interrupt() -> None:
        raise Interrupted("SIGINT")

    with pytest.raises(Interrupted):
        ask_again("http://127.0.0.1:9", ANSWERED, ARRIVALS, 24, 7, recorder, interrupt)
