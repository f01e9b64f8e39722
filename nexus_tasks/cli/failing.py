"""How a command ends when something is wrong: the message, the document and the exit code."""

from __future__ import annotations

import logging
import os
import sys

from rich.text import Text

from nexus_tasks.cli.output import emit, err, json_wanted
from nexus_tasks.errors import JobFailed, NexusError, StorageUnavailable, Transient, WaitTimeout

FAILED, WAITED_IN_VAIN, INTERRUPTED = 1, 3, 130
_BUG_REMEDY = "Set NEXUS_LOG_LEVEL=DEBUG and run it again to see the traceback."

log = logging.getLogger(__name__)


def fail(error: NexusError) -> int:
    """Report an expected error; returns the exit code."""
    log.debug("The command failed.", exc_info=error)
    _report(type(error).__name__, error.message, _remedy(error))
    return WAITED_IN_VAIN if isinstance(error, JobFailed | WaitTimeout) else FAILED


def crash(error: Exception) -> int:
    """Report what nobody expected; returns the exit code."""
    log.debug("The command failed.", exc_info=error)
    said = str(error).strip().partition("\n")[0]
    _report(type(error).__name__, f"{type(error).__name__}: {said}" if said else type(error).__name__, _BUG_REMEDY)
    return FAILED


def _remedy(error: NexusError) -> str:
    # A job backs off and comes again by itself; a person at the command line has to.
    if isinstance(error, Transient) and error.remedy == type(error).default_remedy:
        return StorageUnavailable.default_remedy
    return error.remedy


def _report(kind: str, message: str, remedy: str) -> None:
    if json_wanted():
        emit({"error": {"type": kind, "message": message, "remedy": remedy}})
        return
    line = " ".join(f"{message} {remedy}".split())
    err().print(Text.assemble(("error: ", "bold red"), line))


def hang_up() -> None:
    """The reader of our output is gone: say nothing more, not even when the interpreter flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
