"""Statements about very many memories: Postgres takes at most 65,535 parameters in one."""

from __future__ import annotations

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import dreams, memories, messages
from nexus_tasks.storage.models import Dream
from tests.integration.inline import NAMESPACE, say, statements
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
