"""Makes the outboxes of job kinds whose wanted rows have the scope of their jobs in columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.storage.engine import Transaction

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Arguments)


def of_rows(
    arguments: type[Arguments],
    wanted: Callable[[Transaction, int, int], Sequence[Sequence[Any]]],
    *,
    mark: Callable[..., None] | None = None,
    drop: Callable[..., None] | None = None,
    newest: Callable[[Transaction, int], int] | None = None,
    want: Callable[[Transaction, Sequence[Any]], None] | None = None,
) -> Outbox:
    """Make an outbox of rows that have the scope of the wanted jobs in columns.

    Args:
        arguments: the model of the kind's arguments. Every field outside its scope must have a default.
        wanted: ``(tx, after, limit)`` returns up to ``limit`` rows behind the cursor ``after``. Each row is its cursor
            and the values of the scope, in the order of ``arguments.scope``.
        mark: ``(tx, namespace id, …, dead=…)``, as :attr:`Outbox.mark`. Instead of the arguments it takes the values of
            the scope without the namespace.
        drop: ``(tx, namespace id, …)``, as :attr:`Outbox.drop`, with the same values.
        newest: see :attr:`Outbox.newest`.
        want: see :attr:`Outbox.want`.
    """

    def page(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> list[tuple[int, Arguments | None]]:
        rows = wanted(tx, after, limit)
        return [(cursor, read(arguments, **dict(zip(arguments.scope, each, strict=True)))) for cursor, *each in rows]

    def mark_row(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
        assert mark is not None
        mark(tx, namespace_id, *(args[name] for name in arguments.scope[1:]), dead=dead)

    def drop_row(tx: Transaction, namespace_id: int, args: Any) -> None:
        assert drop is not None
        drop(tx, namespace_id, *(args[name] for name in arguments.scope[1:]))

    return Outbox(page=page, mark=mark_row if mark else None, drop=drop_row if drop else None, newest=newest, want=want)


def read(arguments: type[A], **values: Any) -> A | None:
    """The arguments of a wanted job. ``None`` when this release takes them for wrong.

    Then another release has written the row, or another version of Python, which knows more characters. The jobs of
    other rows are still asked for.
    """
    try:
        return arguments(**values)
    except ValidationError as error:
        log.warning("A wanted job cannot be asked for: %s", error)
        return None
