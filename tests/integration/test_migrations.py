"""Migrations: from empty to exactly the models, and back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from sqlalchemy import create_engine, inspect

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.storage import schema
from tests.databases import administer


@pytest.fixture
def empty(servers: ServerAddresses) -> Iterator[str]:
    """The address of an empty database."""
    administer(servers, "CREATE DATABASE migrations")
    yield servers.database_url.replace("/nexus?", "/migrations?")
    administer(servers, "DROP DATABASE migrations WITH (FORCE)")


def test_upgraded_from_empty_equals_the_models(empty: str) -> None:
    schema.upgrade(empty)
    found, needed = schema.versions(empty)
    assert found == needed
    engine = create_engine(empty)
    with engine.begin() as connection:
        settings = schema.config(empty)
        settings.attributes["connection"] = connection
        command.check(settings)  # raises when a model and its table differ
    engine.dispose()


def test_up_down_up(empty: str) -> None:
    schema.upgrade(empty)
    schema.downgrade(empty, "base")
    engine = create_engine(empty)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
    schema.upgrade(empty)
    schema.upgrade(empty)


def test_two_that_upgrade_at_once_take_turns(empty: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(schema.upgrade, [empty, empty]))
    found, needed = schema.versions(empty)
    assert found == needed
