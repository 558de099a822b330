"""What can go wrong with a drill, as a tree.

    BrownoutError                 has an exit code and is shown without a traceback
    ├── UsageError (64)           what the user asked for can't be done; nothing was touched
    │   ├── BadDrill              a drill that can't be read: path, value, what is allowed
    │   └── BadTrace              a trace that can't be read, or that leaves nothing to send
    └── OwnFailure (70)           our own part broke (a child died, a port closed); the verdict is UNKNOWN

A verdict has exit codes of its own (0 PASS, 1 FAIL, 2 UNKNOWN); these lie outside them.
"""

from __future__ import annotations


class BrownoutError(Exception):
    """Anything brownout reports to its user by itself."""

    exit_code = 70


class UsageError(BrownoutError):
    """The request can't be done as asked; nothing was started."""

    exit_code = 64


class BadDrill(UsageError):
    """A drill that can't be read, with the path to each bad value and what would be allowed."""


class BadTrace(UsageError):
    """A trace that can't be read (path, line, value, what is allowed), or that leaves nothing to send."""


class OwnFailure(BrownoutError):
    """A part of brownout itself failed while a drill ran."""

    exit_code = 70
