"""Counting while a load runs."""

from __future__ import annotations

import math

from harness.load.progress import Progress, Tally


def test_nothing_sent_has_no_lateness_and_no_ttft() -> None:
    tally = Tally(planned=3)
    assert math.isnan(tally.lateness_p99_ms())
    assert tally.progress() == Progress(planned=3, sent=0, finished=0, failed=0, ttft_p50_ms=None)


def test_what_is_sent_and_not_finished_is_in_flight_and_refusals_count_as_failed() -> None:
    tally = Tally(planned=9)
    for _ in range(4):
        tally.sent(0.001)
    tally.finished({"outcome": "length", "first": 10.2, "due": 10.0})
    tally.finished({"outcome": "rejected", "first": None, "due": 10.0})
    progress = tally.progress()
    assert (progress.sent, progress.finished, progress.failed, progress.in_flight) == (4, 2, 1, 2)
    assert progress.ttft_p50_ms is not None
    assert math.isclose(progress.ttft_p50_ms, 200)


def test_the_99th_percentile_of_lateness_is_one_that_was_seen() -> None:
    tally = Tally(planned=200)
    for milliseconds in range(1, 201):
        tally.sent(milliseconds / 1000)
    assert tally.lateness_p99_ms() == 198
