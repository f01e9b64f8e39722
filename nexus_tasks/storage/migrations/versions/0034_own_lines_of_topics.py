"""Remember which lines of a topic no extraction wrote, so that an erasure keeps them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("topics", sa.Column("own", sa.Text(), server_default="", nullable=False))
    # A topic without messages was imported, or written by hand.
    op.execute(
        "UPDATE topics SET own = concat_ws(E'\\n', filename, name, description, content)"
        " WHERE NOT EXISTS (SELECT FROM topic_sources WHERE topic_sources.topic_id = topics.id)"
    )


def downgrade() -> None:
    op.drop_column("topics", "own")
