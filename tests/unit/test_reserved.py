"""A worker reports the messages that it has received and not begun, also when it cannot read one of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery.worker import state
from pydantic import field_validator

from nexus_tasks import reflect_namespace
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.worker.reserved import report_reserved


class Faulty(Arguments):
    """Arguments whose validator has a bug."""

    scope: ClassVar = ("namespace",)

    @field_validator("namespace")
    @classmethod
    def _look_up(cls, value: str) -> str:
        return {"acme": "1"}[value]


def test_a_message_whose_validator_fails_keeps_no_other_from_being_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = reflect_namespace.kind
    waiting = {
        SimpleNamespaceOfIdentity(id=str(n), task=SimpleNamespace(kind=kind), kwargs={"namespace": "shop"})
        for n, kind in enumerate((replace(sound, arguments=Faulty), sound))
    }
    monkeypatch.setattr(state, "reserved_requests", waiting)
    monkeypatch.setattr(state, "active_requests", set())
    reported = dict[str, str]()
    claims: Any = SimpleNamespace(key=lambda request: request.scope, keep_reserved=reported.update)
    report_reserved(claims)
    assert list(reported) == ["1"]


class SimpleNamespaceOfIdentity(SimpleNamespace):
    """A request of Celery, which is hashed by its identity."""

    __hash__ = object.__hash__
