"""A piece is one thing that ``nexus init`` puts into one file: a whole file, a JSON entry, a TOML table, or the hook.

Three functions know the kinds: ``find`` reads the present value of a piece from the file's text, ``put`` returns the
text with a value, and ``drop`` returns the text without the value. All else in the text stays.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.coding_agents import install
from nexus_tasks.transcripts.events import CLAUDE_CODE

Kind = Literal["file", "json", "toml", "hooks"]  # the hooks of an agent: the key is the agent's name


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One thing to write."""

    kind: Kind
    what: str  # for people, for example "hook"
    path: Path
    key: tuple[str, ...] = ()  # the keys that lead to a JSON entry or a TOML table; of hooks, the agent
    value: Any = None  # has JSON types
    mode: int = 0o666  # permissions of a new file; the umask is subtracted


def find(piece: Piece, text: str) -> Any:
    """The present value, or ``None``.

    Raises:
        ConfigurationError: the text does not have the file's format.
    """
    if piece.kind == "file":
        return text or None
    if piece.kind == "hooks":
        return install.ours(install.hooks_of(piece.path, _json(piece, text))) or None
    at: Any = _toml(piece, text) if piece.kind == "toml" else _json(piece, text)
    for key in piece.key:
        if not isinstance(at, dict):
            raise _unreadable(piece, f"{piece.key[0]} has another type")
        at = at.get(key, {} if key != piece.key[-1] else None)
    return at


def put(piece: Piece, text: str, value: Any) -> str:
    """The text with ``value`` in the place of the present value.

    Raises:
        ConfigurationError: the text does not have the file's format, or the entry cannot be added to it.
    """
    if piece.kind == "file":
        return str(value)
    if piece.kind == "toml":
        return _put_toml(piece, text, value)
    document = _json(piece, text)
    if piece.kind == "hooks":
        return install.dumped(text, install.with_ours(_agent(piece), piece.path, document, value))
    at = document
    for key in piece.key[:-1]:
        at = at.setdefault(key, {})
    at[piece.key[-1]] = value
    return install.dumped(text, document)


def drop(piece: Piece, text: str) -> str | None:
    """The text without the present value, empty when nothing is left. ``None``: the value cannot be cut out."""
    if piece.kind == "file":
        return ""
    if piece.kind == "toml":
        return _drop_toml(piece, text)
    document = _json(piece, text)
    if piece.kind == "hooks":
        document = install.without_ours(_agent(piece), piece.path, document)
    else:
        parents = [document]
        for key in piece.key[:-1]:
            parents.append(parents[-1][key])
        del parents[-1][piece.key[-1]]
        for parent, key in reversed(list(zip(parents, piece.key[:-1], strict=False))):
            if not parent[key]:
                del parent[key]
    return install.dumped(text, document) if document else ""


def _agent(piece: Piece) -> str:
    return piece.key[0] if piece.key else CLAUDE_CODE  # a record of the release before names no agent


def _json(piece: Piece, text: str) -> dict[str, Any]:
    try:
        return install.parsed(text)
    except ValueError as error:
        raise _unreadable(piece, str(error)) from None


def _toml(piece: Piece, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable(piece, f"not TOML: {error}") from None


def _put_toml(piece: Piece, text: str, value: Any) -> str:
    rest = text if find(piece, text) is None else _drop_toml(piece, text)
    if rest is not None:
        new = rest + ("" if not rest or rest.endswith("\n") else "\n") + ("\n" if rest else "") + _block(piece, value)
        try:
            if find(piece, new) == value:
                return new
        except ConfigurationError:  # for example, `mcp_servers` is an inline table, to which no table can be added
            pass
    raise ConfigurationError(
        f"{piece.path} cannot take the table [{'.'.join(piece.key)}].",
        remedy=f"Add it by hand:\n{_block(piece, value)}",
    )


def _drop_toml(piece: Piece, text: str) -> str | None:
    block = _block(piece, find(piece, text))
    before, found, after = text.partition(block)
    if not found:
        return None
    kept = before.removesuffix("\n") if before.endswith("\n\n") else before
    return kept + after


def _block(piece: Piece, value: dict[str, Any]) -> str:
    """A TOML table as text. A JSON text or list of texts is valid TOML."""
    lines = [f"[{'.'.join(piece.key)}]"]
    for name, one in value.items():
        if isinstance(one, dict):
            inside = ", ".join(f"{key} = {json.dumps(text)}" for key, text in one.items())
            lines.append(f"{name} = {{ {inside} }}")
        else:
            lines.append(f"{name} = {json.dumps(one)}")
    return "\n".join(lines) + "\n"


def _unreadable(piece: Piece, why: str) -> ConfigurationError:
    return ConfigurationError(f"{piece.path} cannot be read: {why}.", remedy="Correct the file. No file was changed.")
