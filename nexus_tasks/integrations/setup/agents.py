"""The pieces of each coding agent, and of the environment file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from nexus_tasks.integrations.coding_agents import install
from nexus_tasks.integrations.setup import environment_file
from nexus_tasks.integrations.setup.pieces import Piece
from nexus_tasks.transcripts.events import AGENTS, CLAUDE_CODE, CODEX, CURSOR


def found() -> list[str]:
    """The agents that have a folder in the user's home."""
    return [agent for agent, folder in zip(AGENTS, (_claude(), _codex(), _cursor()), strict=True) if folder.is_dir()]


def pieces(agents: Iterable[str], namespace: str | None, variables: Mapping[str, str]) -> list[Piece]:
    """What to write.

    Args:
        agents: out of ``AGENTS``.
        namespace: one namespace for everything. With ``None`` the hook has one per project, and an MCP call names one.
        variables: the environment file's.
    """
    made = [
        Piece(
            kind="file",
            what="environment file",
            path=environment_file.path(),
            value=environment_file.content(variables),
            mode=0o600,
        )
    ]
    for agent in agents:
        made += {CLAUDE_CODE: _claude_code, CODEX: _codex_pieces, CURSOR: _cursor_pieces}[agent](namespace)
    return made


def _claude_code(namespace: str | None) -> list[Piece]:
    # Claude Code keeps the user's MCP servers beside its folder, or inside a folder that is named by the variable.
    servers = (_claude() if os.environ.get("CLAUDE_CONFIG_DIR") else Path.home()) / ".claude.json"
    skill = resources.files(__package__).joinpath("skill", "SKILL.md").read_text(encoding="utf-8")
    return [
        _hook(CLAUDE_CODE, "hook of Claude Code", namespace),
        Piece(
            kind="json",
            what="MCP entry of Claude Code",
            path=servers,
            key=("mcpServers", "nexus"),
            value={"type": "stdio", **_server(namespace)},
            mode=0o600,
        ),
        Piece(
            kind="file",
            what="skill of Claude Code",
            path=_claude() / "skills" / "nexus-memory" / "SKILL.md",
            value=skill,
        ),
    ]


def _codex_pieces(namespace: str | None) -> list[Piece]:
    path, key = _codex() / "config.toml", ("mcp_servers", "nexus")
    return [
        _hook(CODEX, "hook of Codex", namespace),
        Piece(kind="toml", what="MCP entry of Codex", path=path, key=key, value=_server(namespace), mode=0o600),
    ]


def _cursor_pieces(namespace: str | None) -> list[Piece]:
    path, key = _cursor() / "mcp.json", ("mcpServers", "nexus")
    return [
        _hook(CURSOR, "hook of Cursor", namespace),
        Piece(kind="json", what="MCP entry of Cursor", path=path, key=key, value=_server(namespace), mode=0o600),
    ]


def _hook(agent: str, what: str, namespace: str | None) -> Piece:
    hooks = install.wanted(agent, install.command(agent, namespace, home=os.environ.get("NEXUS_HOME")))
    return Piece(kind="hooks", what=what, path=install.settings_file(agent), key=(agent,), value=hooks)


def _server(namespace: str | None) -> dict[str, Any]:
    program, *arguments = install.program()
    home = os.environ.get("NEXUS_HOME")
    return {
        "command": program,
        "args": [*arguments, "mcp", *(["--namespace", namespace] if namespace else [])],
        **({"env": {"NEXUS_HOME": os.path.abspath(os.path.expanduser(home))}} if home else {}),
    }


def _claude() -> Path:
    return install.settings_file(CLAUDE_CODE).parent


def _codex() -> Path:
    return install.settings_file(CODEX).parent


def _cursor() -> Path:
    return install.settings_file(CURSOR).parent
