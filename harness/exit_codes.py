"""How an error ends the program: one message and an exit code, which is never one of a verdict's (0, 1, 2)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

INTERRUPTED = 130


class Brownout(click.Group):
    """Shows our own errors as one message, without a traceback, each with its exit code.

    Whatever goes wrong, the exit code is none of a verdict's: click's own would be 2 for a bad option, which is
    UNKNOWN, and Python's 1 for a traceback, which is FAIL.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _codes_of_our_own():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _codes_of_our_own():
            return super().invoke(ctx)


@contextmanager
def _codes_of_our_own() -> Iterator[None]:
    from harness.errors import BrownoutError, UsageError

    try:
        yield
    except click.ClickException as error:
        error.exit_code = UsageError.exit_code  # type: ignore[misc]  # declared for the class, read of the instance
        raise
    except (click.exceptions.Exit, BrokenPipeError):
        raise
    except BrownoutError as error:
        click.echo(f"brownout: {error}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error
    except (KeyboardInterrupt, click.Abort):
        click.echo("brownout: interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        click.echo(f"brownout: {error}", err=True)
        raise click.exceptions.Exit(BrownoutError.exit_code) from error
    except Exception as error:
        traceback.print_exc()
        click.echo("brownout: that is a mistake of brownout's own, not a verdict", err=True)
        raise click.exceptions.Exit(BrownoutError.exit_code) from error
