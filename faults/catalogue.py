"""The kinds in words, from what they say of themselves: `python -m faults.catalogue docs/faults.md` writes them down.

What stands between the two marks of that page is ours; the rest is left alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.base import Fault
from faults.kinds import KINDS

WORLDS = ("local", "virtual", "live")
BEGIN, END = "<!-- the kinds, as they describe themselves -->\n", "<!-- end of the kinds -->\n"
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "{} or more",
}


def main() -> None:
    """Write the kinds into a page."""
    page = Path(sys.argv[1])
    page.write_text(with_kinds(page.read_text()))


def with_kinds(page: str) -> str:
    """A page with the kinds as they are now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    sections = "\n".join(section(kind) for kind in KINDS)
    return f"{head}{BEGIN}\n{overview()}\n{sections}\n{END}{tail}"


def overview() -> str:
    """One row a kind."""
    rows = ["| kind | what happens | dose | local | virtual | live |", "|---|---|---|---|---|---|"]
    for kind, fault in KINDS.items():
        labels = " | ".join(label(fault, world) for world in WORLDS)
        rows.append(f"| [`{kind}`](#{kind}) | {summary(fault)} | {fault.dose} | {labels} |")
    return "\n".join(rows) + "\n"


def listing(*, in_full: bool) -> Iterator[str]:
    """Lines for a terminal: what each kind does; in full also its dose, its undo and its worlds."""
    for kind, fault in KINDS.items():
        yield f"  {kind:<18} {summary(fault)}"
        if in_full:
            worlds = ", ".join(f"{world} {label(fault, world)}" for world in WORLDS)
            yield from (
                f"{'':21}{name:<7}{words}" for name, words in (("dose", fault.dose), ("undo", fault.undo))
            )
            yield f"{'':21}worlds {worlds}"


def section(kind: str) -> str:
    """All that a kind says of itself."""
    fault = KINDS[kind]
    worlds = ", ".join(f"{world} {label(fault, world)}" for world in WORLDS)
    told = [
        ("Dose", f"{fault.dose}. {inspect.getdoc(fault.took_effect)}"),
        ("Undo", f"{fault.undo}."),
        ("Worlds", f"{worlds}."),
        ("Certifies", fault.certifies),
        ("Does not certify", fault.does_not_certify),
        ("On hardware", fault.real_method),
        ("Privileges", f"{fault.privileges}."),
    ]
    if fault.builds_up:
        told.insert(1, ("Builds up", "it disturbs before it has reached its dose."))
    points = "\n".join(f"- **{name}:** {' '.join(words.split())}" for name, words in told)
    return f"## `{kind}`\n\n{inspect.getdoc(fault)}\n\n{settings(fault)}\n{points}\n"


def settings(fault: type[Fault]) -> str:
    """A table of its settings."""
    rows = ["| setting | what it is | limits | default |", "|---|---|---|---|"]
    for name, schema in fault.model_json_schema()["properties"].items():
        if name != "kind":
            default = "none" if schema.get("default") is None else f"`{schema['default']}`"
            rows.append(f"| `{name}` | {schema['description']} | {', '.join(limits(schema))} | {default} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else "It has no settings.\n"


def limits(schema: dict[str, Any]) -> Iterator[str]:
    """What a setting may be."""
    if "enum" in schema:
        yield " or ".join(map(str, schema["enum"]))
    for name, words in _LIMITS.items():
        if name in schema:
            yield words.format(f"{schema[name]:g}")
    for each in schema.get("anyOf", ()):
        yield "or none" if each.get("type") == "null" else ", ".join(limits(each))


def summary(fault: type[Fault]) -> str:
    """What happens, in a sentence or two."""
    paragraph, _, _ = (inspect.getdoc(fault) or "").partition("\n\n")
    return " ".join(paragraph.split())


def label(fault: type[Fault], world: str) -> str:
    """How true to life it is in a world."""
    return next((how for where, how in fault.fidelity.items() if where == world), "not yet")


if __name__ == "__main__":
    main()
