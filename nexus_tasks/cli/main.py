"""The command ``nexus``, and the exit codes of its failures."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Annotated, Any

import typer

from nexus_tasks import __version__
from nexus_tasks.cli.commands import CommandsByName
from nexus_tasks.cli.completion import answer_shell, shell_asks
from nexus_tasks.cli.failing import FAILED, INTERRUPTED, crash, fail, hang_up, misused
from nexus_tasks.cli.output import no_color
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.setup import environment_file
from nexus_tasks.types.hidden_characters import show_hidden

_WIDEST = 10_000  # columns
_STDERR = 2  # the descriptor
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_UsageError: Any = typer.BadParameter.__mro__[1]  # Typer exports only this subclass

app = typer.Typer(
    name="nexus",
    cls=CommandsByName,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring into paragraphs
    epilog="Settings are NEXUS_* variables; `nexus doctor` shows those that are set.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nexus-tasks {__version__}")
        raise typer.Exit


@app.callback()
def nexus(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Always-on memory for AI agents, as a Celery application."""


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    _let_no_message_fail()
    lost = _open_closed_streams()
    code = _run()
    if lost and lost.written and not code:
        code = fail(NexusError("The output is lost: standard output is closed.", remedy="Redirect it to a file."))
    sys.exit(code)


def _run() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # replaces characters that the terminal cannot print
    if no_color():
        from typer import rich_utils  # the console of --help and of usage errors

        rich_utils.COLOR_SYSTEM = None
    _forget_impossible_sizes()
    answer_shell()
    environment_file.load()
    try:
        try:
            _warn_of_mistyped_settings()
            # With `--json` Typer raises wrong usage instead of printing it, and returns the code of `typer.Exit`.
            code = app(prog_name="nexus", standalone_mode="--json" not in sys.argv)
        finally:
            # If the pipe's reader has ended, this raises BrokenPipeError here, and not during the exit of Python.
            sys.stdout.flush()
    except SystemExit as ended:  # Typer raises this exception, with the code 2 after wrong usage
        return ended.code if isinstance(ended.code, int) else FAILED
    except _UsageError as error:
        return _told(misused, error.format_message())
    except typer.Abort:
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        hang_up()
        return FAILED
    except NexusError as error:
        return _told(fail, error)
    except OSError as error:
        if error.errno in _FULL:
            return _told(fail, _unwritable(error))
        return _told(crash, error)
    except Exception as error:  # people get one line instead of a traceback
        return _told(crash, error)
    return code if isinstance(code, int) else 0


def _forget_impossible_sizes() -> None:
    """Ignore a size of the terminal of no columns, in which rich prints nothing, or of millions, which it fills."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if size.isdecimal() and (len(size) > 9 or not 0 < int(size) <= _WIDEST):
            del os.environ[name]


def _told(report: Callable[[Any], int], what: object) -> int:
    """Report a failure. With ``--json`` it goes to the standard output, which may be closed or full by now."""
    try:
        code = report(what)
        sys.stdout.flush()
    except BrokenPipeError:
        hang_up()
        return FAILED
    except OSError as error:
        hang_up()
        print(f"error: The output cannot be written: {os.strerror(error.errno or 0)}.", file=sys.stderr)
        return FAILED
    return code


def _warn_of_mistyped_settings() -> None:
    """Name mistyped variables on standard error, even if the command then fails because of them.

    A shell that asks for completions gets no warning: it would stand in the middle of the line that somebody types.
    """
    if not shell_asks() and any(name.startswith("NEXUS_") for name in os.environ):
        from nexus_tasks.mistyped_settings import mistyped_settings

        for one in mistyped_settings():
            print(f"warning: {show_hidden(str(one))}", file=sys.stderr)


class _Messages(FileIO):
    """Standard error. A hint that a full disk does not take must not fail a command that has done its work."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return len(data)


def _let_no_message_fail() -> None:
    raw = getattr(sys.stderr, "buffer", None)  # a FileIO under PYTHONUNBUFFERED, and no file in a test
    if isinstance(raw, BufferedWriter | FileIO) and raw.fileno() == _STDERR:
        raw = _Messages(_STDERR, "w", closefd=False)
        sys.stderr = TextIOWrapper(BufferedWriter(raw), encoding=sys.stderr.encoding, line_buffering=True)


class _Lost(FileIO):
    """Takes the place of a closed standard output, and knows whether anything was written."""

    written = False

    def write(self, data: Any, /) -> int:
        self.written = True
        return super().write(data)


def _open_closed_streams() -> _Lost | None:
    """Give a command that was started with a closed standard stream (`nexus status >&-`) an empty one.

    Returns:
        The file in place of the standard output, if that was closed.
    """
    # Python has None in place of a closed stream. A file that is opened later would get the stream's number.
    lost = None
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open until the end
    if sys.stdout is None:
        lost = _Lost(os.devnull, "w")
        sys.stdout = TextIOWrapper(BufferedWriter(lost), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    return lost


def _unwritable(error: OSError) -> NexusError:
    hang_up()  # else the flush at exit fails again
    return NexusError(
        f"The output cannot be written: {os.strerror(error.errno or 0)}.",
        remedy="Free some space, or write the output elsewhere.",
    )


if __name__ == "__main__":
    main()
