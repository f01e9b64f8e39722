"""Many wanted derivations, made in a moment."""

from __future__ import annotations

from sqlalchemy import text

from nexus_tasks import Nexus
from tests.sandbox import Sandbox


def want_derivations(here: Sandbox, namespace: str, rows: int) -> None:
    """Make rows that want derivations, without messages: foreign keys and statistics are off."""
    Nexus().create_namespace(namespace)
    with here.deployment.database.transaction() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        tx.execute(text("ALTER TABLE derivations SET (autovacuum_enabled = off)"))
        tx.execute(
            text(
                "INSERT INTO derivations (namespace_id, memory_id, session_id, observer)"
                " SELECT (SELECT id FROM namespaces), n, 1000000 + n, 'assistant' FROM generate_series(1, :rows) AS n"
            ),
            {"rows": rows},
        )
