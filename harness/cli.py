"""The command line. Everything heavy is imported inside the command that needs it, so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.exit_codes import INTERRUPTED, Brownout
from harness.gpu.commands import gpu

if TYPE_CHECKING:
    from harness.drill import Drill
    from harness.history import History
    from harness.perform import Asked, Performance
    from harness.store import Run
    from harness.verdict import Verdict

Command = TypeVar("Command", bound=Callable[..., Any])
# The worst verdict of several drills decides: FAIL, then UNKNOWN, then PASS.
BADNESS = {0: 0, 2: 1, 1: 2, INTERRUPTED: 3}


@click.group(cls=Brownout, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="brownout")
def main() -> None:
    """Chaos drills for GPU inference services, with verdicts you can trust.

    \b
    Examples:
      brownout check scenarios/burst-survives-vram-pcie-nvlink.yaml
      brownout run scenarios/burst-survives-vram-pcie-nvlink.yaml
      brownout run scenarios/burst-survives-vram-pcie-nvlink.yaml --set timeline.2.fault.percent=50
      brownout run scenarios/burst-is-served-steadily.yaml --target http://127.0.0.1:8000
      brownout judge runs/burst-survives-vram-pcie-nvlink/latest

    \b
    Exit codes:
      0 PASS   1 FAIL   2 UNKNOWN   64 the request can't be done   70 brownout itself broke   130 interrupted
    """


main.add_command(gpu)


def asks_for_a_drill(command: Command) -> Command:
    """The options that say which drill, where and how."""
    for option in (
        click.option(
            "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override one value of the drill."
        ),
        click.option("--seed", type=int, help="Override the drill's seed."),
        click.option("--target", metavar="URL", help="Drill this OpenAI-compatible server (world live)."),
        click.option(
            "--world", type=click.Choice(["virtual", "local", "live"]), help="Default: the drill's first."
        ),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@asks_for_a_drill
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True,
              help="Where runs are kept.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object a drill on standard output.")
@click.pass_context
def run(ctx: click.Context, /, files: tuple[Path, ...], out: Path, as_json: bool, **how: Any) -> None:
    """Run drills and judge them.

    \b
    Examples:
      brownout run scenarios/burst-survives-vram-pcie-nvlink.yaml
      brownout run FILE --set target.countermeasures.vram=false    what the service does without its response
      FAULT_TYPE=nvlink_degrade NVLINK_BANDWIDTH_PERCENT=10 brownout run FILE
    """
    asked = [ask_for(file, **how) for file in files]  # all are checked before the first is started
    codes: list[int] = []
    for one in asked:
        codes.append(report_on(perform_one(one, out), as_json))
        if codes[-1] == INTERRUPTED:
            break  # Ctrl-C is meant for all of them
    ctx.exit(max(codes, key=lambda code: BADNESS[code]))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@asks_for_a_drill
def check(file: Path, **how: Any) -> None:
    """Say what a drill would do; starts and touches nothing.

    \b
    Example:
      brownout check scenarios/burst-survives-vram-pcie-nvlink.yaml --set load.keep=0.5
    """
    from harness.perform import announce
    from harness.screen import Screen

    asked = ask_for(file, **how)
    announce(asked, Screen(sys.stdout))
    claims = len(asked.drill.steady_state) + len(asked.drill.slos) + len(asked.drill.responses)
    if asked.drill.timeline:
        click.echo("  undo    each fault is a process of its own, and ends with it")
    click.echo(f"  judge   {claims} bounds and responses, and what must always be true")


@main.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on standard output.")
@click.pass_context
def judge(ctx: click.Context, path: Path, as_json: bool) -> None:
    """Judge a stored run again, by today's rules. The stored verdict stays as it is.

    \b
    Example:
      brownout judge runs/burst-survives-vram-pcie-nvlink/latest
    """
    from reports.summary import summarise

    stored, drill, history, verdict = judged_again(path)
    show(summarise(drill, history, verdict, kept=stored.drill_yaml), verdict, stored.report_html, as_json)
    ctx.exit(verdict.exit_code)


@main.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.pass_context
def report(ctx: click.Context, path: Path) -> None:
    """Write a stored run's reports again (HTML, JUnit, JSON) and show the terminal's.

    \b
    Example:
      brownout report runs/burst-survives-vram-pcie-nvlink/latest
    """
    from reports.files import write_reports

    stored, drill, history, verdict = judged_again(path)
    show(write_reports(stored, drill, history, verdict), verdict, stored.report_html, as_json=False)
    ctx.exit(verdict.exit_code)


@main.command(name="list")
@click.argument("what", default="scenarios", metavar="[faults|drills|metrics|FOLDER]")
def list_what(what: str) -> None:
    """Name fault kinds, drills or metrics; with a folder, its drills and all the rest.

    \b
    Examples:
      brownout list scenarios
      brownout list faults     each kind with its dose, its undo, and how true to life it is in which world
    """
    from faults.catalogue import listing
    from harness.drill_file import load_drill
    from harness.metrics import METRICS

    folder = Path("scenarios" if what in ("faults", "drills", "metrics") else what)
    if what not in ("faults", "metrics"):
        if not folder.is_dir():
            raise click.BadParameter(f"{what!r} is none of faults, drills and metrics, and no folder")
        click.echo("drills")
        for file in sorted(folder.glob("*.yaml")):
            drill = load_drill(file)
            click.echo(f"  {file}  ({', '.join(drill.worlds)})\n      {drill.why.strip()}")
    if what not in ("drills", "metrics"):
        click.echo("fault kinds")
        click.echo("\n".join(listing(in_full=what == "faults")))
    if what not in ("faults", "drills"):
        click.echo("metrics")
        for name, metric in METRICS.items():
            click.echo(f"  {name:<18} [{metric.unit}] {metric.what}")


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--seed", default=0, show_default=True, help="Of the built-in weights.")
@click.option("--model", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="A Hugging Face folder of Llama architecture, instead of the built-in weights.")  # fmt: skip
@click.option("--cards", default=4, show_default=True, type=click.IntRange(1, 16))
@click.pass_context
def serve(ctx: click.Context, /, **options: Any) -> None:
    """Run the bundled service alone, on a simulated node of its own, until Ctrl-C.

    \b
    Examples:
      brownout serve --port 8000
      curl localhost:8000/v1/completions -d '{"model": "brownout-full", "prompt": "Hello", "max_tokens": 8}'
    """
    from harness.serve import serve as serve_until_interrupted

    ctx.exit(serve_until_interrupted(**options))


def ask_for(file: Path, *, sets: tuple[str, ...], seed: int | None, target: str | None, world: Any) -> Asked:
    """A drill with the options applied, checked as far as can be without starting anything."""
    from harness.perform import ask

    if seed is not None:
        sets = (*sets, f"seed={seed}")
    if target is not None:
        sets, world = (*sets, f"target.url={target}"), world or "live"
    return ask(file, world=world, sets=sets)


def judged_again(path: Path) -> tuple[Run, Drill, History, Verdict]:
    """A stored run, with its drill and history, and how today's rules judge it."""
    from harness.judge import judge as judge_history
    from harness.store import open_run

    stored = open_run(path)
    history = stored.history()
    drill = stored.drill(history)
    return stored, drill, history, judge_history(drill, history)


def perform_one(asked: Asked, out: Path) -> Performance:
    from harness.perform import perform

    return perform(asked, root=out)


def report_on(performance: Performance, as_json: bool) -> int:
    """Write the reports of a run, show the terminal's, and give the exit code."""
    from reports.files import write_reports

    asked, verdict = performance.asked, performance.verdict
    summary = write_reports(performance.run, asked.drill, performance.history, verdict)
    show(summary, verdict, performance.run.report_html, as_json)
    interrupted = next(performance.history.of_kind("interrupted"), None)
    return verdict.exit_code if interrupted is None else INTERRUPTED


def show(summary: Any, verdict: Any, page: Path, as_json: bool) -> None:
    """The report for people; with `as_json` it goes to standard error, and the object to standard output."""
    from reports.json_report import json_line
    from reports.text import print_report

    try:
        print_report(summary, to=sys.stderr if as_json else sys.stdout, page=page if page.exists() else None)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on (`| head`): the exit code is still the verdict's
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if as_json:
        click.echo(json_line(summary, verdict))
