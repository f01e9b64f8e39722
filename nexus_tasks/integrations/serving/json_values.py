"""Checks of values in a JSON body that pydantic takes for something else."""

from __future__ import annotations

from typing import Any


def no_number(given: Any) -> Any:
    """Refuse a number as a time: pydantic takes it for seconds or milliseconds, by its size."""
    try:
        float(given)
    except (TypeError, ValueError):
        return given
    except OverflowError:  # a number all the same
        pass
    raise ValueError("a time such as 2026-03-01T12:00:00Z is needed, not a number")


def no_flag(given: Any) -> Any:
    """Refuse ``true`` as a number: pydantic takes it for 1."""
    if isinstance(given, bool):
        raise ValueError("a number is needed, not true or false")
    return given
