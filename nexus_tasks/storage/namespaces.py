"""Storing and reading namespaces (tenants) and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, exists, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, aliased

from nexus_tasks.errors import NamespaceMoved, NamespaceMoving, NotFound
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.engine import LEAVING, PLACING, Transaction
from nexus_tasks.storage.models import Namespace
from nexus_tasks.transcripts.scrubbing import refuse_tokens


@dataclass(frozen=True, kw_only=True)
class NamespaceSettings:
    """A namespace and its settings.

    ``None`` in ``budget_usd_per_day`` or ``concurrency`` means the value of the deployment's setting. ``scrub`` says
    whether secrets in messages are replaced before the messages are stored.
    """

    id: int
    name: str
    observers: tuple[str, ...]
    budget_usd_per_day: float | None
    concurrency: int | None
    observe: bool
    scrub: bool = True
    time_zone: str = "UTC"  # of speakers whose messages name no time zone
    language: str | None = None  # of all its texts; ``None``: guessed for each text
    instructions: str = ""  # for models: what to keep, and what to leave out
    paused_at: datetime | None = None  # the beginning of a pause, during which no job of the namespace begins
    paused_reason: str = ""
    residence: str = "here"  # whether the namespace lives in this database, or moves between cells (see the table)
    created_at: datetime | None = None  # tells it from a namespace of the same name in another database


def _settings(row: Any) -> NamespaceSettings:
    budget = row.budget_usd_per_day
    return NamespaceSettings(
        id=row.id,
        name=row.name,
        observers=tuple(row.observers),
        budget_usd_per_day=None if budget is None else float(budget),
        concurrency=row.concurrency,
        observe=row.observe,
        scrub=row.scrub,
        time_zone=row.time_zone,
        language=row.language,
        instructions=row.instructions,
        paused_at=row.paused_at,
        paused_reason=row.paused_reason,
        residence=row.residence,
        created_at=row.created_at,
    )


_FIND = select(Namespace.__table__).where(Namespace.name == bindparam("name"))
USABLE = ("here", "draining", "leaving")  # the residences of namespaces that can be read here


def find(tx: Transaction, name: str) -> NamespaceSettings | None:
    """The namespace of this name, or ``None``. After this, a transaction can only read a namespace that is leaving.

    Raises:
        NamespaceMoved: another cell has the namespace.
        NamespaceMoving: the namespace is arriving from another cell, and cannot be used yet.
    """
    row = tx.execute(_FIND, {"name": name}).first()
    if row is None:
        return None
    if row.residence == "leaving":
        tx.execute(text("SET TRANSACTION READ ONLY"))
        tx.info[LEAVING] = name
    elif row.residence == "left":
        raise NamespaceMoved(f"The namespace {name} has moved to the cell {row.other_cell}.")
    elif row.residence == "arriving":
        raise NamespaceMoving(f"The namespace {name} is arriving from the cell {row.other_cell}.")
    return _settings(row)


def read(tx: Transaction, name: str) -> NamespaceSettings | None:
    """The namespace of this name wherever it lives, or ``None``. Only the package itself uses such a namespace."""
    row = tx.execute(select(Namespace.__table__).where(Namespace.name == name)).one_or_none()
    return _settings(row) if row else None


def refuse_leaving(tx: Transaction, namespace_id: int) -> None:
    """Refuse to change a row of a namespace that moves to another cell. For rows that were found without a name.

    Raises:
        NamespaceMoving: the namespace is moving to another cell.
    """
    query = select(Namespace.name).where(Namespace.id == namespace_id, Namespace.residence == "leaving")
    if name := tx.scalar(query):
        raise NamespaceMoving(f"The namespace {name} is moving to another cell.")


def departed(tx: Transaction) -> frozenset[str]:
    """The names of the namespaces whose jobs another cell runs."""
    # Constants, and not parameters: Postgres must see that the index of namespaces that are not here has all of them.
    return frozenset(tx.scalars(text("SELECT name FROM namespaces WHERE residence IN ('arriving', 'left')")))


def lives_here(namespace_id: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """The SQL condition for rows that are of no copy of a namespace: another cell has the namespace, with these rows.

    Args:
        namespace_id: the column with the id of the row's namespace. A row without a namespace meets the condition.
    """
    owner = aliased(Namespace)
    return ~exists().where(owner.id == namespace_id, owner.residence.not_in(USABLE))


def get(tx: Transaction, name: str) -> NamespaceSettings:
    """The namespace of this name.

    Raises:
        NotFound: there is no namespace of this name.
    """
    found = find(tx, name)
    if found is None:
        raise NotFound(
            f"There is no namespace {name!r}.",
            remedy="The first `nexus ingest` creates it; see `nexus namespaces list`.",
        )
    return found


def ensure(tx: Transaction, name: str) -> NamespaceSettings:
    """The namespace of this name. A missing namespace is created with default settings.

    Raises:
        InvalidInput: it is missing, and its name has a secret.
        NamespaceMoved: it lives in another cell.
        NamespaceMoving: the table of namespaces, which is in another cell, cannot be read.
    """
    found = find(tx, name)
    if found:
        return found
    refuse_tokens("namespace", [name])
    if placing := tx.info.get(PLACING):
        placing(name)
    tx.execute(insert(Namespace).values(name=name).on_conflict_do_nothing())
    tenancy.include_new(tx)
    return get(tx, name)


def every(tx: Transaction) -> Sequence[NamespaceSettings]:
    """All namespaces that live here, sorted by name."""
    query = select(Namespace.__table__).where(Namespace.residence.in_(USABLE)).order_by(Namespace.name)
    return [_settings(row) for row in tx.execute(query)]


def listed(tx: Transaction, names: Sequence[str] | None, *, limit: int, offset: int) -> Sequence[NamespaceSettings]:
    """A page of the namespaces, or of those called ``names``, sorted by name."""
    query = select(Namespace.__table__).where(Namespace.residence.in_(USABLE)).order_by(Namespace.name)
    query = query.limit(limit).offset(offset)
    if names is not None:
        query = query.where(Namespace.name.in_(names))
    return [_settings(row) for row in tx.execute(query)]


def pause(tx: Transaction, name: str, reason: str) -> NamespaceSettings:
    """Pause a namespace: no job of it begins until :func:`resume`.

    If the namespace is paused already, the pause gets the new reason and keeps the time of its beginning.

    Raises:
        NotFound: there is no namespace of this name.
    """
    since = func.coalesce(Namespace.paused_at, func.now())
    tx.execute(update(Namespace).where(Namespace.name == name).values(paused_at=since, paused_reason=reason))
    tx.expire_all()
    return get(tx, name)


def resume(tx: Transaction, name: str) -> bool:
    """End the pause of a namespace. Returns whether it was paused.

    Raises:
        NotFound: there is no namespace of this name.
    """
    was = get(tx, name).paused_at is not None
    tx.execute(update(Namespace).where(Namespace.name == name).values(paused_at=None, paused_reason=""))
    tx.expire_all()
    return was


def change(
    tx: Transaction,
    name: str,
    *,
    observers: Sequence[str] | None = None,
    budget_usd_per_day: float | None = None,
    concurrency: int | None = None,
    observe: bool | None = None,
    scrub: bool | None = None,
    time_zone: str | None = None,
    language: str | None = None,
    instructions: str | None = None,
    unset: Sequence[str] = (),
) -> NamespaceSettings:
    """Change the given settings. A setting that is ``None`` stays as it is.

    Args:
        budget_usd_per_day: the most USD that the namespace may spend on model calls per day.
        concurrency: the most runs that the namespace may have at a time.
        observe: whether observations replace the old messages of the namespace's sessions.
        scrub: whether secrets in messages are replaced before the messages are stored.
        time_zone: the time zone of speakers whose messages name none.
        language: the language of all texts, one of :func:`languages`. Upkeep then makes the words of the memories anew.
        instructions: what models should keep, and what they should leave out.
        unset: names of settings that return to the values of the deployment's settings.

    Raises:
        NotFound: there is no namespace of this name.
    """
    values: dict[str, Any] = dict.fromkeys(unset)
    if observers is not None:
        values["observers"] = list(observers)
    if budget_usd_per_day is not None:
        values["budget_usd_per_day"] = Decimal(str(budget_usd_per_day))
    if concurrency is not None:
        values["concurrency"] = concurrency
    if observe is not None:
        values["observe"] = observe
    if scrub is not None:
        values["scrub"] = scrub
    if time_zone is not None:
        values["time_zone"] = time_zone
    if language is not None:
        values["language"] = language
    if "language" in values:
        changed = Namespace.language.is_distinct_from(values["language"])
        values["reworded_through"] = case((changed, 0), else_=Namespace.reworded_through)
    if instructions is not None:
        values["instructions"] = instructions
    if values:
        tx.execute(update(Namespace).where(Namespace.name == name).values(**values))
    tx.expire_all()
    return get(tx, name)


def languages(tx: Transaction) -> list[str]:
    """The languages whose forms of words Postgres knows, sorted. In ``simple`` each form of a word is another word."""
    query = "SELECT cfgname FROM pg_ts_config WHERE cfgnamespace = 'pg_catalog'::regnamespace ORDER BY cfgname"
    return list(tx.scalars(text(query)))


def write_and_take_back(tx: Transaction) -> None:
    """Check that Postgres can write: insert a namespace with 64 kB of random text, and roll the insert back at once.

    The free space inside a table is usually smaller than 64 kB. Therefore Postgres needs new disk space for this row,
    and refuses the row when the disk is full. A usual job writes less text.

    Raises:
        StorageUnavailable: Postgres takes no writes.
    """
    with tx.begin_nested() as attempt:
        tx.execute(
            text(
                "INSERT INTO namespaces (name, observers)"
                " SELECT gen_random_uuid(), array_agg(md5(random()::text)) FROM generate_series(1, 2000)"
            )
        )
        attempt.rollback()
