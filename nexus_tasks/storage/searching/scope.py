"""Turning a filter into SQL conditions on ``memories AS m``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter for the memories of a namespace. ``None`` means no restriction.

    ``as_of`` selects the memories that were valid at this time. ``since`` and ``until`` select the memories whose event
    time (the time of which a fact speaks, or the time that a digest covers) has a part between the two times. For a
    memory without an event time, ``occurred_at`` counts: at ``since`` or later, and before ``until``.
    ``heard_only`` selects of the messages only those that ``observer`` heard, and no digests.
    """

    namespace_id: int
    observer: str | None = None
    subject: str | None = None
    session_key: str | None = None
    session_prefix: str | None = None  # the beginning of the session's key
    levels: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    as_of: datetime | None = None
    min_standing: int | None = None  # the lowest rank of a standing (see ``types.names.standing_rank``)
    heard_only: bool = False
    superseded: bool = False  # whether memories that are superseded or have expired are selected too


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The SQL conditions of a filter.

    - ``visible`` is the condition for the namespace and the validity. It selects the memories that are valid at
      ``as_of``, or now if the filter has no ``as_of``. A filter without ``as_of`` and without levels also leaves out
      archived memories.
    - ``selected`` is the condition for levels, categories, observer, subject, session and times.
    - ``narrow`` is true when the filter has a subject or sessions. A search with a narrow scope counts the memories
      that pass the filter. If they are few, it scores each of them.
    - ``values`` are the parameters of the conditions.
    """

    visible: str
    selected: str
    narrow: bool
    values: dict[str, Any]

    @property
    def both(self) -> str:
        """The SQL condition ``visible AND selected``."""
        return f"{self.visible} AND {self.selected}"


def build_scope(wanted: Filter) -> Scope:
    """The conditions of a filter. Two filters that set the same fields to different values get the same SQL text.

    One level and several levels give different texts, and so do one category and several categories.
    """
    visible = ["m.namespace_id = :namespace_id"]
    values: dict[str, Any] = {"namespace_id": wanted.namespace_id}
    if wanted.as_of is None:
        if not wanted.superseded:
            visible.append("m.valid_to IS NULL AND (m.expires_at IS NULL OR m.expires_at > now())")
        if wanted.levels is None:
            visible.append("m.archived_at IS NULL")
    else:
        visible.append(
            "coalesce(m.valid_from, m.occurred_at) <= :as_of AND (m.valid_to IS NULL OR m.valid_to > :as_of)"
            " AND (m.expires_at IS NULL OR m.expires_at > :as_of)"
        )
        values["as_of"] = wanted.as_of
    selected = [_among("level", wanted.levels, values), _among("category", wanted.categories, values)]
    if wanted.min_standing is not None:
        selected.append("m.standing >= :min_standing")
        values["min_standing"] = wanted.min_standing
    # A message has no perspective (observer and subject). Every observer may read a message, unless the filter says
    # otherwise. An observer heard the messages that have a derivation for it, whatever became of the derivation.
    if wanted.observer is not None and wanted.heard_only:
        selected.append(
            "(CASE WHEN m.perspective_id IS NULL THEN m.level = 'raw' AND EXISTS (SELECT FROM derivations AS heard"
            " WHERE heard.memory_id = m.id AND heard.observer = :observer)"
            " ELSE m.perspective_id IN (SELECT id FROM perspectives"
            " WHERE namespace_id = :namespace_id AND observer = :observer) END)"
        )
        values["observer"] = wanted.observer
    elif wanted.observer is not None:
        selected.append(
            "(m.perspective_id IS NULL OR m.perspective_id IN (SELECT id FROM perspectives"
            " WHERE namespace_id = :namespace_id AND observer = :observer))"
        )
        values["observer"] = wanted.observer
    if wanted.subject is not None:
        selected.append("m.author = :subject")  # the column contains the subject of a fact, or the author of a message
        values["subject"] = wanted.subject
    if wanted.session_key is not None:
        selected.append(
            "m.session_id = (SELECT id FROM sessions WHERE namespace_id = :namespace_id AND session_key = :session_key)"
        )
        values["session_key"] = wanted.session_key
    if wanted.session_prefix is not None:
        selected.append(
            "m.session_id IN (SELECT id FROM sessions"
            " WHERE namespace_id = :namespace_id AND starts_with(session_key, :session_prefix))"
        )
        values["session_prefix"] = wanted.session_prefix
    if wanted.since is not None:
        selected.append("(m.event_to > :since OR (m.event_to IS NULL AND m.occurred_at >= :since))")
        values["since"] = wanted.since
    if wanted.until is not None:
        selected.append("coalesce(m.event_from, m.occurred_at) < :until")
        values["until"] = wanted.until
    return Scope(
        visible=" AND ".join(visible),
        selected=" AND ".join(filter(None, selected)) or "true",
        narrow=any(each is not None for each in (wanted.subject, wanted.session_key, wanted.session_prefix)),
        values=values,
    )


def _among(column: str, names: tuple[str, ...] | None, values: dict[str, Any]) -> str:
    if names is None:
        return ""
    if len(names) == 1:  # with an equality, and not with an array, Postgres can read rows in index order
        values[column] = names[0]
        return f"m.{column} = :{column}"
    values[column] = list(names)
    return f"m.{column} = ANY(CAST(:{column} AS text[]))"
