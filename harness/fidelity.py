"""Asks some requests of a drill again, alone and after the faults: greedy answers must have the same text.

The model that answered is asked for by name, so a downgraded answer is compared with the light model's own.
Every question is recorded, also one that could not be asked again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from harness.history import ANSWERED, Event, History
from harness.load.arrival import Arrival, prompt_ids
from harness.recorder import Recorder

TIMEOUT_S = 30.0
API_KEY = "BROWNOUT_API_KEY"  # the variable; its value is sent and never recorded


class NoAnswer(Exception):
    """It could not be asked again, and why."""


def ask_again(
    url: str,
    history: History,
    arrivals: tuple[Arrival, ...],
    sample: int,
    seed: int,
    recorder: Recorder,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Record a `fidelity` event for each of `sample` answers; `equal` is None where it could not be had again."""
    by_index = {arrival.index: arrival for arrival in arrivals}
    key = os.environ.get(API_KEY)
    headers = {b"Authorization": f"Bearer {key}".encode()} if key else None
    with httpx2.Client(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:
        for request in chosen(history, sample, seed):
            check()
            told: dict[str, Any] = {"id": request["id"], "rung": request["rung"]}
            try:
                again = _answer(client, request, by_index[request["index"]])
            except NoAnswer as why:
                recorder.note("fidelity", **told, equal=None, reason=str(why))
                continue
            equal = again == request["text"]
            texts = {} if equal else {"expected": again, "got": request["text"]}
            recorder.note("fidelity", **told, equal=equal, **texts)


def chosen(history: History, sample: int, seed: int) -> list[Event]:
    """Answers to ask again: one of each rung, then half from fault windows, the rest from anywhere.

    Drawn from the seed; as many as `sample`, or all that were answered.
    """
    answered = [event for event in history.of_kind("request") if event["outcome"] in ANSWERED]
    faults = [window for window in history.windows() if window.phase == "fault"]
    during = [event for event in answered if any(event["due"] in window for window in faults)]
    stream = random.Random(f"{seed}/fidelity")
    picked: list[Event] = []
    for rung in sorted({str(event.get("rung")) for event in answered}):
        of_rung = [event for event in during if str(event.get("rung")) == rung]
        of_rung = of_rung or [event for event in answered if str(event.get("rung")) == rung]
        picked.append(stream.choice(of_rung))
    for pool, most in ((during, sample // 2), (answered, sample)):
        left = [event for event in pool if event not in picked]
        picked += stream.sample(left, min(len(left), max(most - len(picked), 0)))
    return picked[:sample]


def _answer(client: httpx2.Client, request: Event, arrival: Arrival) -> str:
    """The text of the same request now; NoAnswer if the same model did not answer it."""
    body: Mapping[str, Any] = {
        "model": request["model"],
        "prompt": list(prompt_ids(arrival)),
        "max_tokens": arrival.output_tokens,
        "temperature": 0,
    }
    try:
        answer = client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            raise NoAnswer(f"HTTP status {answer.status_code}")
        told = answer.json()
        text, model = str(told["choices"][0]["text"]), told["model"]
    except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise NoAnswer(type(error).__name__) from None  # its words could hold what was sent
    if model != request["model"]:
        raise NoAnswer("another model answered")
    return text
