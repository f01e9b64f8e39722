"""Writing and reading the audit log: erasures, exports, changes of tokens, and uses of tokens.

An entry says what happened, in which namespace, when, how many rows it concerned, and on whose behalf: an access
token, an operator (a user and host of the operating system), or a worker. It contains no content, no session key and no
secret.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Date, cast, func, select
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import AuditRow


@dataclass(frozen=True, kw_only=True)
class Actor:
    """On whose behalf something happens. ``kind`` is ``operator``, ``worker`` or ``token``."""

    kind: str
    token_id: str = ""
    token_name: str = ""


OPERATOR, WORKER = Actor(kind="operator"), Actor(kind="worker")
_actor: ContextVar[Actor] = ContextVar("nexus_actor", default=OPERATOR)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Attribute what this thread does inside the block to ``actor``."""
    before = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(before)


def record(
    tx: Transaction,
    action: str,
    namespace: str,
    counts: Mapping[str, int] | None = None,
    *,
    token: tuple[str, str] | None = None,
) -> None:
    """Append an entry. It is committed together with what it describes.

    Args:
        action: what happens, such as ``erase.session``.
        namespace: the namespace's name.
        counts: the number of concerned rows, by table.
        token: the id and the name of the token that is created, rotated or revoked.
    """
    values = _values(action, namespace, _actor.get())
    if token is not None:
        values["token_id"], values["token_name"] = token
    tx.execute(insert(AuditRow).values(**values, counts=dict(counts or {})))


def count_use(tx: Transaction, action: str, namespace: str | None, actor: Actor, *, reason: str, times: int) -> None:
    """Count ``times`` uses of a token in the entry of the day (UTC). Each day, action, token and reason has one."""
    values = _values(action, namespace, actor) | {"reason": reason, "count": times}
    row = insert(AuditRow).values(**values, day=cast(func.timezone("UTC", func.now()), Date))
    tx.execute(
        row.on_conflict_do_update(
            index_elements=["day", "action", "token_id", "reason"],
            set_={"count": AuditRow.count + row.excluded.count},
        )
    )


def _values(action: str, namespace: str | None, actor: Actor) -> dict[str, Any]:
    return {
        "action": action,
        "namespace": namespace,
        "actor": actor.kind,
        "token_id": actor.token_id,
        "token_name": actor.token_name,
        "user": _user(),
        "host": socket.gethostname(),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return ""


def entries(
    tx: Transaction,
    *,
    namespace: str | None,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    offset: int,
) -> Sequence[AuditRow]:
    """The newest entries that pass the filter, newest first. ``None`` means no restriction.

    ``action`` also selects the actions that it begins: ``erase`` selects ``erase.session``.
    """
    wanted = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit).offset(offset)
    if namespace is not None:
        wanted = wanted.where(AuditRow.namespace == namespace)
    if action is not None:
        wanted = wanted.where((AuditRow.action == action) | AuditRow.action.startswith(f"{action}.", autoescape=True))
    if since is not None:
        wanted = wanted.where(AuditRow.at >= since)
    if until is not None:
        wanted = wanted.where(AuditRow.at < until)
    return tx.scalars(wanted).all()
