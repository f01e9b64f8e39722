"""No call and no job reads more of a tenant's texts into memory than it needs: all tenants use the same processes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.extraction.batch import ExtractionBatch
from nexus_tasks.cognition.extraction.extract_session import _next_batch
from nexus_tasks.cognition.extraction.topics import build_request
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services import context_cache
from nexus_tasks.storage import pruning
from nexus_tasks.transcripts import context_file
from tests.integration.inline import NAMESPACE, facts, work
from tests.sandbox import Sandbox

LONG = "word " * 200_000


def store(here: Sandbox, number: int) -> None:
    """A session ``chat`` of so many messages of 1 MB, with the ids m0, m1, …. Facts rest on their first texts."""
    said = [{"content": f"I keep thing {n} on shelf {n}.", "author": "ann", "id": f"m{n}"} for n in range(number)]
    Nexus().ingest(NAMESPACE, "chat", said)
    work("derive_memory")
    here.sql("ALTER TABLE memories DISABLE TRIGGER USER")  # else Postgres makes an index of the words for a minute
    here.sql("UPDATE memories SET content = :text WHERE level = 'raw'", text=LONG)
    here.sql("ALTER TABLE memories ENABLE TRIGGER USER")


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Python's objects have at most so many bytes more inside the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"


def test_an_extraction_reads_the_last_messages_up_to_a_bound(here: Sandbox) -> None:
    store(here, 120)
    [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
    job: Any = SimpleNamespace(namespace_id=namespace_id)
    with default_deployment().database.transaction() as tx, at_most(90_000_000):
        found = _next_batch(tx, default_deployment().settings, job, "chat", ())
    assert isinstance(found, ExtractionBatch)


def test_the_erasure_of_a_session_reads_no_text_that_it_does_not_need(here: Sandbox) -> None:
    store(here, 60)
    assert facts()
    with at_most(20_000_000):
        Nexus().forget(NAMESPACE, session_key="chat")
    assert here.sql("SELECT count(*) FROM memories") == [(0,)]


def test_short_messages_with_the_ids_of_long_ones_read_no_long_text(here: Sandbox) -> None:
    store(here, 60)
    short = [{"content": f"Short {n}.", "author": "ann", "id": f"m{n}"} for n in range(60)]
    with at_most(10_000_000), pytest.raises(InvalidInput, match="another text") as refused:
        Nexus().ingest(NAMESPACE, "chat", short)
    assert "Stored: 'word word" in str(refused.value)
    with at_most(20_000_000):
        assert Nexus().ingest(NAMESPACE, "chat", short, replace=True).stored == 60
    assert [one.content for one in Nexus().session(NAMESPACE, "chat").said] == [one["content"] for one in short]


def test_a_repeat_of_long_messages_is_known(here: Sandbox) -> None:
    store(here, 3)
    again = [{"content": LONG, "author": "ann", "id": f"m{n}"} for n in range(3)]
    receipt = Nexus().ingest(NAMESPACE, "chat", again)
    assert (receipt.stored, receipt.duplicates) == (0, 3)


def test_an_extraction_and_a_context_file_read_a_bounded_number_of_topics(here: Sandbox) -> None:
    Nexus().write_topic(NAMESPACE, "last", "The last one.", type="feedback")
    here.sql(
        "INSERT INTO topics (namespace_id, filename, name, description, type, content, made_by, updated_at)"
        " SELECT id, 't' || number || '.md', 'a topic', 'some words', 'project', repeat('word ', 1600), 'ann',"
        " now() - interval '1 day' FROM namespaces, generate_series(1, 3000) AS number"
    )
    [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
    batch: Any = SimpleNamespace(lines=())
    with default_deployment().database.transaction() as tx, at_most(8_000_000):
        _, shown = build_request(tx, namespace_id, "chat", batch, 4_000)
    assert "last.md" in shown.revisions
    with at_most(20_000_000):
        context_cache.refresh(default_deployment(), NAMESPACE)
    assert "last.md" in context_file.take(str(here.folder), NAMESPACE)


def test_pruning_lists_nothing_that_it_deletes(here: Sandbox) -> None:
    """After months without beat there are millions of rows, and a list of them takes all memory of a worker."""
    here.sql(
        "INSERT INTO job_runs (job_id, kind, scope, status, reasons, details, finished_at)"
        " SELECT 'run-' || number, 'play', '{}', 'completed', '{}', '{}', now() - interval '40 days'"
        " FROM generate_series(1, 50000) AS number"
    )
    with default_deployment().database.transaction() as tx, at_most(4_000_000):
        assert pruning.prune(tx)["job_runs"] == 50_000
    assert here.sql("SELECT count(*) FROM job_runs") == [(0,)]
