"""How many statements of Postgres a call of ``ingest`` takes: a round trip takes longer than storing a message."""

from __future__ import annotations

from nexus_tasks import Message, Nexus
from tests.integration.inline import statements
from tests.sandbox import Sandbox


def test_a_call_takes_four_statements_however_many_messages_it_has(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat", [Message(content="I moved to Lisbon.")])
    for count in (1, 50):
        with statements(here) as found:
            nexus.ingest("acme", "chat", [Message(content=f"I bought {n + 2} of {count} books.") for n in range(count)])
        assert len(found) == 4, found  # the namespace, the session, which messages are known, and the new ones


def test_a_call_that_repeats_a_message_writes_nothing(here: Sandbox) -> None:
    nexus, said = Nexus(), [Message(id="m1", content="I moved to Lisbon.")]
    nexus.ingest("acme", "chat", said)
    with statements(here) as found:
        assert nexus.ingest("acme", "chat", said).duplicates == 1
    assert not [one for one in found if "INSERT" in one or "UPDATE " in one.replace("FOR UPDATE", "")]


def test_what_one_statement_writes_is_whole(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat", [Message(content="One."), Message(content="Two.")], observers=["ann", "bo"], end=True)
    nexus.ingest("acme", "chat", [Message(content="Three.")], observers=[])
    assert here.sql("SELECT last_seq, ended_at FROM sessions") == [(3, None)]  # the new message has opened it again
    assert here.sql("SELECT seq, content FROM memories ORDER BY id") == [(1, "One."), (2, "Two."), (3, "Three.")]
    wanted = "SELECT m.seq, d.observer FROM derivations d JOIN memories m ON m.id = d.memory_id ORDER BY d.id"
    assert here.sql(wanted) == [(1, "ann"), (1, "bo"), (2, "ann"), (2, "bo")]
    assert len(here.sql("SELECT 1 FROM embedding_gaps")) == 1  # no derivation embeds the third
