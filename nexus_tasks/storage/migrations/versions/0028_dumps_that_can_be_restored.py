"""Let the functions behind the words of a memory find each other while a dump is restored.

``pg_restore`` sets an empty search path. The column ``tsv`` is made anew from ``search_terms``, which calls
``text_language`` by its bare name: the restore of the memories failed. No table is locked.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_FUNCTION = "ALTER FUNCTION search_terms(text) {}"


def upgrade() -> None:
    op.execute(_FUNCTION.format("SET search_path FROM CURRENT"))


def downgrade() -> None:
    op.execute(_FUNCTION.format("RESET search_path"))
