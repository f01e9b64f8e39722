"""The guard that finds a second transaction inside an open one."""

from __future__ import annotations

from typing import Any

from nexus_tasks.storage.engine import Database
from tests import pools
from tests.sandbox import Sandbox

PRODUCT = """
def outer(database):
    with database.transaction():
        with database.reading():
            pass

def after(database):
    for _ in range(2):
        with database.snapshot():
            pass
    with database.dedicated_connection():
        with database.transaction():
            pass

def calling(database, call):
    with database.transaction():
        call(database)
"""


def test_a_second_transaction_is_found_and_what_a_test_opens_is_not(
    here: Sandbox, watched_pools: pools.Nesting
) -> None:
    database, product = here.deployment.database, dict[str, Any]()
    exec(compile(PRODUCT, "/nexus_tasks/made_up.py", "exec"), product)

    def opens(given: Database) -> None:
        with given.transaction():
            pass

    product["after"](database)
    product["calling"](database, opens)
    with database.transaction():
        product["after"](database)
    assert watched_pools.found == []
    product["outer"](database)
    [found] = watched_pools.found
    assert found.count("made_up.py") == 2
    watched_pools.found.clear()
