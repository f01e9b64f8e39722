"""Patterns that are compiled at their first use, so that the hook starts quickly."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial


def lazy(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """A function that compiles ``pattern`` at its first call, and returns it at every call."""
    return cache(partial(re.compile, pattern, flags))
