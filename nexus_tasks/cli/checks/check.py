"""One check: what was found, whether that is well, and what to do when it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nexus_tasks.errors import NexusError


@dataclass(frozen=True, kw_only=True)
class Check:
    """A finding. ``remedy`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON; without a remedy when none is needed."""
        document = {"name": self.name, "ok": self.ok, "found": self.found}
        return document | {"remedy": self.remedy} if self.remedy else document


def well(name: str, found: str) -> Check:
    """Something is as it should be."""
    return Check(name=name, ok=True, found=found)


def wrong(name: str, found: str, remedy: str) -> Check:
    """Something has to be put right."""
    return Check(name=name, ok=False, found=found, remedy=remedy)


def looked(name: str, look: Callable[[], Sequence[Check]], remedy: str) -> list[Check]:
    """What ``look`` finds. Whatever a server, a driver or a URL can fail with is a finding too, named ``name``."""
    try:
        return list(look())
    except NexusError as error:
        return [wrong(name, error.message, error.remedy)]
    except _faults() as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]  # what the driver said
        return [wrong(name, f"{type(error).__name__}: {said}" if said else type(error).__name__, remedy)]


def _faults() -> tuple[type[Exception], ...]:
    from kombu.exceptions import KombuError
    from redis.exceptions import RedisError
    from sqlalchemy.exc import SQLAlchemyError

    # A malformed URL is a ValueError, an unknown scheme a KeyError, a driver that is not installed an ImportError.
    return (SQLAlchemyError, RedisError, KombuError, OSError, ValueError, KeyError, ImportError)
