"""The base class whose ``to_dict()`` turns a returned value into a dict that ``json.dumps`` accepts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast


class Document:
    """Base class of the frozen dataclasses that ``nexus … --json`` prints as JSON documents."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict that ``json.dumps`` accepts. Times are ISO 8601 texts with a time zone.

        Example::

            json.dumps(nexus.memory("acme", 17).to_dict())
        """
        left_out = self._left_out()
        named = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        return {name: plain(value) for name, value in named.items() if name not in left_out}

    def _left_out(self) -> Collection[str]:
        """The names of the fields that :meth:`to_dict` leaves out."""
        return ()


T = TypeVar("T")


class Listed(list[T]):
    """A list that was gathered from several cells. ``away`` says which cells are missing in it: cell → why."""

    def __init__(self, rows: Iterable[T] = (), *, away: Mapping[str, str] | None = None) -> None:
        super().__init__(rows)
        self.away: Mapping[str, str] = dict(away or {})


def plain(value: Any) -> Any:
    """Convert ``value`` to types of JSON.

    Documents and mappings become dicts. Lists and tuples become lists. Times become ISO 8601 texts.
    """
    if isinstance(value, Document):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def iso(moment: datetime) -> str:
    """Write ``moment`` as an ISO 8601 text with a time zone. UTC is written ``Z``. A naive time means UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat().replace("+00:00", "Z")
