"""Whatever Postgres wants is asked for by the sweep's next tick after Redis has lost everything: each kind of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from nexus_tasks.storage import embeddings
from nexus_tasks.tasks import finish_dream
from tests.integration.inline import NAMESPACE, pending, say, work
from tests.sandbox import Sandbox, engine


@pytest.fixture
def here(deploy: Callable[..., Sandbox]) -> Sandbox:
    """Everything is wanted after a single message."""
    return deploy(
        NEXUS_REFLECT_MIN_NEW="1", NEXUS_OBSERVATION_BUFFER_TOKENS="10", NEXUS_OBSERVATION_MESSAGE_TOKENS="20"
    )


def derivation(_here: Sandbox) -> None:
    say("I like green tea.")


def digest(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")
    Nexus().digest(NAMESPACE, "chat")


def open_dream(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")
    finish_dream.start(default_deployment(), NAMESPACE)


def facts(_here: Sandbox) -> None:
    say("I like green tea.")
    work("derive_memory")


def gap(_here: Sandbox) -> None:
    Nexus().create_namespace(NAMESPACE)
    with default_deployment().database.transaction() as tx:
        known = default_deployment().namespace(NAMESPACE)
        assert known is not None
        embeddings.record_gap(tx, known.id)


def unobserved(_here: Sandbox) -> None:
    say("I like green tea. " * 10, observe=True)


def long_log(here: Sandbox) -> None:
    say("I like green tea.", observe=True)
    here.sql("UPDATE observation_logs SET reflecting = 'wanted'")


def batch(here: Sandbox) -> None:
    say("I like green tea.")
    here.sql(
        "INSERT INTO batch_requests (namespace_id, request_hash, job_id, purpose, model, params, sources)"
        " SELECT id, 'hash', 'job', 'digest', 'model', '{}', '{}' FROM namespaces"
    )


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("derive_memory", derivation),
        ("digest_session", digest),
        ("finish_dream", open_dream),
        ("reflect_perspective", facts),
        ("embed_memories", gap),
        ("observe_session", unobserved),
        ("reflect_observations", long_log),
        ("submit_batch", batch),
    ],
)
def test_what_postgres_wants_outlives_a_flush(here: Sandbox, kind: str, wanted: Callable[[Sandbox], None]) -> None:
    wanted(here)
    here.flush()
    assert pending() == []
    Sweeper(engine).tick()
    assert kind in {claim.kind for claim in pending()}
