"""``nexus hook``: remember the sessions of a coding agent."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from nexus_tasks.cli.connect import start_logging
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit, hint, warn

app = typer.Typer(help="Remember the sessions of a coding agent.", no_args_is_help=True)

Agent = Annotated[
    Literal["claude-code", "codex", "cursor"],
    typer.Argument(metavar="AGENT", help="The agent: claude-code, codex or cursor."),
]
Project = Annotated[
    bool, typer.Option("--project", help="Only the project in this folder: use its own file, not the user's.")
]
OwnNamespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NS", help="The namespace to store in; default: one per project."),
]


@app.command("claude-code")
def claude_code(namespace: OwnNamespace = None) -> None:
    """Store one event of Claude Code from standard input. Claude Code calls this command, people do not."""
    _keep("claude-code", namespace)


@app.command("codex")
def codex(namespace: OwnNamespace = None) -> None:
    """Store one event of Codex from standard input. Codex calls this command, people do not."""
    _keep("codex", namespace)


@app.command("cursor")
def cursor(namespace: OwnNamespace = None) -> None:
    """Store one event of Cursor from standard input. Cursor calls this command, people do not."""
    _keep("cursor", namespace)


def _keep(agent: str, namespace: str | None) -> None:
    from nexus_tasks.integrations.coding_agents.hook import main

    raise typer.Exit(main(["--namespace", namespace] if namespace else [], agent=agent))


@app.command()
def install(agent: Agent, project: Project = False, namespace: OwnNamespace = None, json: Json = False) -> None:
    """Add the hook to the agent's settings file; other settings stay. Installing it twice changes nothing."""
    start_logging()
    from nexus_tasks.integrations.coding_agents.install import TRUST, settings_file
    from nexus_tasks.integrations.coding_agents.install import install as add_hook
    from nexus_tasks.types import check_namespace

    change = add_hook(agent, settings_file(agent, project=project), check_namespace(namespace) if namespace else None)
    if json:
        emit({"agent": agent, "settings": str(change.path), "changed": change.changed, "command": change.command})
        return
    print(f"{'Installed in' if change.changed else 'It is installed already in'} {change.path}.")
    hint(f"Take it out again with `nexus hook uninstall {agent}{' --project' if project else ''}`.")
    if agent == "codex":
        hint(TRUST)
    _offer_the_stack()


@app.command()
def uninstall(agent: Agent, project: Project = False, json: Json = False) -> None:
    """Remove the hook from the agent's settings file. Stored memories stay."""
    from nexus_tasks.integrations.coding_agents.install import settings_file
    from nexus_tasks.integrations.coding_agents.install import uninstall as remove_hook

    change = remove_hook(agent, settings_file(agent, project=project))
    if json:
        emit({"agent": agent, "settings": str(change.path), "changed": change.changed})
    else:
        print(f"Taken out of {change.path}." if change.changed else f"It was not installed in {change.path}.")


def _offer_the_stack() -> None:
    """Ask whether to start the embedded servers and a worker. Ask only when they do not run.

    Without a terminal, or after the answer "no", print a warning. Facts are derived only while a worker runs.
    """
    from nexus_tasks.cli import stack
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    if not settings.embedded or stack.supervisor_pid(settings.home) is not None:
        return
    if (
        sys.stdin.isatty()
        and sys.stdout.isatty()
        and typer.confirm("Start Postgres, Redis and a worker now?", default=True)
    ):
        from nexus_tasks.cli.stack.commands import up

        up(in_background=True)
    else:
        warn("no worker runs, so the kept messages are not stored yet. Start one with `nexus up --detach`.")
