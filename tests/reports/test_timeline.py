"""The series behind the page's graphs."""

from __future__ import annotations

import json
from typing import Any

from reports.timeline import timeline
from tests.builders import a_drill, a_history, a_lost_request, a_request, a_step, edges, requests, sample

DRILL = a_drill()


def lane(lane_id: str, history: Any, drill: Any = DRILL) -> dict[str, Any]:
    lanes = {made["id"]: made for made in timeline(drill, history)["lanes"]}
    return {series["label"]: series for series in lanes[lane_id]["series"]}


def test_load_is_offered_by_due_time_and_answered_by_end_time() -> None:
    series = lane("load", a_history(requests=[a_request(0, due=0.5), a_request(1, due=0.9, ttft_ms=1500)]))
    assert (series["offered"]["x"], series["offered"]["y"]) == ([0.0, 1.0], [2.0, 0.0])
    assert series["answered"]["y"] == [1.0, 0.0, 1.0, 0.0]


def test_each_request_is_a_point_by_rung_or_by_how_it_failed() -> None:
    made = [a_request(0), a_request(1, rung="int4"), a_lost_request(2, outcome="timeout", waited_s=3.0)]
    series = lane("ttft", a_history(requests=made))
    assert list(series) == ["full", "int4", "timeout"]
    assert (series["full"]["y"], series["timeout"]["y"]) == ([100.0], [3000.0])


def test_a_breakers_states_cover_the_whole_picture() -> None:
    spans = lane("breakers", a_history())["memory"]["spans"]
    assert [(span["state"], span["start"], span["end"]) for span in spans] == [
        ("closed", 0.0, 10.6),
        ("open", 10.6, 22.0),
        ("half_open", 22.0, 23.0),
        ("closed", 23.0, 40.14),
    ]


def test_link_counters_become_rates_and_weak_links_are_shown_apart() -> None:
    drill = a_drill(timeline=[a_step("nvlink", fault={"kind": "nvlink_degrade", "links": ["0-1"]})])
    samples = [
        sample(t, "node", **{"nvlink:0>1.bytes": 1e6 * t, "nvlink:1>2.bytes": 3e6 * t})
        for t in (1.0, 2.0, 4.0)
    ]
    series = lane("nvlink", a_history(samples=samples, faults=edges("nvlink")), drill)
    assert (series["all links"]["x"], series["all links"]["y"]) == ([2.0, 4.0], [4.0, 4.0])
    assert series["weak links"]["y"] == [1.0, 1.0]


def test_a_counter_that_fell_leaves_a_gap() -> None:
    samples = [sample(t, "node", **{"pcie:0:h2d.bytes": value}) for t, value in ((1.0, 5e6), (2.0, 0.0))]
    assert lane("pcie", a_history(samples=samples))["card 0 h2d"]["y"] == [None]


def test_free_memory_is_shown_per_card_in_mebibytes_of_the_card_it_stands_for() -> None:
    samples = [sample(1.0, "node", **{"card0.free_bytes": 48 * 2**20, "card1.free_bytes": 12 * 2**20})]
    series = lane("memory", a_history(samples=samples))
    assert (series["card 0"]["y"], series["card 1"]["y"]) == ([81920.0], [20480.0])


def test_clocks_and_temperatures_are_shown_once_a_clock_has_moved() -> None:
    def told(*clocks: float) -> list[Any]:
        return [
            sample(float(t), "node", **{"card0.sm_clock_mhz": mhz, "card0.temperature_c": 80.0 + t})
            for t, mhz in enumerate(clocks)
        ]

    still = {made["id"] for made in timeline(DRILL, a_history(samples=told(1980, 1980)))["lanes"]}
    assert not {"clocks", "temperature"} & still
    history = a_history(samples=told(1980, 990))
    assert lane("clocks", history)["card 0"]["y"] == [1980, 990]
    assert lane("temperature", history)["card 0"]["y"] == [80, 81]


def test_a_lane_without_data_is_left_out() -> None:
    made = timeline(DRILL, a_history(requests=requests(5), breakers=[]))
    assert [one["id"] for one in made["lanes"]] == ["load", "ttft"]
    json.dumps(made, allow_nan=False)


def test_a_fault_that_is_not_over_has_no_end() -> None:
    (fault,) = timeline(DRILL, a_history(faults=edges(skip=["gone", "rolling_back"])))["faults"]
    assert (fault["injecting"], fault["active"], fault["rolling_back"], fault["gone"]) == (
        10.0,
        10.5,
        None,
        None,
    )
