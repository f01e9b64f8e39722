"""The outboxes of kinds whose wanted rows hold the scope of their jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.storage.engine import Transaction

log = logging.getLogger(__name__)


def of_rows(
    arguments: type[Arguments],
    wanted: Callable[[Transaction, int, int], Sequence[Sequence[Any]]],
    *,
    mark: Callable[..., None] | None = None,
    newest: Callable[[Transaction, int], int] | None = None,
    want: Callable[[Transaction, Sequence[Any]], None] | None = None,
) -> Outbox:
    """An outbox of rows that hold the scope of the jobs that they want.

    Args:
        arguments: the model of the kind's arguments. Every other field than those of its scope has a default.
        wanted: ``(tx, after, limit)`` gives the page behind the cursor ``after``: rows of a cursor and the values of
            the scope, in the order of ``arguments.scope``.
        mark: ``(tx, namespace id, …, dead=…)`` with the values of the scope after the namespace.
        newest: as :attr:`Outbox.newest`; and ``want``.
    """

    def page(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> list[tuple[int, Arguments | None]]:
        return [(cursor, _read(arguments, values)) for cursor, *values in wanted(tx, after, limit)]

    def mark_row(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
        assert mark is not None
        mark(tx, namespace_id, *(args[name] for name in arguments.scope[1:]), dead=dead)

    return Outbox(page=page, mark=mark_row if mark else None, newest=newest, want=want)


def _read(arguments: type[Arguments], values: Sequence[Any]) -> Arguments | None:
    try:
        return arguments(**dict(zip(arguments.scope, values, strict=True)))
    except ValidationError as error:  # another release wrote the row; the other rows must not wait
        log.warning("A wanted job cannot be asked for: %s", error)
        return None
