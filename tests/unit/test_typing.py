"""Types at the edge: what the client's methods return, and what mypy says of a call of ``.delay()``."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from nexus_tasks import Nexus
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.types import ContextBlock, ForgetReceipt, JobDetails, JobInfo, PausedKind, Recalls, Receipt

REPOSITORY = Path(__file__).parents[2]
METHODS = {
    name: method
    for name, method in vars(Nexus).items()
    if not name.startswith("_") and isinstance(method, types.FunctionType)
}
PLAIN = (str, int, float, bool, datetime, type(None))


def unfrozen(found: Any) -> list[Any]:
    """The parts of an annotation that are no frozen document, job, plain value, or list or tuple of such."""
    if found in PLAIN or found in (JobResult, Recalls):
        return []
    if get_origin(found) in (list, tuple, Union, types.UnionType, Coroutine):
        return [part for one in get_args(found) if one is not Ellipsis for part in unfrozen(one)]
    if get_origin(found) is Literal:
        return []
    if is_dataclass(found) and found.__dataclass_params__.frozen and hasattr(found, "to_dict"):
        return []
    return [found]


def returned_types(found: Any) -> set[type[Any]]:
    """The frozen documents in an annotation, and those in their fields."""
    parts = set[type[Any]]().union(*(returned_types(one) for one in get_args(found)))
    if found is Recalls:
        return returned_types(Recalls.__orig_bases__[0])
    if is_dataclass(found) and isinstance(found, type):
        parts |= {found}.union(*(returned_types(one) for one in get_type_hints(found).values()))
    return parts


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_public_method_returns_frozen_types(method: Callable[..., Any]) -> None:
    returned = get_type_hints(method)["return"]
    assert unfrozen(returned) == []


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_public_method_explains_its_arguments(method: Callable[..., Any]) -> None:
    assert method.__doc__
    given = get_type_hints(method).keys() - {"return", "namespace", "session_key", "filename", "job_id"}
    assert all(f"{name}:" in method.__doc__ for name in given)


RETURNED = sorted(
    set[type[Any]]().union(*(returned_types(get_type_hints(method)["return"]) for method in METHODS.values())),
    key=lambda found: found.__name__,
)
# Open by their nature: what a job kind reports and takes, messages as APIs take them, and a producer's JSON.
OPEN = {("JobDetails", "args"), ("JobDetails", "details"), ("ContextBlock", "messages")}
OPEN |= {("SaidMessage", "tool_calls")} | {
    (name, "data") for name in ("SaidMessage", "MemoryInfo", "MemoryDetails", "SourcedFact")
}


@pytest.mark.parametrize("found", RETURNED, ids=lambda found: found.__name__)
def test_no_field_is_an_untyped_mapping(found: type[Any]) -> None:
    hints = get_type_hints(found)
    untyped = {name for name, hint in hints.items() if "Any" in str(hint)}
    assert {(found.__name__, name) for name in untyped} <= OPEN
    assert not [name for name, hint in hints.items() if get_origin(hint) in (dict, list)], "it could be changed"


@pytest.mark.parametrize("found", RETURNED, ids=lambda found: found.__name__)
def test_every_returned_type_has_a_docstring(found: type[Any]) -> None:
    assert found.__doc__
    assert not found.__doc__.startswith(f"{found.__name__}("), "a docstring that dataclass has generated"


def test_a_document_is_json() -> None:
    when = datetime(2026, 3, 1, 9, tzinfo=UTC)
    assert PausedKind(kind="k", reason="r", since=when).to_dict() == {
        "kind": "k",
        "reason": "r",
        "since": "2026-03-01T09:00:00Z",
    }
    receipt = Receipt(namespaces=("a",), session_keys=("s",), messages=1, stored=1, duplicates=0, enqueued=1)
    assert receipt.to_dict() == {
        **{"namespaces": ["a"], "session_keys": ["s"], "messages": 1, "stored": 1, "duplicates": 0},
        **{"enqueued": 1, "buffered": 0},
    }
    assert "not_rewritten" not in ForgetReceipt(deleted={}, ids=(), requeued=()).to_dict()
    block = ContextBlock(namespace="a", text="t", tokens=1, max_tokens=2, sections=(), citations={})
    assert set(block.to_dict()) == {f.name for f in fields(block)} - {"messages", "notes"}
    for document in (receipt.to_dict(), block.to_dict()):
        assert json.loads(json.dumps(document)) == document


def job(source: Literal["queue", "dead_letters", "runs"], of: type[JobInfo]) -> Mapping[str, Any]:
    common: dict[str, Any] = {"id": "i", "namespace": "a", "kind": "k", "scope": "{}", "status": "s", "attempts": 1}
    return of(source=source, **common, queued_at=None, started_at=None, finished_at=None).to_dict()


def test_a_jobs_document_has_the_fields_of_its_source() -> None:
    common = {*("id", "namespace", "kind", "scope", "status", "attempts", "worker")}
    common |= {"queued_at", "started_at", "finished_at"}
    asked = {"force", "reasons", "urgency"}
    assert set(job("queue", JobInfo)) == common | {"reason", "detail", "error"}
    assert set(job("dead_letters", JobInfo)) == common | {"error"}
    assert set(job("runs", JobInfo)) == common
    assert set(job("queue", JobDetails)) == common | asked | {
        *("reason", "detail", "error", "args", "errors", "crashes"),
    }
    assert set(job("dead_letters", JobDetails)) == common | asked | {
        *("error", "args", "error_type", "traceback", "errors", "crashes", "resolution"),
    }
    assert set(job("runs", JobDetails)) == common | {"reasons", "details", "model_calls", "cost_usd"}


# --- mypy -------------------------------------------------------------------------------------------------------------
HEAD = "from nexus_tasks import Nexus, derive_memory, digest_session\n"
RIGHT = """
result = derive_memory.delay(namespace="acme", memory_id=17)
result.wait(timeout=1.0).status.upper()
digest_session.delay(namespace="acme", session_key="s", reason="manual_digest")
ids: list[int] = [memory.id for memory in Nexus().memories("acme")]
dead: int = Nexus().status("acme").namespaces[0].jobs.dead
Nexus().create_namespace("acme", budget_usd_per_day=1.5)


async def read() -> str:
    return (await Nexus().amemory("acme", 17)).content
"""
WRONG = {
    'derive_memory.delay(namespace="acme", memory_id="17")': "arg-type",
    'derive_memory.delay(namespace="acme")': "call-arg",
    'derive_memory.delay(namespace="acme", memory_id=17, colour="red")': "call-arg",
    'digest_session.delay(namespace="acme", session_key="s", reason="whim")': "arg-type",
    'Nexus().memory("acme", 17)["content"]': "index",
    'Nexus().memory("acme", 17).contents': "attr-defined",
    'Nexus().create_namespace("acme", budget="1")': "call-arg",
}


@pytest.mark.long  # mypy without a cache takes as long as 50 other tests
def test_mypy_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(HEAD + RIGHT)
    (tmp_path / "wrong.py").write_text(HEAD + "\n".join(WRONG) + "\n")
    told = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml"), "--strict"),
            *("--no-pretty", "--hide-error-context", "--no-error-summary"),
            *("--cache-dir", str(tmp_path / "cache"), str(tmp_path / "right.py"), str(tmp_path / "wrong.py")),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    errors = [line for line in told.stdout.splitlines() if ": error: " in line]
    assert not [line for line in errors if "wrong.py" not in line], told.stdout
    for number, (call, code) in enumerate(WRONG.items(), start=2):
        assert [line for line in errors if f"wrong.py:{number}:" in line and f"[{code}]" in line], (call, told.stdout)
