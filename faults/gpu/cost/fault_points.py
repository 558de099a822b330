"""What faults do to a step, beside an earlier calculation of ours: model against model, and no evidence of anything.

The step decodes 64 sequences at a context of 1,024 tokens: Llama-2-70B in BF16 over 8 H100, without the host's part.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults.gpu.cost.condition import HEALTHY, Condition
from faults.gpu.cost.model_shape import llama_2_70b
from faults.gpu.cost.step import Node, StepWork

NODE = Node(llama_2_70b(), 8, host_s=0.0)
DECODES = StepWork(decodes=64, context=64 * 1024)
TOLERANCE = 0.10


@dataclass(frozen=True)
class Expectation:
    """A number that the earlier calculation gave, and ours now."""

    what: str
    earlier: float
    ours: float
    unit: str

    @property
    def error(self) -> float:
        return self.ours / self.earlier - 1


def expectations() -> tuple[Expectation, ...]:
    """The step, and what narrower links add to it."""
    healthy = NODE.step(DECODES)

    def added_ms(condition: Condition) -> float:
        return 1000 * (NODE.step_s(DECODES, condition) - healthy.total)

    halved, tenth = added_ms(Condition(nvlink=0.5)), added_ms(Condition(nvlink=0.1))
    step_ms = 1000 * NODE.step_s(DECODES, HEALTHY)
    return (
        Expectation("the healthy step", 12.7, step_ms, "ms"),
        Expectation("of which all-reduces", 19.0, 100 * healthy.collectives / healthy.total, "%"),
        Expectation("half of NVLink's bandwidth adds", 0.84, halved, "ms"),
        Expectation("half, of the healthy step", 7.0, 100 * halved / step_ms, "%"),
        Expectation("a tenth of NVLink's bandwidth adds", 7.6, tenth, "ms"),
        Expectation("a tenth, of the healthy step", 60.0, 100 * tenth / step_ms, "%"),
    )
