"""The conditions of LangGraph's store: filters on values, and patterns of namespaces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.store.base import MatchCondition

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def passes(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether a value passes a filter.

    Raises:
        ValueError: the filter has an unknown operator.
    """
    return all(_fits(value.get(key), condition) for key, condition in (wanted or {}).items())


def _fits(value: Any, condition: Any) -> bool:
    if not isinstance(condition, Mapping):
        return bool(value == condition)
    if not any(key.startswith("$") for key in condition):
        return isinstance(value, Mapping) and all(_fits(value.get(key), inner) for key, inner in condition.items())
    return all(_compare(key, value, bound) for key, bound in condition.items())


def _compare(name: str, value: Any, bound: Any) -> bool:
    if name not in _OPERATORS:
        raise ValueError(f"Unsupported operator: {name}. Use one of {', '.join(_OPERATORS)}.")
    try:
        return bool(_OPERATORS[name](value, bound))
    except TypeError:  # values of two types have no order
        return False


def matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a namespace begins or ends with a path, in which ``*`` stands for any label."""
    path = condition.path
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(labels, path, strict=True))


def common_prefix(conditions: tuple[MatchCondition, ...] | None) -> tuple[str, ...]:
    """Labels that every namespace begins with that meets the conditions."""
    found: tuple[str, ...] = ()
    for condition in conditions or ():
        if condition.match_type == "prefix":
            fixed = condition.path[: condition.path.index("*")] if "*" in condition.path else condition.path
            found = max(found, fixed, key=len)
    return found
