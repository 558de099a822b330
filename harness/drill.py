"""A drill: the declared experiment, a frozen value.

YAML, Python and the command line are three spellings of it (`drill_file` reads the first).
A time in a drill is in seconds from the start of its load; a quantile is between 0 and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from faults.kinds import AnyFault
from harness.bounds import as_share, senseless
from harness.metrics import METRICS

World = Literal["virtual", "local", "live"]
BreakerName = Literal["memory", "pcie", "nvlink"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")]


class Declared(BaseModel):
    """A part of a drill: frozen, and an unknown field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Countermeasures(Declared):
    """Which of the bundled service's responses are on. Off leaves detection on, to show what they buy."""

    vram: bool = True
    pcie: bool = True
    nvlink: bool = True


class Target(Declared):
    """What is attacked: the bundled service with its settings, or (`url`) any OpenAI-compatible server."""

    url: str | None = None
    model: str | None = None  # a Hugging Face folder of Llama architecture; default: weights from the seed
    light_model: str | None = (
        None  # the folder of the rung below; with `model` and without this there is none
    )
    port: int | None = Field(default=None, ge=1, le=65535)  # default: a free one
    breaker_time_scale: float = Field(
        default=1.0, gt=0, le=1
    )  # 1: open for 60 s (VRAM), 30 s (PCIe), 120 s (NVLink)
    preemption: Literal["recompute", "swap"] = "swap"
    max_running: int = Field(default=16, ge=1, le=256)
    max_queue: int = Field(default=64, ge=1, le=10_000)
    countermeasures: Countermeasures = Countermeasures()


class Node(Declared):
    """The simulated node: `cards` cards of one profile, wired in a topology."""

    profile: Literal["pocket"] = "pocket"  # the only one that the bundled service's CPU model fits
    cards: int = Field(default=4, ge=1, le=16)
    topology: Literal["mesh", "nvswitch", "pairs", "none"] = "mesh"


class Load(Declared):
    """Open-loop arrivals drawn from a trace: a window of it, thinned, stretched in time, and repeated.

    Each repeat offers the same shape, thinned anew from the seed, so that phases can be compared.
    """

    trace: Path  # CSV with TIMESTAMP, ContextTokens, GeneratedTokens; relative to the drill file
    offset_s: float = Field(ge=0)  # where the window starts in the trace
    span_s: float = Field(gt=0, le=3600)  # how much of the trace it takes
    keep: float = Field(default=1.0, gt=0, le=1)  # share of its arrivals that is kept
    stretch: float = Field(default=1.0, gt=0, le=100)  # seconds played per second of the trace
    repeat: int = Field(default=1, ge=1, le=100)
    prompt_scale: float = Field(default=1.0, gt=0, le=1)  # tokens asked per token in the trace
    output_scale: float = Field(default=1.0, gt=0, le=1)
    max_prompt_tokens: int = Field(default=256, ge=1)
    max_output_tokens: int = Field(default=64, ge=1)
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    lateness_max_ms: float = Field(default=250.0, gt=0)  # p99 of actual minus intended send time

    @property
    def duration_s(self) -> float:
        """How long the plan plays, in seconds."""
        return self.span_s * self.stretch * self.repeat


class Step(Declared):
    """One fault on the timeline: on at `at_s`, held for `hold_s` after its effect is visible."""

    id: Name
    at_s: float = Field(ge=0)
    hold_s: float = Field(gt=0, le=3600)
    effect_within_s: float = Field(default=5.0, gt=0, le=60)  # how long to wait for effect, and for its end
    fault: AnyFault


class Slo(Declared):
    """A bound on a metric in a phase.

    `max` or `min` are in the metric's unit; `max_ratio` is relative to the same metric in this run's baseline,
    so that a slow machine is not a broken service. For a metric that each request has, `quantile` says which
    share of requests must keep within the bound.
    """

    phase: Literal["baseline", "fault", "recovery"]
    step: Name | None = None  # which fault or recovery; None: each of them
    metric: str
    quantile: float | None = Field(default=None, gt=0, lt=1)
    max: float | None = None
    min: float | None = None
    max_ratio: float | None = Field(default=None, gt=0)
    slack: float = Field(default=0.0, ge=0)  # added to a relative bound, in the metric's unit
    after_s: float = Field(default=0.0, ge=0)  # leave out the phase's first seconds ("recovered within")

    @model_validator(mode="after")
    def _is_one_claim(self) -> Self:
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}; known: {', '.join(sorted(METRICS))}")
        bounds = [b for b in (self.max, self.min, self.max_ratio) if b is not None]
        if len(bounds) != 1:
            raise ValueError("give exactly one of max, min, max_ratio")
        if METRICS[self.metric].needs_quantile and self.quantile is None:
            raise ValueError(f"{self.metric} is measured per request: say which quantile, e.g. quantile: 0.9")
        if self.max_ratio is not None and self.phase == "baseline":
            raise ValueError("max_ratio compares with the baseline, so it can't bound the baseline itself")
        if self.quantile is not None and not METRICS[self.metric].needs_quantile:
            raise ValueError(f"{self.metric} is no number that each request has, so quantile means nothing")
        if self.slack and self.max_ratio is None:
            raise ValueError("slack is added to max_ratio; without one, put it into the bound itself")
        for side, bound in (("max", self.max), ("min", self.min)):
            if bound is not None and (problem := senseless(self.metric, side, bound)):
                raise ValueError(f"{self.metric} {side}: {bound:g}: {problem}")
        if METRICS[self.metric].unit == "ratio" and self.slack >= 1:
            raise ValueError(f"slack: {self.slack:g}: {self.metric} is a ratio, {as_share(self.slack)}")
        return self


class Response(Declared):
    """What the service must do about a step's fault, by the response matrix."""

    step: Name
    breaker: BreakerName
    detected_within_ms: float = Field(gt=0)  # breaker open, from the moment the fault took effect
    open_for_s: float | None = Field(
        default=None, gt=0
    )  # each time; full-size seconds, as breaker_time_scale
    closed_within_s: float = Field(gt=0)  # breaker closed again, from the moment the fault was gone


class BlastRadius(Declared):
    """How far a drill may reach."""

    cards_max: int = Field(default=1, ge=1)
    fault_max_s: float = Field(default=60.0, gt=0)


class Drill(Declared):
    """The whole experiment."""

    name: Name
    why: str = Field(min_length=10)
    worlds: tuple[World, ...] = Field(default=("local",), min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    node: Node = Node()
    target: Target = Target()
    load: Load
    timeline: tuple[Step, ...] = ()  # none: only the load, to see whether it is served steadily
    steady_state: tuple[Slo, ...] = Field(min_length=1)
    slos: tuple[Slo, ...] = ()
    responses: tuple[Response, ...] = ()
    fidelity_sample: int = Field(
        default=24, ge=0, le=1000
    )  # answers asked again, alone, once the faults are gone
    blast_radius: BlastRadius = BlastRadius()

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        ids = [step.id for step in self.timeline]
        if len(set(ids)) != len(ids):
            raise ValueError(f"timeline: step ids must differ, got {ids}")
        for where, named in [("slos", s.step) for s in self.slos] + [
            ("responses", r.step) for r in self.responses
        ]:
            if named is not None and named not in ids:
                raise ValueError(f"{where}: no step {named!r} on the timeline; known: {', '.join(ids)}")
        if any(slo.phase != "baseline" for slo in self.steady_state):
            raise ValueError("steady_state: the steady state is checked in phase baseline")
        end_s = 0.0
        for step in self.timeline:
            if step.at_s < end_s:
                raise ValueError(
                    f"timeline: {step.id} starts at {step.at_s} s, before the step ahead of it is over"
                )
            end_s = step.at_s + step.hold_s
            if step.hold_s > self.blast_radius.fault_max_s:
                raise ValueError(
                    f"timeline: {step.id} holds {step.hold_s} s; "
                    f"blast_radius.fault_max_s is {self.blast_radius.fault_max_s}"
                )
            step.fault.check_reach(cards=self.node.cards, cards_max=self.blast_radius.cards_max)
        if end_s > self.load.duration_s:
            raise ValueError(
                f"timeline ends at {end_s:g} s, but the load plays for only {self.load.duration_s:g} s"
            )
        return self

    def step(self, step_id: str) -> Step:
        """The step of that id; KeyError if there is none."""
        for step in self.timeline:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def plain(self) -> dict[str, Any]:
        """JSON-ready and whole, defaults included: a stored run must not change when a default does."""
        return self.model_dump(mode="json")
