"""The verdict as one JSON object, with how each step recovered."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from harness.verdict import Verdict
from reports.summary import Summary


def json_object(summary: Summary, verdict: Verdict) -> dict[str, Any]:
    """JSON-ready."""
    return verdict.plain() | {
        "world": summary.world,
        "facts": summary.facts,
        "recovery": [asdict(recovery) for recovery in summary.recoveries],
        "scope": [asdict(scope) for scope in summary.scopes],
        "repeat": list(summary.repeat),
    }


def json_line(summary: Summary, verdict: Verdict) -> str:
    """On one line, without NaN or Infinity, which are not JSON."""
    return json.dumps(
        json_object(summary, verdict), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
