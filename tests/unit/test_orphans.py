"""The sweep writes the dead letters of dead workers' jobs, also when one namespace takes none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nexus_tasks.errors import NamespaceMoving, StorageUnavailable
from nexus_tasks.idempotency.worker import orphans, run_span


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (NamespaceMoving("The namespace moving is moving to another cell."), ["stays"]),
        (StorageUnavailable("Postgres does not answer."), []),
    ],
)
def test_a_namespace_that_takes_no_letter_stops_no_other(
    error: Exception, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, finished = list[str](), list[str]()

    def dead_letter(claim: Any, _error: object) -> None:
        asked.append(claim.namespace)
        if claim.namespace == "moving":
            raise error

    engine: Any = SimpleNamespace(
        storage=SimpleNamespace(dead_letter=dead_letter),
        claims=SimpleNamespace(finish=lambda claims, _: finished.extend(one.namespace for one in claims)),
        publisher=SimpleNamespace(publish=lambda _: None),
    )
    monkeypatch.setattr(run_span, "bury", lambda _: None)
    claims: Any = [
        SimpleNamespace(namespace=name, job_id=f"job-{n}", kind="play")
        for n, name in enumerate(("moving", "moving", "stays"))
    ]
    orphans.bury(engine, claims)
    assert finished == ended
    assert asked.count("moving") == 1, "each letter of the namespace could wait for a lock"
