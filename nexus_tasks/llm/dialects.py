"""Find out once per address and model which features of a provider's API a server has, and remember it.

A model gives its answer in one of three ways. ``schema``: the server enforces the JSON schema. ``tool``: the model
calls a tool whose input is the answer. ``json``: the prompt has the schema, and the reply is searched for the answer.
The first call of a model asks by ``schema``. There are two signs that a server lacks a feature:

1. It rejects the request, and its text names the feature. Then the call is made again without the feature, at no cost.
2. The first answer does not have the shape of the schema, so the server has ignored the feature. This answer is paid
   and counts as invalid. The next call, such as the job's retry, goes the next way.

What was found is kept in ``model_dialects.json`` in the home folder for seven days, for all processes of the machine.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter

from nexus_tasks.files import make_folder, write_atomic
from nexus_tasks.settings import Settings, mask_url

log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")
Output = Literal["schema", "tool", "json"]
NEXT: dict[Output, Output] = {"schema": "tool", "tool": "json"}
KEPT = 7 * 86_400.0  # seconds; chosen by hand: after this time a server may have been updated
FILE = "model_dialects.json"

_SCHEMA = re.compile(r"response[_ ]?format|output_(?:config|format)|schema|structured|grammar|guided", re.IGNORECASE)
_TOOL = re.compile(r"\btools?\b|tool_choice|\bfunctions?\b", re.IGNORECASE)
_LIMIT = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(
    r"unsupported|not supported|unrecogni[sz]ed|unknown|unexpected|not permitted|extra", re.IGNORECASE
)
# Statuses of a server that does not take the request. 404 and 405 come from routers, 500 and 501 from small servers.
_REJECTED = frozenset((400, 404, 405, 415, 422, 500, 501))
_LONGEST_READ = 4_000  # the most characters of a server's text that are searched for a feature's name


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The features that a request may use.

    Attributes:
        output: the way in which the model gives its answer.
        caching: whether the request has cache markers (Anthropic's API only).
        limit: the name of the field with the most tokens of the answer (OpenAI's API only).
    """

    output: Output = "schema"
    caching: bool = True
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def without(self, said: str) -> Iterator[Dialect]:
        """The dialects that avoid what a server's text ``said`` complains about."""
        if self.caching and "cache_control" in said:
            yield replace(self, caching=False)
        if _LIMIT.search(said) and _UNKNOWN_FIELD.search(said):
            yield replace(
                self, limit="max_tokens" if self.limit == "max_completion_tokens" else "max_completion_tokens"
            )
        named = {"schema": _SCHEMA, "tool": _TOOL}.get(self.output)
        if named and named.search(said):
            yield replace(self, output=NEXT[self.output])


class StatusError(Protocol):
    """What the errors of both SDKs have."""

    status_code: int
    body: object
    message: str


class _Found(BaseModel):
    output: Output
    caching: bool
    limit: Literal["max_tokens", "max_completion_tokens"]
    at: float  # seconds since the epoch


_FILE = TypeAdapter(dict[str, _Found])


class Dialects:
    """The dialects of one provider's servers and models. Threads may share the object.

    Args:
        forced: the way to answer that a setting names, or ``None``.
    """

    def __init__(self, settings: Settings, forced: Output | None) -> None:
        self._path = settings.home / FILE
        self._forced = forced
        self._known: dict[str, Dialect] = {}
        self._proven: set[str] = set()

    def of(self, server: str, model: str, usual: Dialect) -> Dialect:
        """The dialect of ``model`` at the address ``server``: ``usual``, unless something else was found."""
        key = _key(server, model)
        if key not in self._known:
            found = _read(self._path).get(key)
            fresh = found is not None and 0 <= time.time() - found.at < KEPT
            self._known[key] = Dialect(**found.model_dump(exclude={"at"})) if found and fresh else usual
        known = self._known[key]
        return replace(known, output=self._forced) if self._forced else known

    def negotiate(
        self,
        server: str,
        model: str,
        usual: Dialect,
        send: Callable[[Dialect], ReplyT],
        rejection: type[Exception],
    ) -> tuple[ReplyT, Dialect]:
        """Call ``send`` with the model's dialect, and with others while the server rejects a feature.

        Args:
            rejection: the error class of the SDK for a status (:class:`StatusError`).

        Returns:
            The reply, and the dialect that the server took.
        """
        first = dialect = self.of(server, model, usual)
        tried = {dialect}
        while True:
            try:
                reply = send(dialect)
            except rejection as error:
                other = next((each for each in self._others(dialect, error) if each not in tried), None)
                if other is None:
                    raise
                dialect = other
                tried.add(dialect)
            else:
                if dialect != first:
                    self._learn(server, model, dialect, "rejects other requests")
                return reply, dialect

    def _others(self, dialect: Dialect, error: Exception) -> Iterator[Dialect]:
        status, body = getattr(error, "status_code", 0), getattr(error, "body", None)
        if status in _REJECTED:
            said = (body if isinstance(body, str) else json.dumps(body, default=str))[:_LONGEST_READ]
            yield from (each for each in dialect.without(said) if not self._forced or each.output == self._forced)

    def judge(self, server: str, model: str, dialect: Dialect, *, misshapen: bool) -> None:
        """Take note of the shape of an answer.

        Once an answer had the shape of the schema, a misshapen answer says nothing about the server any more.
        """
        key = _key(server, model)
        if not misshapen:
            self._proven.add(key)
        elif key not in self._proven and not self._forced and dialect.output in NEXT:
            self._learn(server, model, replace(dialect, output=NEXT[dialect.output]), "ignores the answer's schema")

    def _learn(self, server: str, model: str, dialect: Dialect, why: str) -> None:
        key = _key(server, model)
        self._known[key] = dialect
        log.warning(
            "The server at %s %s: the model %s is asked by %s from now on.", mask_url(server), why, model, dialect
        )
        if not self._forced:
            _write(self._path, key, dialect)


def _key(server: str, model: str) -> str:
    return f"{mask_url(server)} {model}"


def _read(path: Path) -> dict[str, _Found]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except (OSError, ValueError):  # it is missing or damaged; everything in it can be found out again
        return {}


def _write(path: Path, key: str, dialect: Dialect) -> None:
    kept = {name: found for name, found in _read(path).items() if time.time() - found.at < KEPT}
    kept[key] = _Found(output=dialect.output, caching=dialect.caching, limit=dialect.limit, at=time.time())
    try:
        make_folder(os.fspath(path.parent))
        write_atomic(os.fspath(path), _FILE.dump_json(kept, indent=2))
    except OSError as error:
        log.warning("What was found out about a model cannot be remembered: %s", error)
