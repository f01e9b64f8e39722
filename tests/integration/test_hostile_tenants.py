"""A stranger's look at the document, and a tenant's long or buffered messages, hold up no other tenant."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput, StorageUnavailable
from nexus_tasks.integrations.http import openapi
from nexus_tasks.services import buffer_flush, correcting, ingestion, markdown, topics
from nexus_tasks.transcripts.scrubbing import scrub
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


def test_secrets_of_edited_messages_and_of_notes_are_looked_for_outside_transactions(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An edited log of 4 MB and notes of 6 MB could never be stored: the transaction was ended in between."""
    idle = list[Any]()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"

    def scrubbing(said: str) -> str:
        with here.deployment.database.reading() as tx:
            idle.append(tx.scalar(text(waiting)))
        return scrub(said)

    nexus = Nexus(here.deployment)
    nexus.ingest("acme", "chat", [{"id": str(n), "content": f"I like tea number {n}."} for n in range(3)])
    (tmp_path / "plan.md").write_text("# Plan\n\nMy password is hunter2-Heron.\n")
    for module in (ingestion, markdown):
        monkeypatch.setattr(module, "scrub", scrubbing)
    edited = [{"id": str(n), "content": f"I like coffee number {n}."} for n in range(3)]
    assert nexus.ingest("acme", "chat", edited, replace=True).stored == 3
    assert nexus.import_markdown("acme", tmp_path).changed == 1
    assert "hunter2" not in str(nexus.topic("acme", "plan.md").content)
    assert len(idle) > 3
    assert set(idle) == {0}


def test_one_thread_at_a_time_looks_for_the_secrets_of_a_namespace(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text can be made for which that takes seconds. Eight of them kept the threads of all tenants waiting."""
    scrub, running, most = ingestion.scrub, Counter[str](), Counter[str]()
    both = threading.Barrier(2)

    def scrubbing(said: str) -> str:
        name = said.partition(" ")[0]
        if name in ("evil", "good"):
            running[name] += 1
            most[name] = max(most[name], running[name])
            if said.endswith(" 0"):
                both.wait(30)  # another namespace does not wait
            time.sleep(0.05)
            running[name] -= 1
        return scrub(said)

    monkeypatch.setattr(ingestion, "scrub", scrubbing)
    nexus = Nexus(here.deployment)
    for name in ("evil", "good"):
        nexus.create_namespace(name)
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(nexus.ingest, name, f"chat-{n}", [{"content": f"{name} {n}"}], observers=[])
            for n in range(4)
            for name in ("evil", "good")
        ]
        assert [one.result().stored for one in asked] == [1] * 8
    assert most == {"evil": 1, "good": 1}


def test_a_text_that_is_too_long_is_refused_before_it_is_read(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    for module in (topics, correcting):
        monkeypatch.setattr(module, "scrub", lambda text: (read.append(text), text)[1])
    nexus = Nexus(here.deployment)
    nexus.create_namespace("acme")
    with pytest.raises(InvalidInput, match="a topic has at most 8,000"):
        nexus.write_topic("acme", "plan", "x" * 1_000_000)
    with pytest.raises(InvalidInput):
        nexus.revise("acme", 1, "x" * 1_000_000)
    assert not any(len(text) > 10_000 for text in read)
