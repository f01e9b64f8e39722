"""Behind PgBouncer in the mode `transaction`, clients of several tenants share one session of Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from nexus_tasks import Message, Nexus, Settings
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.storage import tenancy
from tests import pgbouncer
from tests.sandbox import Sandbox

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(pgbouncer.missing()), reason=pgbouncer.missing() or "PgBouncer is here"),
]
TENANTS = ("hotel", "museum")
SEEN = text(
    "SELECT current_user, coalesce(nullif(current_setting('nexus.namespaces', true), ''), '-'), pg_backend_pid(),"
    " (SELECT string_agg(DISTINCT name, ',') FROM namespaces)"
)


@pytest.fixture
def behind(here: Sandbox) -> Iterator[Deployment]:
    """The deployment of the test, through a PgBouncer with one connection."""
    for tenant in TENANTS:
        Nexus().remember(tenant, f"The plan of {tenant} is a secret.")
    with pgbouncer.pooled(here.database_url) as url:
        deployment = Deployment(
            Settings(database_url=url, redis_url=here.servers.redis_url, key_prefix=here.name, home=here.folder)
        )
        try:
            yield deployment
        finally:
            deployment.close()


def test_the_limit_of_a_tenant_does_not_reach_the_next_client_of_the_session(behind: Deployment) -> None:
    database, sessions = behind.database, set[int]()
    for _ in range(20):
        for tenant in TENANTS:
            with tenancy.limited_to([tenant]), database.transaction() as tx:
                user, setting, session, names = tx.execute(SEEN).one()
                assert (user, setting, names) == (tenancy.ROLE, tenant, tenant)
                sessions.add(session)
        with database.transaction() as tx:  # without a limit
            user, setting, session, names = tx.execute(SEEN).one()
            assert (user, setting, names) == ("nexus", "-", "hotel,museum")
            sessions.add(session)
        with pytest.raises(ZeroDivisionError), tenancy.limited_to(["hotel"]), database.transaction() as tx:
            raise ZeroDivisionError(tx.execute(SEEN).one())
    assert len(sessions) == 1, "all clients share one session of Postgres"


def test_clients_of_two_tenants_at_once_see_their_own_rows(behind: Deployment) -> None:
    def use(number: int) -> None:
        tenant, other = TENANTS[number % 2], TENANTS[1 - number % 2]
        nexus = Nexus(behind, namespaces=[tenant])
        for turn in range(8):
            nexus.ingest(tenant, f"chat-{number}", [Message(content=f"{tenant} says {turn}.", id=str(turn))])
            assert {one.namespace for one in nexus.namespaces()} == {tenant}
            found = nexus.search(tenant, "the plan is a secret", limit=50)
            assert found
            assert not [hit for hit in found if other in hit.content]
            with pytest.raises(NotFound):
                nexus.session(tenant, f"chat-{number}-of-nobody")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))
    contents = [one.content for one in Nexus(behind).memories("hotel", limit=1_000)]
    assert len(contents) == 1 + 3 * 8
    assert not [one for one in contents if "museum" in one]
