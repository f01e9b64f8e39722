"""``nexus completion``: print the script that completes commands and options in a shell."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

_VARIABLE = "_NEXUS_COMPLETE"  # the scripts set it when they ask for the words that fit


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script for the shell. Put `source <(nexus completion bash)` into ~/.bashrc.

    For zsh put `source <(nexus completion zsh)` into ~/.zshrc, after `compinit`. For fish put
    `nexus completion fish | source` into ~/.config/fish/config.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="nexus", complete_var=_VARIABLE, shell=shell))


def answer_shell() -> None:
    """Let Typer answer when a script of :func:`completion` asks."""
    if shell_asks():
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def shell_asks() -> bool:
    """Whether a script of :func:`completion` asks for the words that fit."""
    return _VARIABLE in os.environ
