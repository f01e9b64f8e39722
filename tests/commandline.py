"""``nexus ARGUMENTS`` in this process, which saves the second that a new one takes to import everything."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from subprocess import CompletedProcess
from unittest.mock import patch

from typer.main import get_command

build_once = cache(get_command)  # Typer builds all commands anew at every call


def nexus(*arguments: str) -> CompletedProcess[str]:
    """Run a command as a user would, with this process's environment; ``test_cli.py`` runs some as processes too."""
    from nexus_tasks.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = None
    with (
        patch.object(sys, "argv", ["nexus", *arguments]),
        patch("typer.main.get_command", build_once),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int), "main() ends by an exit code"
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
