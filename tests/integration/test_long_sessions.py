"""The messages behind a place in a long session are read by an index, not by looking through the session."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, select

from nexus_tasks import Nexus
from nexus_tasks.storage import digests, messages, observations, sessions
from nexus_tasks.storage.models import SessionRow
from tests.integration.inline import NAMESPACE, say
from tests.sandbox import Sandbox

LONG = 5_000


def test_what_is_behind_a_place_of_a_long_session_is_read_by_an_index(here: Sandbox) -> None:
    say("I said 1.", observe=True)
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, level, seq, author, role, content, tokens, occurred_at)"
        " SELECT namespace_id, id, 'raw', n, 'ann', 'user', 'I said ' || n || '.', 4, now()"
        f" FROM sessions, generate_series(2, {LONG}) AS n"
    )
    here.sql(f"UPDATE sessions SET last_seq = {LONG}, digest_end_seq = {LONG - 5}")
    here.sql(f"UPDATE observation_logs SET observed_through_seq = {LONG - 5}")
    here.sql("ANALYZE")
    plans = dict[str, str]()

    def explain(connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
        if "seq > " in statement and "EXPLAIN" not in statement:
            plan = connection.connection.cursor().execute("EXPLAIN " + statement, values).fetchall()
            plans[statement] = "\n".join(line for (line,) in plan)

    event.listen(here.deployment.database.engine, "before_cursor_execute", explain)
    try:
        say("I say more.")
        nexus = Nexus()
        assert len(nexus.session(NAMESPACE, "chat", after=LONG - 5).said) == 6
        nexus.context(NAMESPACE, session_key="chat")
        nexus.memories(NAMESPACE, session_key="chat", levels=["explicit"])
        with here.deployment.database.transaction() as tx:
            session = tx.scalars(select(SessionRow)).one()
            assert len(messages.bounded(tx, session.id, LONG - 5, 10)[0]) == 6
            assert len(messages.bounded(tx, session.id, 0, 10, newest=True)[0]) == 10
            assert len(messages.unread(tx, session.id, LONG - 5, LONG)) == 4
            assert len(messages.window(tx, session.id, 0, LONG, limit=3)) == 3
            assert digests.window_end(tx, session.id, LONG - 5, 3) == LONG - 2
            assert len(digests.window_messages(tx, session.id, LONG - 5, LONG)) == 5
            assert sessions.count_undigested(tx, session)[0] == 6
            observations.stats(tx, session.namespace_id)
    finally:
        event.remove(here.deployment.database.engine, "before_cursor_execute", explain)
    assert len(plans) >= 8
    for statement, plan in plans.items():
        assert "uq_memories_session_seq" in plan, f"{statement}\n{plan}"
