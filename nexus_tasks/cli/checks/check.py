"""The result of one check of ``nexus doctor``: the finding, whether it is in order, and the remedy when it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nexus_tasks.errors import NexusError


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check. When ``ok`` is false, ``remedy`` says what to do."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The check as a JSON object, without an empty ``remedy``."""
        document = {"name": self.name, "ok": self.ok, "found": self.found}
        return document | {"remedy": self.remedy} if self.remedy else document


def passed(name: str, found: str) -> Check:
    """The result of a check that found no fault."""
    return Check(name=name, ok=True, found=found)


def failed(name: str, found: str, remedy: str) -> Check:
    """The result of a check that found a fault. ``remedy`` says how to correct the fault."""
    return Check(name=name, ok=False, found=found, remedy=remedy)


def run_checks(name: str, checks: Callable[[], Sequence[Check]], remedy: str) -> list[Check]:
    """Call ``checks`` and return the results.

    When the call raises an error of a server, a driver or a URL, the result is one failed check named ``name``.
    """
    try:
        return list(checks())
    except NexusError as error:
        return [failed(name, error.message, error.remedy)]
    except _expected_errors() as error:
        text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]  # the text of the driver, if any
        return [failed(name, f"{type(error).__name__}: {text}" if text else type(error).__name__, remedy)]


def _expected_errors() -> tuple[type[Exception], ...]:
    from kombu.exceptions import KombuError
    from redis.exceptions import RedisError
    from sqlalchemy.exc import SQLAlchemyError

    # A malformed URL is a ValueError, an unknown scheme a KeyError, a driver that is not installed an ImportError.
    return (SQLAlchemyError, RedisError, KombuError, OSError, ValueError, KeyError, ImportError)
