"""Asks some requests of a drill again, alone and after the faults: greedy answers must have the same text.

The model that answered is asked for by name, so a downgraded answer is compared with the light model's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from harness.history import ANSWERED, Event, History
from harness.load.arrival import Arrival, prompt_ids
from harness.recorder import Recorder

TIMEOUT_S = 30.0


def ask_again(
    url: str,
    history: History,
    arrivals: tuple[Arrival, ...],
    sample: int,
    seed: int,
    recorder: Recorder,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Record a `fidelity` event for each of `sample` answers that could be had again from the same model."""
    by_index = {arrival.index: arrival for arrival in arrivals}
    with httpx2.Client(base_url=url, timeout=TIMEOUT_S) as client:
        for request in chosen(history, sample, seed):
            check()
            again = _answer(client, request, by_index[request["index"]])
            if again is None:
                continue
            recorder.note(
                "fidelity",
                id=request["id"],
                rung=request["rung"],
                equal=again == request["text"],
                **({} if again == request["text"] else {"expected": again, "got": request["text"]}),
            )


def chosen(history: History, sample: int, seed: int) -> list[Event]:
    """Answers to ask again: half from fault windows, the rest from anywhere; drawn from the seed."""
    answered = [event for event in history.of_kind("request") if event["outcome"] in ANSWERED]
    faults = [window for window in history.windows() if window.phase == "fault"]
    during = [event for event in answered if any(event["due"] in window for window in faults)]
    stream = random.Random(f"{seed}/fidelity")
    first = stream.sample(during, min(len(during), sample // 2))
    others = [event for event in answered if event not in first]
    return first + stream.sample(others, min(len(others), sample - len(first)))


def _answer(client: httpx2.Client, request: Event, arrival: Arrival) -> str | None:
    """The text of the same request now; None if the same model did not answer it."""
    body: Mapping[str, Any] = {
        "model": request["model"],
        "prompt": list(prompt_ids(arrival)),
        "max_tokens": arrival.output_tokens,
        "temperature": 0,
    }
    try:
        answer = client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return None
        told = answer.json()
        return str(told["choices"][0]["text"]) if told["model"] == request["model"] else None
    except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError):
        return None
