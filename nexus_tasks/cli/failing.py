"""Report a failed command: print an error line (with ``--json`` a JSON document), and choose the exit code."""

from __future__ import annotations

import logging
import os
import sys

from rich.text import Text

from nexus_tasks.cli.output import emit, err, json_wanted
from nexus_tasks.errors import JobFailed, NexusError, WaitTimeout

FAILED, MISUSED, WAITED_IN_VAIN, INTERRUPTED = 1, 2, 3, 130
_BUG_REMEDY = "Set NEXUS_LOG_LEVEL=DEBUG and run the command again to see the traceback."

log = logging.getLogger(__name__)


def fail(error: NexusError) -> int:
    """Print an error of this package. Returns the exit code: 3 when a wait failed, 1 otherwise."""
    log.debug("The command failed.", exc_info=error)
    said = f"{error.message} The server said: {error.quoted}" if error.quoted else error.message
    _report(type(error).__name__, said, error.remedy)
    return WAITED_IN_VAIN if isinstance(error, JobFailed | WaitTimeout) else FAILED


def misused(message: str) -> int:
    """Print the fault of the command's arguments as JSON. Returns the exit code 2."""
    emit({"error": {"type": "UsageError", "message": message, "remedy": "Read `--help` of the command."}})
    return MISUSED


def crash(error: Exception) -> int:
    """Print the first line of an exception that is not an error of this package. Returns the exit code 1."""
    log.debug("The command failed.", exc_info=error)
    if isinstance(error, MemoryError):
        _report("MemoryError", "The process has too little memory.", "Raise its limit (`ulimit -v`) and try again.")
        return FAILED
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
    """Redirect standard output to /dev/null after the pipe's reader has ended, so that the flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
