"""Drills as they are written: files, overrides and environment, and what is said of a bad one."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from faults.kinds import KINDS
from harness.drill import Drill
from harness.drill_file import decode, dump_drill, load_drill, override, steer_by_environment
from harness.errors import BadDrill, UsageError
from harness.history import History
from harness.judge import judge
from harness.metrics import METRICS
from reports.summary import summarise
from tests.builders import a_response, a_step, an_slo

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
NVLINK = {"kind": "nvlink_degrade", "links": ["0-1"], "percent": 30}


def three_faults() -> dict[str, Any]:
    """A drill in plain values, that a test breaks in one place."""
    plain = {
        "name": "three-faults",
        "why": "one fault of each kind, in a row",
        "load": {"trace": "code.csv", "offset_s": 0, "span_s": 60},
        "timeline": [
            a_step("vram", at_s=5, hold_s=5),
            a_step("pcie", at_s=20, hold_s=5, fault={"kind": "pcie_saturation"}),
            a_step("nvlink", at_s=40, hold_s=5, fault=NVLINK),
        ],
        "steady_state": [an_slo(phase="baseline", quantile=0.9, max=500)],
        "slos": [an_slo(step="vram", quantile=0.9, max=500), an_slo("error_ratio", max=0.1)],
        "responses": [a_response(), a_response(step="nvlink", breaker="nvlink")],
        "blast_radius": {"cards_max": 2},
    }
    return deepcopy(plain)  # builders share their parts


def written(tmp_path: Path, plain: Any) -> Path:
    path = tmp_path / "drill.yaml"
    path.write_text(plain if isinstance(plain, str) else yaml.safe_dump(plain))
    return path


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_is_a_drill_with_a_trace_and_is_named_as_its_file(path: Path) -> None:
    drill = load_drill(path)
    assert drill.name == path.stem
    assert drill.load.trace.is_file()


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_drill_that_is_written_and_read_again_is_equal(path: Path, tmp_path: Path) -> None:
    drill = load_drill(path.resolve())
    assert load_drill(written(tmp_path, dump_drill(drill))) == drill
    assert decode(drill.plain()) == drill


def test_a_trace_is_looked_for_beside_the_drill_file_unless_its_path_is_absolute(tmp_path: Path) -> None:
    assert load_drill(written(tmp_path, three_faults())).load.trace == tmp_path / "code.csv"
    absolute = three_faults()
    absolute["load"]["trace"] = "/data/code.csv"
    assert load_drill(written(tmp_path, absolute)).load.trace == Path("/data/code.csv")


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the value at a dotted path."""
    *parents, last = (int(name) if name.isdigit() else name for name in path.split("."))

    def change(plain: dict[str, Any]) -> None:
        node: Any = plain
        for name in parents:
            node = node[name]
        node[last] = value

    return change


BAD = {
    "unknown fault kind": (
        put("timeline.0.fault.kind", "cosmic_rays"),
        f"timeline[0].fault: unknown fault kind 'cosmic_rays'; known: {', '.join(sorted(KINDS))}",
    ),
    "fault without a kind": (
        put("timeline.0.fault", {"card": 0}),
        f"timeline[0].fault: a fault needs a kind; known: {', '.join(sorted(KINDS))}",
    ),
    "percent above 99": (
        put("timeline.2.fault.percent", 130),
        "timeline[2].fault.percent: 130: Input should be less than or equal to 99",
    ),
    "unknown metric": (
        put("slos.1.metric", "happiness"),
        f"slos[1]: unknown metric 'happiness'; known: {', '.join(sorted(METRICS))}",
    ),
    "unknown field": (put("load.kepe", 0.2), "load.kepe: 0.2: Extra inputs are not permitted"),
    "unknown field of a fault": (
        put("timeline.0.fault.cards", 2),
        "timeline[0].fault.cards: 2: Extra inputs are not permitted",
    ),
    "a word for a number": (put("load.keep", "half"), "load.keep: 'half': Input should be a valid number"),
    "a number for a mapping": (put("load", 3), "load: 3: Input should be a valid dictionary"),
    "a date for a name": (put("name", "2024-01-01: x"), "name: '2024-01-01: x': String should match"),
    "a name with a slash": (put("name", "../x"), "name: '../x': String should match"),
    "infinite": (put("load.span_s", float("inf")), "load.span_s: inf: Input should be a finite number"),
    "infinite dose": (
        put("timeline.0.fault.free_mb", float("inf")),
        "timeline[0].fault.free_mb: inf: Input should be a finite number",
    ),
    "missing field": (lambda plain: plain.pop("why"), "why: Field required"),
    "no steady state": (put("steady_state", []), "steady_state: Tuple should have at least 1 item"),
    "step not on the timeline": (
        put("slos.0.step", "vrma"),
        "slos: no step 'vrma' on the timeline; known: vram, pcie, nvlink",
    ),
    "response to no step": (
        put("responses.0.step", "x"),
        "responses: no step 'x' on the timeline; known: vram, pcie, nvlink",
    ),
    "two steps of one id": (
        put("timeline.1.id", "vram"),
        "timeline: step ids must differ, got ['vram', 'vram', 'nvlink']",
    ),
    "overlapping steps": (
        put("timeline.1.at_s", 9),
        "timeline: pcie starts at 9.0 s, before the step ahead of it is over",
    ),
    "timeline longer than load": (
        put("load.span_s", 44),
        "timeline ends at 45 s, but the load plays for only 44 s",
    ),
    "fault longer than allowed": (
        put("blast_radius.fault_max_s", 4),
        "timeline: vram holds 5.0 s; blast_radius.fault_max_s is 4.0",
    ),
    "card not on the node": (
        put("timeline.1.fault.card", 4),
        "card 4 is not on the node; it has cards 0 to 3",
    ),
    "more cards than allowed": (
        put("blast_radius.cards_max", 1),
        "acts on 2 cards; blast_radius.cards_max is 1",
    ),
    "two bounds": (put("slos.1.min", 0.0), "slos[1]: give exactly one of max, min, max_ratio"),
    "a percentage for a ratio": (
        put("slos.1.max", 15),
        "slos[1]: error_ratio max: 15: it is a ratio, between 0 and 1; write 0.15 for 15 %",
    ),
    "a bound that every ratio keeps": (
        put("slos.1.max", 1.0),
        "slos[1]: error_ratio max: 1: every ratio keeps within that",
    ),
    "a bound that no sample can show": (
        put("slos.1.max", 0.0),
        "slos[1]: error_ratio max: 0: no number of requests can show it: allow a small share, e.g. max: 0.01",
    ),
    "a time that nothing keeps": (
        put("slos.0.max", -5),
        "slos[0]: ttft_ms max: -5: give a number of ms above 0",
    ),
    "a quantile of a share": (
        put("slos.1.quantile", 0.9),
        "slos[1]: error_ratio is no number that each request has, so quantile means nothing",
    ),
    "slack without a relative bound": (
        put("slos.1.slack", 0.1),
        "slos[1]: slack is added to max_ratio; without one, put it into the bound itself",
    ),
    "no quantile": (
        put("slos.0.quantile", None),
        "slos[0]: ttft_ms is measured per request: say which quantile, e.g. quantile: 0.9",
    ),
    "steady state in another phase": (
        put("steady_state.0.phase", "recovery"),
        "steady_state: the steady state is checked in phase baseline",
    ),
    "unknown world": (put("worlds", ["moon"]), "worlds[0]: 'moon': Input should be 'virtual', 'local' or 'live'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_value_is_refused_with_its_path_the_value_and_what_is_allowed(
    fault: str, tmp_path: Path
) -> None:
    change, told = BAD[fault]
    plain = three_faults()
    change(plain)
    path = written(tmp_path, plain)
    with pytest.raises(BadDrill, match=re.escape(told)) as refused:
        load_drill(path)
    assert str(refused.value).startswith(f"{path} is not a drill:\n  ")


def test_every_bad_value_is_told_at_once(tmp_path: Path) -> None:
    plain = three_faults()
    put("load.keep", 2)(plain)
    put("timeline.2.fault.percent", 0)(plain)
    with pytest.raises(BadDrill) as refused:
        load_drill(written(tmp_path, plain))
    assert str(refused.value).splitlines()[1:] == [
        "  load.keep: 2: Input should be less than or equal to 1",
        "  timeline[2].fault.percent: 0: Input should be greater than or equal to 1",
    ]


NO_DRILL = {
    "empty": (b"", "a drill is a mapping of fields, not NoneType"),
    "only a comment": (b"# to do\n", "a drill is a mapping of fields, not NoneType"),
    "list": (b"- name: x\n", "a drill is a mapping of fields, not list"),
    "word": (b"drill", "a drill is a mapping of fields, not str"),
    "not YAML": (b"name: [unclosed\n", "not YAML: "),
    "tab": (b"load:\n\tspan_s: 3\n", "not YAML: "),
    "binary": (bytes(range(256)), "not YAML: "),
    "control characters": (b"name: \x00\x01\n", "not YAML: "),
    "a date that is none": (b"name: 2024-13-45\n", "not YAML: month must be in 1..12"),
    "code": (b"name: !!python/object/apply:os.getcwd []\n", "not YAML: could not determine a constructor"),
    "nested too deep": (b"[" * 5000, "not YAML: "),
    "numbers for names": (b"1: 2\n", "is not a drill:"),
}


@pytest.mark.parametrize("content", NO_DRILL)
def test_a_file_that_holds_no_drill_is_refused_by_its_path(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    data, told = NO_DRILL[content]
    path.write_bytes(data)
    with pytest.raises(BadDrill) as refused:
        load_drill(path)
    assert str(path) in str(refused.value)
    assert told in str(refused.value)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDrill, match=r"nope\.yaml: No such file or directory"):
        load_drill(tmp_path / "nope.yaml")
    with pytest.raises(BadDrill, match=f"{tmp_path}: Is a directory"):
        load_drill(tmp_path)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("load.keep=0.25", lambda drill: (drill.load.keep, 0.25)),
        ("seed=9", lambda drill: (drill.seed, 9)),
        ("timeline.2.fault.percent=50", lambda drill: (drill.timeline[2].fault.percent, 50)),
        ("target.countermeasures.vram=false", lambda drill: (drill.target.countermeasures.vram, False)),
        ("timeline.0.fault={kind: noop}", lambda drill: (drill.timeline[0].fault.kind, "noop")),
        ("worlds=[local, live]", lambda drill: (drill.worlds, ("local", "live"))),
        ("why=because a=b, we think", lambda drill: (drill.why, "because a=b, we think")),
    ],
)
def test_an_override_sets_one_value(
    text: str, read: Callable[[Drill], tuple[Any, Any]], tmp_path: Path
) -> None:
    path = written(tmp_path, three_faults())
    before, after = load_drill(path), load_drill(path, (text,))
    value, expected = read(after)
    assert value == expected
    changed = {name for name in Drill.model_fields if getattr(after, name) != getattr(before, name)}
    assert changed == {re.split(r"[.=]", text)[0]}


def test_a_later_override_wins_and_what_was_read_is_left_alone() -> None:
    plain = three_faults()
    once = override(plain, "load.keep=0.5")
    assert override(once, "load.keep=0.1")["load"]["keep"] == 0.1
    assert (once["load"]["keep"], plain["load"].get("keep")) == (0.5, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("load.keep", "--set 'load.keep': write PATH=VALUE, e.g. load.keep=0.2"),
        ("=3", "--set '=3': write PATH=VALUE"),
        ("timeline.3.at_s=1", "'3' is no place in a list of 3; they are 0 to 2"),
        ("timeline.-1.at_s=1", "'-1' is no place in a list of 3; they are 0 to 2"),
        ("timeline.².at_s=1", "'²' is no place in a list of 3; they are 0 to 2"),
        ("timeline.vram.at_s=1", "'vram' is no place in a list of 3; they are 0 to 2"),
        ("name.first=x", "'first' lies inside 'three-faults', which has no fields"),
        ("load.keep=[0.2", "the value is not YAML: "),
        ("name=2024-13-45", "the value is not YAML: month must be in 1..12"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        override(three_faults(), text)


def test_an_override_that_is_no_good_is_refused_by_its_path_as_the_same_in_the_file_would_be(
    tmp_path: Path,
) -> None:
    told = "timeline[2].fault.percent: 130: Input should be less than or equal to 99"
    with pytest.raises(BadDrill, match=re.escape(told)):
        load_drill(written(tmp_path, three_faults()), ("timeline.2.fault.percent=130",))
    with pytest.raises(BadDrill, match=re.escape("load.kepe: 1: Extra inputs are not permitted")):
        load_drill(written(tmp_path, three_faults()), ("load.kepe=1",))


DRILL = decode(three_faults())


def test_without_variables_of_ours_the_environment_changes_nothing() -> None:
    assert steer_by_environment(DRILL, {"PATH": "/bin", "FAULT_TYPE": ""}) == (DRILL, [])


def test_fault_type_leaves_only_the_steps_of_that_kind_and_what_is_said_of_them() -> None:
    drill, told = steer_by_environment(DRILL, {"FAULT_TYPE": "nvlink_degrade"})
    assert [step.id for step in drill.timeline] == ["nvlink"]
    assert [slo.step for slo in drill.slos] == [None]
    assert [response.step for response in drill.responses] == ["nvlink"]
    assert told == ["FAULT_TYPE=nvlink_degrade: only nvlink stays on the timeline"]


def test_a_dose_variable_sets_the_field_of_its_kind() -> None:
    drill, told = steer_by_environment(
        DRILL, {"NVLINK_BANDWIDTH_PERCENT": "10", "OOM_TRIGGER_THRESHOLD_MB": "512"}
    )
    doses = [step.fault.model_dump() for step in drill.timeline]
    assert (doses[0]["free_mb"], doses[2]["percent"]) == (512, 10)
    assert told == [
        "OOM_TRIGGER_THRESHOLD_MB=512 sets vram_oom.free_mb of vram",
        "NVLINK_BANDWIDTH_PERCENT=10 sets nvlink_degrade.percent of nvlink",
    ]


def test_a_dose_for_a_fault_that_the_drill_lacks_changes_nothing_and_says_so() -> None:
    only_vram = {"FAULT_TYPE": "vram_oom", "NVLINK_BANDWIDTH_PERCENT": "10"}
    drill, told = steer_by_environment(DRILL, only_vram)
    assert [step.fault.kind for step in drill.timeline] == ["vram_oom"]
    assert told[1] == "NVLINK_BANDWIDTH_PERCENT=10 sets nothing: no such fault"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {"FAULT_TYPE": "cosmic_rays"},
            "FAULT_TYPE=cosmic_rays: three-faults has no such fault; "
            "it has: nvlink_degrade, pcie_saturation, vram_oom",
        ),
        ({"FAULT_TYPE": "noop"}, "FAULT_TYPE=noop: three-faults has no such fault"),
        ({"NVLINK_BANDWIDTH_PERCENT": "ten"}, "NVLINK_BANDWIDTH_PERCENT=ten: not a number"),
        ({"OOM_TRIGGER_THRESHOLD_MB": "inf"}, "OOM_TRIGGER_THRESHOLD_MB=inf: not a finite number"),
        ({"OOM_TRIGGER_THRESHOLD_MB": "nan"}, "OOM_TRIGGER_THRESHOLD_MB=nan: not a finite number"),
        (
            {"NVLINK_BANDWIDTH_PERCENT": "130"},
            "three-faults with NVLINK_BANDWIDTH_PERCENT=130 is not a drill:\n"
            "  timeline[2].fault.percent: 130.0: Input should be less than or equal to 99",
        ),
        ({"OOM_TRIGGER_THRESHOLD_MB": "-1"}, "timeline[0].fault.free_mb: -1.0: Input should be greater than 0"),
    ],
    ids=str,
)  # fmt: skip
def test_a_variable_that_asks_for_nonsense_is_refused_by_its_name(
    environment: dict[str, str], told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        steer_by_environment(DRILL, environment)


def test_fault_type_on_a_drill_without_faults_is_refused() -> None:
    bare = decode(three_faults() | {"timeline": [], "slos": [], "responses": []})
    with pytest.raises(UsageError, match="has no such fault; it has: none"):
        steer_by_environment(bare, {"FAULT_TYPE": "vram_oom"})


def test_the_report_says_what_the_environment_changed_and_how_to_repeat_it() -> None:
    environment = {"NVLINK_BANDWIDTH_PERCENT": "10"}
    drill, told = steer_by_environment(DRILL, environment)
    started = {"t": 0.0, "kind": "drill", "overrides": told, "environment": environment, "sets": ["seed=3"]}
    started["file"] = "scenarios/weak-link.yaml"
    history = History.of([started])
    summary = summarise(drill, history, judge(drill, history))
    assert summary.facts["overrides"] == (
        "seed=3, NVLINK_BANDWIDTH_PERCENT=10 sets nvlink_degrade.percent of nvlink"
    )
    assert summary.repeat[0].startswith("NVLINK_BANDWIDTH_PERCENT=10 brownout run ")


def test_never_and_always_can_be_shown_of_what_is_counted() -> None:
    """All of it is seen, where of requests only a sample is."""
    DRILL.model_validate(DRILL.plain() | {"slos": [an_slo("weak_link_share", max=0.0)]})
    DRILL.model_validate(DRILL.plain() | {"slos": [an_slo("direct_dma_ratio", min=1.0)]})


def test_a_drill_may_leave_out_how_long_a_breaker_stays_open() -> None:
    kept = DRILL.plain()
    assert all(response.get("open_for_s") is None for response in kept["responses"])
    assert DRILL.model_validate(kept) == DRILL
