"""A stranger's look at the document, and a tenant's long or buffered messages, hold up no other tenant."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus
from nexus_tasks.errors import StorageUnavailable
from nexus_tasks.integrations.http import openapi
from nexus_tasks.services import buffer_flush, ingestion
from tests.integration.http_client import api, described, ok
from tests.sandbox import Sandbox


def test_the_openapi_document_is_made_once(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask for it. It was made on the event loop at each request, and grew each time."""
    made, make = list[Any](), openapi.document
    monkeypatch.setattr(openapi, "document", lambda app: (made.append(app), make(app))[1])
    with api(here, token="") as client:
        answers = [client.get("/openapi.json") for _ in range(3)]
    assert [ok(answer) for answer in answers] == [described()] * 3
    assert len(made) == 1


def test_a_tenant_neither_stores_nor_waits_for_the_buffer_of_another(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, store = here.deployment.buffer, buffer_flush._store_entries
    stored = list[str]()

    def storing(deployment: Any, segment: Any, *rest: Any, **more: Any) -> set[int]:
        stored.append(segment.agent)
        if segment.agent == "evil":
            raise StorageUnavailable("Postgres: terminating connection due to idle-in-transaction timeout.")
        return store(deployment, segment, *rest, **more)

    monkeypatch.setattr(buffer_flush, "_store_entries", storing)
    monkeypatch.setattr(buffer_flush, "LOOK_EVERY", 0.0)
    for name in ("evil", "good"):
        Nexus(here.deployment).create_namespace(name)
        buffer.append(name, "chat", {"content": f"The plan of {name} is secret."})
    good, evil = (Nexus(here.deployment, namespaces=[name]) for name in ("good", "evil"))
    assert [hit.content for hit in good.search("good", "plan")] == ["The plan of good is secret."]
    assert stored == ["good"]
    assert buffer.has("evil", "chat")
    with pytest.raises(StorageUnavailable):
        evil.search("evil", "plan")


def test_secrets_are_looked_for_outside_transactions(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes seconds for long texts, and Postgres ends a transaction that is idle for 8 s."""
    idle, scrub = list[Any](), ingestion.scrub
    contents = ["My password is hunter2-Heron.", "I like tea."]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"

    def scrubbing(said: str) -> str:
        if said in contents:
            with here.deployment.database.reading() as tx:
                idle.append(tx.scalar(text(waiting)))
        return scrub(said)

    monkeypatch.setattr(ingestion, "scrub", scrubbing)
    nexus = Nexus(here.deployment)
    assert nexus.ingest("acme", "chat", [{"content": contents[0]}]).stored == 1
    here.deployment.buffer.append("acme", "chat", {"content": contents[1]})
    assert buffer_flush.store_buffer(here.deployment).stored == 1
    assert idle == [0, 0]
