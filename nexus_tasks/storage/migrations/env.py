"""Alembic's entry point: the connection comes from :mod:`nexus_tasks.storage.schema`."""

from alembic import context

from nexus_tasks.storage.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
