"""``nexus init``: connect coding agents with their memory, and take this back."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nexus_tasks.cli.connect import start_logging
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit, hint, say, warn
from nexus_tasks.errors import ConfigurationError

if TYPE_CHECKING:
    from nexus_tasks.integrations.setup.pieces import Piece
    from nexus_tasks.integrations.setup.setup import Step

Model = Literal["offline", "anthropic"]
_KEY = "ANTHROPIC_API_KEY"
_PER_PROJECT = "-"
_WORDS = {
    "added": "added     ",
    "changed": "changed   ",
    "unchanged": "unchanged ",
    "kept": "kept      ",
    "removed": "taken out ",
    "gone": "was gone  ",
    "left": "left      ",
}
_PLANNED = {"added": "to add    ", "changed": "to change ", "removed": "to remove "}  # of --dry-run


def init(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NS", help="One memory for all projects; - for one per project."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="A",
            help="claude-code, codex or cursor; repeat for more.",
            show_default="those that are found",
        ),
    ] = None,
    model: Annotated[
        Model | None,
        typer.Option("--model", help=f"The model that derives facts; anthropic: with the key in {_KEY}."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take the defaults.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; show the changes.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what this command wrote.")] = False,
    json: Json = False,
) -> None:
    """Connect coding agents with their memory: hook, MCP entry, skill and environment file.

    Asks three questions. Entries of others stay, and a second run changes nothing.
    """
    start_logging()
    from nexus_tasks.integrations.setup import setup

    if undo:
        steps = setup.plan_undo()
        if not dry_run:
            setup.undo(steps)
    else:
        steps = setup.plan(_pieces(namespace, agent, model, ask=not (yes or (json and dry_run)), json=json))
        if not dry_run:
            setup.write(steps)
    if json:
        pieces = [{"what": step.piece.what, "path": str(step.piece.path), "state": step.state} for step in steps]
        emit({"pieces": pieces, "written": not dry_run, "undo": undo})
        return
    for step in steps:
        words = _WORDS | _PLANNED if dry_run else _WORDS
        say(f"{words[step.state]} {step.piece.what}: {_short(step.piece.path)}")
        if dry_run:
            _print_changes(step)
    _explain(steps, undo=undo, dry_run=dry_run)


def _pieces(
    namespace: str | None, agents: Sequence[str] | None, model: Model | None, *, ask: bool, json: bool
) -> list[Piece]:
    from nexus_tasks.integrations.setup.agents import found, pieces
    from nexus_tasks.types import check_namespace

    if ask and (json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        why = "--json leaves no room for questions." if json else "There is no terminal to ask on."
        raise ConfigurationError(why, remedy="Add --yes, and the flags of `--help`.")
    here = _agents(agents or found() or ["claude-code"])
    key = os.environ.get(_KEY, "").strip()
    if namespace is None:
        namespace = "me"
        if ask:
            say("1/3  Whose memory? One name for all projects, or - for one memory per project.")
            namespace = typer.prompt("     Namespace", default="me")
    name = None if namespace == _PER_PROJECT else check_namespace(namespace)
    if ask and not agents:
        say("2/3  Which agents? claude-code, codex, cursor; with commas between them.")
        here = _agents(typer.prompt("     Agents", default=", ".join(here)).split(","))
    model = model or ("anthropic" if key else "offline")
    if ask:
        say("3/3  Which model derives facts? offline costs nothing; anthropic needs a key.")
        named = typer.prompt("     Model", default=model).strip()
        if named not in ("offline", "anthropic"):
            raise ConfigurationError(
                f"{named!r} is neither offline nor anthropic.",
                remedy="Other providers are set by variables: see docs/models.md.",
            )
        model = named
    if model == "anthropic" and not key:
        key = typer.prompt(f"     {_KEY}", hide_input=True).strip() if ask else ""
        if not key or any(character.isspace() for character in key):
            raise ConfigurationError(f"{_KEY} is not set.", remedy="Set it, or choose the model offline.")
    return pieces(here, name, {"NEXUS_MODEL": model, **({_KEY: key} if model == "anthropic" else {})})


def _agents(names: Sequence[str]) -> list[str]:
    from nexus_tasks.transcripts.events import AGENTS

    named = [one.strip() for one in names if one.strip()]
    for one in named:
        if one not in AGENTS:
            raise ConfigurationError(f"{one!r} is no known agent.", remedy=f"Name some of: {', '.join(AGENTS)}.")
    return list(dict.fromkeys(named))


def _print_changes(step: Step) -> None:
    """Print the lines that change, without the secrets in them."""
    from nexus_tasks.transcripts.scrubbing import scrub

    lines = difflib.unified_diff(step.before.splitlines(), step.after.splitlines(), lineterm="", n=1)
    for line in list(lines)[2:]:
        secret = line.startswith(("+", "-")) and line[1:].startswith(f"{_KEY}=")
        say(f"    {line[0]}{_KEY}=[not shown]" if secret else f"    {scrub(line)}")


def _explain(steps: Sequence[Step], *, undo: bool, dry_run: bool) -> None:
    from nexus_tasks.integrations.coding_agents.install import TRUST

    for step in steps:
        if step.state == "kept":
            warn(f"{_short(step.piece.path)} has another {step.piece.what}. Take it out, and run `nexus init` again.")
        if step.state == "left":
            warn(f"the {step.piece.what} in {_short(step.piece.path)} was changed since. Take it out by hand.")
    if dry_run:
        hint("Nothing was written.")
    elif undo:
        hint("Stored memories stay." if steps else "There is nothing to take back.")
    else:
        if any(step.piece.key == ("codex",) and step.state in ("added", "changed") for step in steps):
            hint(TRUST)
        hint("Start Postgres, Redis and a worker: `nexus up --detach`. Take all back: `nexus init --undo`.")


def _short(path: Path) -> str:
    """The path with ``~`` in the place of the user's home."""
    home = f"{Path.home()}{os.sep}"
    return f"~{os.sep}{str(path).removeprefix(home)}" if str(path).startswith(home) else str(path)
