"""Check the arguments of the client's methods, so that a wrong argument raises ``InvalidInput`` and nothing else.

A check belongs to the name of a parameter, because a parameter means the same in every method. The check of a type and
a range is here. What only one method knows, such as the names of statuses, that method checks.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.types import check_time

T = TypeVar("T")
Check = Callable[[str, Any], None]

LARGEST_BIGINT = 2**63 - 1  # the largest bigint of Postgres
MOST_USD = 1e12  # also excludes NaN and infinity
MOST_RUNS = 2**31 - 1  # the largest integer of Postgres


def checked_methods(client: type[T]) -> type[T]:
    """A class decorator: every public method checks its arguments before it does anything.

    Raises:
        KeyError: a parameter has no check in ``CHECKS``.
    """
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method):
            setattr(client, name, _checked(method))
    return client


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    checks = {name: CHECKS[name] for name in list(signature.parameters)[1:]}  # without `self`
    optional = {name for name in checks if signature.parameters[name].default is None}

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name, check in checks.items():
            if name in given and not (given[name] is None and name in optional):
                check(name, given[name])
        return method(*args, **kwargs)

    return call


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, not {_shown(value)}.")


def _line(name: str, value: Any) -> None:
    """Text that Postgres and Redis can keep."""
    _text(name, value)
    if "\0" in value:
        raise InvalidInput(f"{name} holds a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} holds half a surrogate pair, which is no character.") from None


def _name(name: str, value: Any) -> None:
    _line(name, value)
    _at_most(name, value, limits.WORD_CHARACTERS)


def _word(name: str, value: Any) -> None:
    """A filter. An empty one is a mistake, such as a variable of the shell that is not set, and does not mean all."""
    _name(name, value)
    if not value:
        raise InvalidInput(f"{name} must be a non-empty text.")


def _job_id(name: str, value: Any) -> None:
    """An id that is only looked up. No job has an id with an odd character."""
    _text(name, value)
    _at_most(name, value, limits.JOB_ID_CHARACTERS)


def _query(name: str, value: Any) -> None:
    _text(name, value)
    _at_most(name, value, limits.QUERY_CHARACTERS)


def _at_most(name: str, value: str, most: int) -> None:
    if len(value) > most:
        raise InvalidInput(f"{name} has {len(value):,} characters; at most {most:,} are allowed.")


def _lines(name: str, value: Any) -> None:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name} must be a list of texts, not {_shown(value)}.")
    most = limits.OBSERVERS_PER_CALL if name == "observers" else limits.LIST_ENTRIES
    for number, one in enumerate(value):
        if number == most:
            raise InvalidInput(f"{name} has more than {most:,} entries.", remedy="Make several calls with fewer each.")
        _name(name, one)
    if isinstance(value, Iterator):  # this check has read it to its end, so the call would get nothing
        raise InvalidInput(f"{name} must be a list of texts, not {_shown(value)}.")


def _messages(name: str, value: Any) -> None:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name} must be a list of messages, not {_shown(value)}.")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {_shown(value)}.")


def _whole(least: int, most: int) -> Check:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(f"{name} must be a whole number, not {_shown(value)}.")
        if not least <= value <= most:
            raise InvalidInput(f"{name} must be {least:,} to {most:,}.")

    return check


def _amount(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_USD:
        raise InvalidInput(f"{name} must be a number, not {_shown(value)}.")


def _time(name: str, value: Any) -> None:
    check_time(name, value)


def _callable(name: str, value: Any) -> None:
    if not callable(value):
        raise InvalidInput(f"{name} must be callable, not {_shown(value)}.")


def _path(name: str, value: Any) -> None:
    if not isinstance(value, str | Path) or not str(value):
        raise InvalidInput(f"{name} must be the path of a file or folder, not {_shown(value)}.")
    try:
        bad = "\0" in str(value) or len(os.fsencode(value)) > limits.PATH_BYTES
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise InvalidInput(f"{name} must be a path of at most {limits.PATH_BYTES:,} bytes, without NUL characters.")


def _path_or_stream(name: str, value: Any) -> None:
    if not (hasattr(value, "read") and hasattr(value, "write")):
        _path(name, value)


def _number_or_job(name: str, value: Any) -> None:
    if isinstance(value, str):
        _job_id(name, value)
    else:
        _whole(-LARGEST_BIGINT, LARGEST_BIGINT)(name, value)


def _shown(value: Any) -> str:
    if not isinstance(value, int | float | bool | type(None)):
        return type(value).__name__
    # Python writes no integer of more than 4,300 digits.
    return "a number of many digits" if isinstance(value, int) and abs(value) >= 10**40 else f"{value!r:.40}"


CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(
        (
            "namespace",
            "session_key",
            "session_prefix",
            "observer",
            "subject",
            "filename",
            "new_filename",
            "status",
        ),
        _name,
    ),
    **dict.fromkeys(("kind", "error"), _word),
    **dict.fromkeys(
        (
            "urgency",
            "format",
            "count",
            "name",
            "description",
            "type",
            "action",
            "time_zone",
            "min_standing",
            "language",
        ),
        _name,
    ),
    "reason": _name,
    "job_id": _job_id,
    **dict.fromkeys(("token_id", "webhook_id"), _name),
    "url": _text,
    **dict.fromkeys(("text", "author", "content", "instructions"), _text),
    **dict.fromkeys(("query", "question"), _query),
    "on_sentence": _callable,
    **dict.fromkeys(("observers", "levels", "categories", "unset", "ids", "scopes", "events"), _lines),
    **dict.fromkeys(
        (
            "observe",
            "scrub",
            "end",
            "rebuild",
            "everything",
            "overwrite",
            "heard_only",
            "profile",
            "replace",
            "erase_expired",
            "collapse",
            "newest",
            "memories",
            "superseded",
        ),
        _flag,
    ),
    **dict.fromkeys(("since", "until", "as_of", "expires_at"), _time),
    "limit": _whole(0, limits.PAGE_ROWS),
    "offset": _whole(0, limits.PAGE_OFFSET),
    **dict.fromkeys(("after", "before", "generation", "revision"), _whole(0, LARGEST_BIGINT)),
    "memory_id": _whole(-LARGEST_BIGINT, LARGEST_BIGINT),
    "concurrency": _whole(-MOST_RUNS, MOST_RUNS),
    "max_tokens": _whole(-LARGEST_BIGINT, LARGEST_BIGINT),
    **dict.fromkeys(("budget_usd_per_day", "grace"), _amount),
    "messages": _messages,
    "reflection": _number_or_job,
    "path": _path_or_stream,
    "folder": _path,
}
