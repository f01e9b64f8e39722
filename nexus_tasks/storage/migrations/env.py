"""Alembic's entry point. It runs migrations on the connection that :mod:`nexus_tasks.storage.schema` opens."""

from alembic import context

from nexus_tasks.storage.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    transaction_per_migration=True,  # so that no migration holds the locks of the one before
)
with context.begin_transaction():
    context.run_migrations()
