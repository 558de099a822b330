"""One line or cloud of a graph: a label, a tone (what its colour means) and points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Series = dict[str, Any]
Points = list[tuple[float, float]]


def series(label: str, tone: str, points: Iterable[tuple[float, float]]) -> Series:
    """Rounded to what can be seen, so that the page stays small; a number that JSON can't hold is a gap."""
    kept = [(round(x, 3), float(f"{y:.5g}") if math.isfinite(y) else None) for x, y in points]
    return {"label": label, "tone": tone, "x": [x for x, _ in kept], "y": [y for _, y in kept]}
