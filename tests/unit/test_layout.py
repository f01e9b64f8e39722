"""The layout's promises: imports without circles, claims without memory, one file per kind, nothing process-wide."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nexus_tasks
import nexus_tasks.tasks  # declares every kind
from nexus_tasks import deployment, worker
from nexus_tasks.idempotency.kind import declared

PACKAGE = Path(nexus_tasks.__file__).parent
FILES = {
    ".".join(("nexus_tasks", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if "versions" not in path.parts
}


def imports_of(module: str) -> set[str]:
    """The modules of the package that a module imports anywhere: lazily and for type checking, too."""
    found = set[str]()
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else node.module for name in whole}
    return found & FILES.keys() - {module}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_reaches_itself_through_imports() -> None:
    # The package's own __init__ hands public names on, lazily: a module that imports it asks for such a name.
    graph = {module: imports_of(module) for module in FILES if module != "nexus_tasks"}
    assert len(graph) > 200
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}), "a circle is seen"


def test_claims_name_no_kind_and_no_reason_of_one() -> None:
    memory = {"ripeness", "derivation", "dream", "batch", "budget", "throttle"}
    memory |= {kind.name for kind in declared().values() if kind.declared_at.startswith("nexus_tasks.")}
    for path in [*(PACKAGE / "idempotency").rglob("*.py"), *(PACKAGE / "idempotency").rglob("*.lua")]:
        quoted = set(re.findall(r"""["'](\w+)["']""", path.read_text(encoding="utf-8")))
        assert not quoted & memory, path


@pytest.mark.parametrize("kind", [one for one in declared().values() if one.declared_at.startswith("nexus_tasks.")])
def test_a_kind_is_named_in_its_own_file_and_where_it_is_asked_for(kind: object) -> None:
    """No list of kinds: besides its file, only modules that ask for it, and the public names, mention it."""
    name = kind.name  # type: ignore[attr-defined]
    allowed = {f"nexus_tasks.tasks.{name}", "nexus_tasks", "nexus_tasks.config"}
    strings = {
        module
        for module, path in FILES.items()
        if f'"{name}"' in path.read_text(encoding="utf-8") and module not in allowed and ".cli" not in module
    }
    # These ask for one kind, or for the runs of one, by its name; or have a function of that name.
    known = {"nexus_tasks.tasks.handler", "nexus_tasks.storage.dreams", "nexus_tasks.cognition.reflect"}
    assert strings <= known, f"{strings - known} names {name}: does it list kinds?"


@pytest.mark.parametrize("call", [r"turns\.store\(", r"\bsessions\.end\("])
def test_there_is_one_write_path(call: str) -> None:
    """Storing messages and ending a session is written in one module; the client and the buffer call it."""
    users = {module for module, path in FILES.items() if re.search(call, path.read_text(encoding="utf-8"))}
    assert users == {"nexus_tasks.services.ingestion"}


def test_the_worker_lists_what_runs_at_its_start() -> None:
    steps = [step.partition(":")[2] for step in deployment.WORKER_STEPS]
    assert all(hasattr(worker, step) for step in steps)
    described = re.findall(r"^\d+\. :class:`(\w+)`", worker.__doc__ or "", re.MULTILINE)
    assert described == steps


def test_no_module_remembers_a_deployment() -> None:
    """Module-level names that are rebound, or caches of settings and servers, would outlive a deployment."""
    rebound = {
        f"{module}.{name}"
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Global)
        for name in node.names
    }
    assert rebound == {
        "nexus_tasks.deployment._default",  # which deployment is the default one
        # Facts about this process:
        "nexus_tasks.idempotency.worker.isolation._in_pool_child",
        "nexus_tasks.forks._pid",
        "nexus_tasks.forks._lock",
        "nexus_tasks.cli.output._json",
    }
