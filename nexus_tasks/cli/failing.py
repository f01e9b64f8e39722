"""The end of a command that fails: the error line, the error document with ``--json``, and the exit code."""

from __future__ import annotations

import logging
import os
import sys

from rich.text import Text

from nexus_tasks.cli.output import emit, err, json_wanted
from nexus_tasks.errors import JobFailed, NexusError, WaitTimeout

FAILED, WAITED_IN_VAIN, INTERRUPTED = 1, 3, 130
_BUG_REMEDY = "Set NEXUS_LOG_LEVEL=DEBUG and run it again to see the traceback."

log = logging.getLogger(__name__)


def fail(error: NexusError) -> int:
    """Print an error of this package; returns the exit code: 3 when a wait failed, else 1."""
    log.debug("The command failed.", exc_info=error)
    _report(type(error).__name__, error.message, error.remedy)
    return WAITED_IN_VAIN if isinstance(error, JobFailed | WaitTimeout) else FAILED


def crash(error: Exception) -> int:
    """Print the first line of any other exception; returns the exit code."""
    log.debug("The command failed.", exc_info=error)
    kind, text = type(error).__name__, str(error).strip().partition("\n")[0]
    _report(kind, f"{kind}: {text}" if text else kind, _BUG_REMEDY)
    return FAILED


def _report(kind: str, message: str, remedy: str) -> None:
    if json_wanted():
        emit({"error": {"type": kind, "message": message, "remedy": remedy}})
        return
    line = " ".join(f"{message} {remedy}".split())
    err().print(Text.assemble(("error: ", "bold red"), line))


def hang_up() -> None:
    """Send further output to /dev/null: the reader of standard output is gone, and the flush at exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
