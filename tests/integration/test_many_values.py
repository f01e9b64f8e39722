"""Statements about very many memories: Postgres takes at most 65,535 parameters in one."""

from __future__ import annotations

import pytest
from sqlalchemy import literal, select

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import dreams, memories, messages
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Dream
from tests.integration.inline import NAMESPACE, facts, say, statements, work
from tests.sandbox import Sandbox

TOO_MANY = range(1, 70_001)


def test_a_session_of_33_000_messages_is_erased(here: Sandbox) -> None:
    """Before, such an erasure always failed, and said that Postgres was away."""
    say("The first of many.", observers=[])
    here.sql(
        "INSERT INTO memories"
        " (namespace_id, session_id, level, content, tokens, occurred_at, seq, role, author, message_key, standing)"
        " SELECT namespace_id, session_id, 'raw', 'Number ' || n, 3, occurred_at, n, 'user', 'ann', 'id:' || n, 5"
        " FROM memories CROSS JOIN generate_series(2, 33000) AS n"
    )
    here.sql("UPDATE sessions SET last_seq = 33000")
    receipt = Nexus().forget(NAMESPACE, session_key="chat")
    assert receipt.deleted["memories"] == len(receipt.ids) == 33_000
    assert here.sql("SELECT count(*) FROM memories") == [(0,)]


def test_what_is_erased_together_takes_few_statements(here: Sandbox) -> None:
    """Before, each message of an observed session took four statements, and its session stayed locked meanwhile."""
    say(*(f"Number {n}." for n in range(300)), observers=[], observe=True)
    with statements(here) as found:
        receipt = Nexus().forget(NAMESPACE, session_key="chat")
    assert receipt.deleted["memories"] == 300
    assert len(found) < 300


def test_a_text_may_cite_any_number_of_memories(here: Sandbox) -> None:
    """A person's message with 66,000 citations failed to be derived, and so did each context of its session."""
    [said] = say("I moved to Porto.", observers=[])
    [(session_id, namespace_id)] = here.sql("SELECT session_id, namespace_id FROM memories")
    with default_deployment().database.reading() as tx:
        assert memories.contents(tx, namespace_id, {said, *TOO_MANY}, characters=6) == {said: "I move"}
        assert [one.id for one in messages.cited(tx, session_id, set(TOO_MANY)).values()] == [said]


def test_a_dream_may_have_any_number_of_sessions(here: Sandbox) -> None:
    """A dream of more than 65,535 sessions never ended."""
    say("I moved to Porto.", observers=[])
    [(session_id,)] = here.sql("SELECT id FROM sessions")
    here.sql(
        "INSERT INTO digest_requests (namespace_id, session_id, reason)"
        " SELECT namespace_id, id, 'dream_digest' FROM sessions"
    )
    with default_deployment().database.reading() as tx:
        assert dreams.digests_to_come(tx, Dream(sessions=[session_id, *TOO_MANY])) == 1


@pytest.mark.parametrize("written", ["facts", "topics"])
def test_a_session_whose_words_are_compared_with_what_stays_is_erased(here: Sandbox, written: str) -> None:
    """The erasure failed with a `TypeError` when a session of 250 messages or more had a fact or a topic."""
    say(*(f"I keep thing {n} on shelf {n}." for n in range(300)), observers=[])
    [first, *_] = say("I moved to Porto.")
    if written == "facts":
        work("derive_memory")
        assert facts()
    else:
        here.sql(
            "INSERT INTO topics (namespace_id, filename, name, description, type, content, made_by)"
            " SELECT id, 'home.md', 'Home', 'Where Ann lives', 'project', 'Ann lives in Porto.', 'ann' FROM namespaces"
        )
        here.sql(
            "INSERT INTO topic_sources (topic_id, memory_id, namespace_id)"
            " SELECT t.id, :m, t.namespace_id FROM topics AS t",
            m=first,
        )
    Nexus().forget(NAMESPACE, session_key="chat")
    assert here.sql("SELECT count(*) FROM memories") == [(0,)]
    assert here.sql("SELECT count(*) FROM topics") == [(0,)]


def test_a_long_statement_may_be_read_in_parts(here: Sandbox) -> None:
    """Such a statement has a cursor in the server, and the driver cannot prepare it."""
    query = select(literal(1)).where(among(literal(69_999), TOO_MANY))
    with here.deployment.database.transaction() as tx:
        assert list(tx.execute(query, execution_options={"yield_per": 1}).scalars()) == [1]
