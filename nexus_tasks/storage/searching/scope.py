"""A filter as SQL conditions on ``memories AS m``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which memories of a namespace a reader means; ``as_of`` reads the past.

    ``since`` and ``until`` bound ``occurred_at``, the first inclusive, the second exclusive.
    """

    namespace_id: int
    observer: str | None = None
    subject: str | None = None
    session_key: str | None = None
    levels: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    as_of: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A filter's conditions. ``held``: what is known at the time; ``narrowed``: what the reader wants of that.

    ``narrow`` tells that the narrowing may leave few memories and that an index leads to them: those are counted
    before the search, and few are searched one by one.
    """

    held: str
    narrowed: str
    narrow: bool
    values: dict[str, Any]

    @property
    def both(self) -> str:
        """Held and wanted."""
        return f"{self.held} AND {self.narrowed}"


def scope(wanted: Filter) -> Scope:
    """The conditions of a filter. The texts depend on which fields are set, never on their values."""
    held = ["m.namespace_id = :namespace_id"]
    values: dict[str, Any] = {"namespace_id": wanted.namespace_id}
    if wanted.as_of is None:
        held.append("m.valid_to IS NULL")
        if wanted.levels is None:
            held.append("m.archived_at IS NULL")
    else:
        held.append("coalesce(m.valid_from, m.occurred_at) <= :as_of AND (m.valid_to IS NULL OR m.valid_to > :as_of)")
        values["as_of"] = wanted.as_of
    narrowed = [_among("level", wanted.levels, values), _among("category", wanted.categories, values)]
    # A message belongs to no perspective; it is about whoever wrote it, and every observer may have heard it.
    if wanted.observer is not None:
        narrowed.append(
            "(m.perspective_id IS NULL OR m.perspective_id IN (SELECT id FROM perspectives"
            " WHERE namespace_id = :namespace_id AND observer = :observer))"
        )
        values["observer"] = wanted.observer
    if wanted.subject is not None:
        narrowed.append("m.author = :subject")  # of a perspective's memory, the author is its subject
        values["subject"] = wanted.subject
    if wanted.session_key is not None:
        narrowed.append(
            "m.session_id = (SELECT id FROM sessions WHERE namespace_id = :namespace_id AND session_key = :session_key)"
        )
        values["session_key"] = wanted.session_key
    for name, sign, bound in (("since", ">=", wanted.since), ("until", "<", wanted.until)):
        if bound is not None:
            narrowed.append(f"m.occurred_at {sign} :{name}")
            values[name] = bound
    return Scope(
        held=" AND ".join(held),
        narrowed=" AND ".join(filter(None, narrowed)) or "true",
        narrow=wanted.subject is not None or wanted.session_key is not None,
        values=values,
    )


def _among(column: str, names: tuple[str, ...] | None, values: dict[str, Any]) -> str:
    if names is None:
        return ""
    if len(names) == 1:  # an equality keeps the order of an index; a list of one does not
        values[column] = names[0]
        return f"m.{column} = :{column}"
    values[column] = list(names)
    return f"m.{column} = ANY(CAST(:{column} AS text[]))"
