"""All regular expressions of the package, and how its modules use them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import nexus_tasks
from nexus_tasks.errors import MissingExtra

ROOT = Path(nexus_tasks.__file__).parent
# Functions that compile the pattern in their argument. Their results are in names of modules, or in `FORMATS`.
MAKERS = {"lazy": 0, "_compiled": re.ASCII}
BUILDERS = {"_rule"}  # these join their arguments; only names of modules take their results
_CALLS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


def modules() -> list[ModuleType]:
    """All modules of the package, except those that start something when they are imported.

    A package of an extra that is not installed is left out. Its patterns in calls are found in its source.
    """
    walked = pkgutil.walk_packages(nexus_tasks.__path__, "nexus_tasks.", onerror=lambda _name: None)
    found = []
    for name in (one.name for one in walked):
        if not name.endswith(("__main__", "migrations.env", "fork_server_main")):
            with suppress(MissingExtra):
                found.append(importlib.import_module(name))
    return found


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """Every pattern by where it is: the module and the name, or the module and the line of a call."""
    found = dict[str, re.Pattern[str]]()
    for module in modules():
        for name, value in vars(module).items():
            for number, pattern in enumerate(_reachable(value, module.__name__)):
                found.setdefault(f"{module.__name__}:{name}" + (f"[{number}]" if number else ""), pattern)
    for path in ROOT.rglob("*.py"):
        for line, method, pattern in _written(ast.parse(path.read_text(encoding="utf-8"))):
            found[f"{path.relative_to(ROOT.parent)}, line {line}:{method}"] = pattern
    once = dict[tuple[str, int], str]()
    for where, pattern in found.items():
        once.setdefault((pattern.pattern, pattern.flags), where)
    return {where: found[where] for where in once.values()}


def methods(where: str) -> set[str]:
    """The methods of a pattern of :func:`patterns` that the package calls; empty when that is not known."""
    name = where.rpartition(":")[2].partition("[")[0]
    return {name} if name in ("match", "fullmatch") else _uses().get(name, set())


def _reachable(value: Any, module: str, depth: int = 0) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif hasattr(value, "cache_info") and not _required(value) and _gives_patterns(value):
        yield from _reachable(value(), module, depth + 1)
    elif depth < 5:
        if isinstance(value, Mapping):
            value = list(value.values())
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, field.name) for field in dataclasses.fields(value)]
        if isinstance(value, tuple | list | set | frozenset):
            if hasattr(value, "marks"):  # a `token_formats.Format`
                yield re.compile(value.pattern, MAKERS["_compiled"])
            for one in value:
                yield from _reachable(one, module, depth + 1)


def _required(function: Any) -> list[str]:
    """The parameters without a default. ``partial(re.compile, pattern)`` has one with a default: the flags."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is one.empty]


def _gives_patterns(cached: Any) -> bool:
    made = cached.__wrapped__
    return getattr(made, "func", None) is re.compile or (
        "re.Pattern" in str(getattr(made, "__annotations__", {}).get("return"))
        or made.__name__ in ("_rules", "_credential_patterns")
    )


# --- calls inside functions -------------------------------------------------------------------------------------------
def _written(tree: ast.Module) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    """The patterns that calls such as ``re.sub("…", …)`` have as a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if _is_re(node.func):
                yield node.lineno, _name(node.func), re.compile(node.args[0].value, _flags(node))
            elif isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                yield node.lineno, node.func.id, re.compile(str(node.args[0].value), MAKERS[node.func.id])


def _flags(call: ast.Call) -> int:
    """The flags in a call's arguments, such as ``re.DOTALL``."""
    named = (one.attr for argument in [*call.args, *call.keywords] for one in ast.walk(argument) if _is_flag(one))
    return sum({int(getattr(re, name)) for name in named})


def _is_flag(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "re" and node.attr.isupper()


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", "")


def _is_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and (function.value.id, function.attr) in {("re", call) for call in _CALLS}
    )


def unreachable(source: str) -> list[int]:
    """The lines of ``source`` that compile a pattern which :func:`patterns` cannot find, as it would have to run them.

    In a function a pattern must be a constant, or the function must be a cached one without parameters.
    """
    lines = list[int]()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = getattr(function, "name", "")
            cached = any("cache" in ast.unparse(one) for one in getattr(function, "decorator_list", []))
            if name in MAKERS or name in BUILDERS or (cached and not ast.unparse(function.args)):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and not (node.args and isinstance(node.args[0], ast.Constant)):
                    called = node.func.id if isinstance(node.func, ast.Name) else ""
                    if _is_re(node.func) or called in MAKERS or called in BUILDERS:
                        lines.append(node.lineno)
    return lines


@cache
def _uses() -> Mapping[str, set[str]]:
    """For each name, how the package uses it: ``match`` from the first character on, or any other method."""
    found = dict[str, set[str]]()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value.func if isinstance(node.func.value, ast.Call) else node.func.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                method = node.func.attr if len(node.args) == 1 else "elsewhere"
                found.setdefault(name, set()).add(method)
    return found
