"""The report as one self-contained page: no request but the file itself, by its own content policy."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from harness.drill import Drill
from harness.history import History
from reports.summary import Summary
from reports.timeline import timeline

TEMPLATES = Path(__file__).parent / "templates"


def html_page(summary: Summary, drill: Drill, history: History) -> str:
    """The page. Only the scripts and styles that are in it may run, by their hashes."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    scripts = [_part("vendor/uPlot.iife.min.js"), _part("report.js")]
    styles = [_part("vendor/uPlot.min.css"), _part("report.css")]
    page = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return page.get_template("report.html").render(
        s=summary,
        policy=_policy(scripts, styles),
        scripts=[Markup(script) for script in scripts],
        styles=[Markup(style) for style in styles],
        data=Markup(_script_safe(timeline(drill, history))),
        unsettled=sorted(
            (f for f in summary.findings if f.outcome != "HELD"), key=lambda f: f.outcome != "BROKEN"
        ),
    )


def _part(name: str) -> str:
    """A script or a style without white space around it: its hash covers all that is between the tags."""
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def _policy(scripts: list[str], styles: list[str]) -> str:
    script_src, style_src = (" ".join(_sha256(part) for part in parts) for parts in (scripts, styles))
    return (
        f"default-src 'none'; script-src {script_src}; style-src {style_src}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _sha256(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that can't end the element it stands in, whatever a history holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
