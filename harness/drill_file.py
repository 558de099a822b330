"""A drill's three spellings meet here: files, `PATH=VALUE` overrides, and the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from faults.kinds import KINDS
from harness.drill import Drill
from harness.errors import BadDrill, UsageError

# Environment variables that steer a drill, and the field of which fault each sets.
FAULT_TYPE = "FAULT_TYPE"
DOSES = {
    "OOM_TRIGGER_THRESHOLD_MB": ("vram_oom", "free_mb"),
    "NVLINK_BANDWIDTH_PERCENT": ("nvlink_degrade", "percent"),
}
ENVIRONMENT = (FAULT_TYPE, *DOSES)

# What reading YAML raises: ValueError for bytes that are no text and for a date such as 2024-13-45.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


def load_drill(path: Path | str, overrides: tuple[str, ...] = ()) -> Drill:
    """Read a drill. BadDrill names each bad field by its path, with the value and what is allowed."""
    path = Path(path)
    plain = read_plain(path)
    for text in overrides:
        plain = override(plain, text)
    return decode(plain, source=str(path))


def read_plain(path: Path) -> dict[str, Any]:
    """A drill file as plain values, its trace's path made relative to the working folder."""
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadDrill(f"{path}: {error.strerror}") from error
    except NOT_YAML as error:
        raise BadDrill(f"{path}: not YAML: {error}") from error
    if not isinstance(plain, dict):
        raise BadDrill(f"{path}: a drill is a mapping of fields, not {type(plain).__name__}")
    load = plain.get("load")
    if (
        isinstance(load, dict)
        and isinstance(load.get("trace"), str)
        and not Path(load["trace"]).is_absolute()
    ):
        plain["load"] = {**load, "trace": str(path.parent / load["trace"])}
    return plain


def decode(plain: Mapping[str, Any], source: str = "drill") -> Drill:
    """A drill from plain values."""
    try:
        return Drill.model_validate(plain)
    except ValidationError as error:
        told = "\n".join(f"  {_place(e['loc'])}: {_complaint(e)}" for e in error.errors())
        raise BadDrill(f"{source} is not a drill:\n{told}") from error


def dump_drill(drill: Drill) -> str:
    """The YAML of a drill; reading it gives the same drill."""
    return yaml.safe_dump(drill.plain(), sort_keys=False, allow_unicode=True)


def override(plain: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Set one value by `PATH=VALUE`: dots between names, numbers for places in a list, the value in YAML."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise UsageError(
            f"--set {text!r}: write PATH=VALUE, e.g. load.keep=0.2 or timeline.0.fault.percent=50"
        )
    try:
        decoded = yaml.safe_load(value)
    except NOT_YAML as error:
        raise UsageError(f"--set {text!r}: the value is not YAML: {error}") from error
    result: dict[str, Any] = _set(plain, path.split("."), decoded, text)
    return result


def override_drill(drill: Drill, overrides: tuple[str, ...]) -> Drill:
    """A drill that is a value already, with `PATH=VALUE` overrides applied."""
    plain = drill.plain()
    for text in overrides:
        plain = override(plain, text)
    return decode(plain, source=drill.name) if overrides else drill


def _set(node: Any, names: list[str], value: Any, text: str) -> Any:
    name, *rest = names
    if isinstance(node, Mapping):
        return {**node, name: _set(node.get(name, {}), rest, value, text) if rest else value}
    if isinstance(node, list):
        if not name.isdecimal() or int(name) >= len(node):
            places = f"; they are 0 to {len(node) - 1}" if node else ""
            raise UsageError(f"--set {text!r}: {name!r} is no place in a list of {len(node)}{places}")
        place = int(name)
        changed = _set(node[place], rest, value, text) if rest else value
        return [*node[:place], changed, *node[place + 1 :]]
    raise UsageError(f"--set {text!r}: {name!r} lies inside {node!r}, which has no fields")


def steer_by_environment(drill: Drill, environment: Mapping[str, str]) -> tuple[Drill, list[str]]:
    """Apply `ENVIRONMENT`; returns the drill and what was changed, in words for the report.

    FAULT_TYPE leaves only the steps of that kind; a dose sets the field of each step of its kind.
    """
    plain, told = drill.model_dump(mode="json"), []
    kind = environment.get(FAULT_TYPE)
    if kind:
        here = sorted({step.fault.kind for step in drill.timeline})
        if kind not in here:
            raise UsageError(
                f"{FAULT_TYPE}={kind}: {drill.name} has no such fault; it has: {', '.join(here) or 'none'}"
            )
        kept = {step.id for step in drill.timeline if step.fault.kind == kind}
        plain["timeline"] = [step for step in plain["timeline"] if step["id"] in kept]
        for part in ("slos", "responses"):
            plain[part] = [one for one in plain[part] if one["step"] is None or one["step"] in kept]
        told.append(f"{FAULT_TYPE}={kind}: only {', '.join(sorted(kept))} stays on the timeline")
    for name, (of_kind, field) in DOSES.items():
        if not environment.get(name):
            continue
        steps = [step for step in plain["timeline"] if step["fault"]["kind"] == of_kind]
        for step in steps:
            step["fault"][field] = _number(name, environment[name])
        what = (
            f"{of_kind}.{field} of {', '.join(step['id'] for step in steps)}"
            if steps
            else "nothing: no such fault"
        )
        told.append(f"{name}={environment[name]} sets {what}")
    given = " ".join(f"{name}={environment[name]}" for name in ENVIRONMENT if environment.get(name))
    return (decode(plain, source=f"{drill.name} with {given}"), told) if told else (drill, [])


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise UsageError(f"{name}={text}: not a number") from error
    if not math.isfinite(number):
        raise UsageError(f"{name}={text}: not a finite number")
    return number


def _place(location: tuple[int | str, ...]) -> str:
    """`timeline[0].fault.percent`; the tag that a union adds to the path is left out."""
    path = ""
    for part in location:
        if part in KINDS:
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "(the whole)"


def _complaint(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "union_tag_invalid":
        return f"unknown fault kind {error['ctx']['tag']!r}; known: {', '.join(sorted(KINDS))}"
    if error["type"] == "union_tag_not_found":
        return f"a fault needs a kind; known: {', '.join(sorted(KINDS))}"
    given = error["input"]
    return message if isinstance(given, dict | list | tuple) else f"{given!r}: {message}"
