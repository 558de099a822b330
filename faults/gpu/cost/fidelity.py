"""How near the cost model comes to published measurements. `python -m faults.gpu.cost.fidelity > docs/fidelity.md`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from faults.gpu.cost import fidelity_text as text
from faults.gpu.cost.assumptions import Variant, variants
from faults.gpu.cost.fault_points import TOLERANCE, Expectation, expectations
from faults.gpu.cost.kernel_points import kernels
from faults.gpu.cost.published import POINTS, SOURCES, Point
from faults.gpu.cost.serving_points import served


@dataclass(frozen=True)
class Row:
    """A published point and what the model gives for it, in the same unit."""

    point: Point
    ours: float

    @property
    def error(self) -> float:
        """As a fraction of what was published."""
        return self.ours / self.point.value - 1

    @property
    def held(self) -> bool:
        return abs(self.error) <= self.point.tolerance


@cache
def rows() -> tuple[Row, ...]:
    """Every published point, evaluated."""
    results = kernels() | served()
    return tuple(Row(point, results[point.key]) for point in POINTS)


def render() -> str:
    """The whole of docs/fidelity.md."""
    return "\n".join(
        (
            text.HEAD,
            _summary(rows()),
            "",
            *_table_of_points(rows()),
            "",
            text.SOURCES_HEAD,
            *(f"- `{key}`: {source}." for key, source in SOURCES.items()),
            "",
            text.MISSED,
            *_table_of_variants(variants()),
            "",
            text.FAULTS,
            *_table_of_faults(expectations()),
            "",
            text.TAIL,
        )
    )


def _summary(all_rows: Sequence[Row]) -> str:
    predicted = [row for row in all_rows if row.point.calibrates == "no"]
    held, total = sum(row.held for row in all_rows), len(all_rows)
    return (
        f"**{held} of {total} points are within their tolerance; of the {len(predicted)} that nothing was fitted to, "
        f"{sum(row.held for row in predicted)}.**"
    )


def _table_of_points(all_rows: Sequence[Row]) -> list[str]:
    lines = [
        "| point | what | published | ours | error | tolerance | | fitted to it | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in all_rows:
        point = row.point
        lines.append(
            f"| {point.key} | {point.what} | {point.value:,.10g} {point.unit} | {_number(row.ours)} {point.unit} "
            f"| {row.error:+.1%} | {point.tolerance:.0%} | {_verdict(row.held)} | {point.calibrates} "
            f"| `{point.source}` |"
        )
    return lines


def _table_of_variants(all_variants: Sequence[Variant]) -> list[str]:
    lines = ["| if instead | point | error as it is | error then |", "|---|---|---|---|"]
    by_key = {row.point.key: row for row in rows()}
    for variant in all_variants:
        row = by_key[variant.key]
        then = Row(row.point, variant.ours)
        lines.append(f"| {variant.what} | {variant.key} | {row.error:+.1%} | {then.error:+.1%} |")
    return lines


def _table_of_faults(all_expectations: Sequence[Expectation]) -> list[str]:
    lines = ["| what | earlier [M] | ours [M] | difference | within 10 % |", "|---|---|---|---|---|"]
    for each in all_expectations:
        lines.append(
            f"| {each.what} | {each.earlier:g} {each.unit} | {_number(each.ours)} {each.unit} | {each.error:+.1%} "
            f"| {_verdict(abs(each.error) <= TOLERANCE)} |"
        )
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _verdict(held: bool) -> str:
    return "held" if held else "**missed**"


if __name__ == "__main__":
    sys.stdout.write(render())
