"""The commands that keep a simulated node of its own, for monitoring to look at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

NODE = Path(".brownout") / "gpu" / "node.bin"


def at_file(command: Any) -> Any:
    """The option that says which node."""
    return click.option(
        "--file",
        default=NODE,
        show_default=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="The node's file.",
    )(command)


@click.group()
def gpu() -> None:
    """Keep a simulated node of cards that NVML clients and dashboards can look at.

    \b
    Examples:
      brownout gpu start --profile h100-sxm-80 --cards 8
      brownout gpu top
      brownout gpu stop
    """


@gpu.command()
@click.option("--profile", default="h100-sxm-80", show_default=True, help="What its cards are like.")
@click.option("--cards", default=8, show_default=True, type=click.IntRange(1, 16))
@click.option("--topology", help="How they are wired; the profile's own unless named.")
@click.option("--metrics-port", default=0, show_default=True, type=click.IntRange(0, 65535),
              help="Serve metrics under DCGM's names on this port of the loopback interface; 0: don't.")  # fmt: skip
@at_file
def start(**options: Any) -> None:
    """Make a node, and keep it in the background until `stop`.

    \b
    Examples:
      brownout gpu start
      brownout gpu start --profile a100-sxm-80 --cards 4 --topology pairs
      brownout gpu start --profile h100-sxm-80 --cards 8 --topology nvswitch --metrics-port 9400
    """
    from harness.gpu.keeping import start as start_keeping

    for line in start_keeping(**options):
        click.echo(line)


@gpu.command()
@at_file
@click.option("--once", is_flag=True, help="Print once instead of watching.")
@click.option("--json", "as_json", is_flag=True, help="Print once, as one JSON object.")
@click.option("--every", "every_s", default=0.5, show_default=True, type=click.FloatRange(0.1),
              help="Seconds between two looks.")  # fmt: skip
def top(file: Path, once: bool, as_json: bool, every_s: float) -> None:
    """Watch a node's cards: use, memory, power, clocks, links, and who is on them.

    \b
    Examples:
      brownout gpu top
      brownout gpu top --once
      brownout gpu top --json --file runs/my-drill/latest/node.bin
    """
    from harness.gpu.top import show, watch

    if math.isnan(every_s):  # which is neither below a range nor above it
        raise click.BadParameter("nan is no number of seconds", param_hint="--every")
    if once or as_json:
        show(file, as_json)
    else:
        watch(file, every_s)


@gpu.command()
@at_file
def stop(file: Path) -> None:
    """End a node that `start` made, and remove its file.

    \b
    Example:
      brownout gpu stop
    """
    from harness.gpu.keeping import stop as stop_keeping

    click.echo(stop_keeping(file))
