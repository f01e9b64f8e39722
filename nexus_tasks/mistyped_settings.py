"""Name the ``NEXUS_*`` variables of the environment that are no settings, with the settings that were probably meant.

A mistyped variable would otherwise be ignored: with ``NEXUS_DATABSE_URL``, the embedded servers would be used.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from typing import NamedTuple

from nexus_tasks.settings import Settings

_PREFIX = "NEXUS_"
KNOWN = frozenset(f"{_PREFIX}{name.upper()}" for name in Settings.model_fields)
# Kubernetes gives every container these variables of a service with the name `nexus` or `nexus-…`.
_OF_KUBERNETES = re.compile(r"_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d{1,5}_[A-Z0-9_]+)?)\Z")


class Mistyped(NamedTuple):
    """A variable that is no setting. ``meant`` is the setting with the nearest name, if one is near."""

    name: str
    meant: str | None

    def __str__(self) -> str:
        if self.meant:
            return f"{self.name} is no setting and is ignored. Did you mean {self.meant}?"
        return f"{self.name} is no setting and is ignored. docs/settings.md lists the settings."


def mistyped_settings() -> list[Mistyped]:
    """The ``NEXUS_*`` variables of this process's environment that the package does not read."""
    return [
        Mistyped(name, _nearest(name))
        for name in sorted(os.environ)
        if name.startswith(_PREFIX) and name.upper() not in KNOWN and not _OF_KUBERNETES.search(name)
    ]


def _nearest(name: str) -> str | None:
    # The names are compared without the prefix, because it makes any two names similar.
    names = [known.removeprefix(_PREFIX) for known in sorted(KNOWN)]
    return next((_PREFIX + near for near in get_close_matches(name.removeprefix(_PREFIX).upper(), names, n=1)), None)
