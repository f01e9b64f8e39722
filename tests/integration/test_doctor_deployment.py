"""``nexus doctor`` finds planted faults of a deployment; the remedy that it names ends each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from nexus_tasks.cli.checks.claims import _clock
from nexus_tasks.cli.checks.workers import _all_connections
from tests.commandline import nexus
from tests.sandbox import Sandbox, engine


def checks() -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in json.loads(nexus("doctor", "--json").stdout)["checks"]}


@pytest.mark.usefixtures("here")
def test_a_deployment_in_order_has_no_fault() -> None:
    found = checks()
    assert [found[name]["ok"] for name in ("identity", "paused", "clock")] == [True, True, True]


def test_claims_of_another_database_are_found(here: Sandbox) -> None:
    here.redis().set(f"{here.name}:storage", "another")
    assert not checks()["identity"]["ok"]
    assert "nexus db accept" in str(checks()["identity"]["remedy"])
    assert nexus("db", "accept").returncode == 0
    assert checks()["identity"]["ok"]


@pytest.mark.usefixtures("here")
def test_a_paused_kind_is_found() -> None:
    engine.claims.pause("derive_memory", "The key is wrong.")
    assert checks()["paused"]["found"] == "derive_memory: The key is wrong."
    engine.claims.resume("derive_memory")
    assert checks()["paused"]["ok"]


@pytest.fixture
def poor_user(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user of Postgres that may only read, in the address of the deployment."""
    user = f"{here.name}_poor"
    here.sql(f"CREATE ROLE {user} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
    monkeypatch.setenv("NEXUS_DATABASE_URL", here.database_url.replace("://nexus@", f"://{user}@"))
    try:
        with here.another():
            yield user
    finally:
        here.sql(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_user_that_may_not_write_is_found(here: Sandbox, poor_user: str) -> None:
    found = checks()["rights"]
    assert not found["ok"]
    assert "may not read and write" in str(found["found"])
    [grant] = re.findall(f"`(GRANT .* TO {poor_user})`", str(found["remedy"]))
    here.sql(grant)
    assert checks()["rights"]["ok"]
    here.sql(f"REVOKE DELETE ON memories FROM {poor_user}")
    assert checks()["rights"]["found"] == f"{poor_user} may not read and write memories"


def test_a_user_that_may_have_few_connections_is_found(here: Sandbox, poor_user: str) -> None:
    assert _all_connections(20, 1).ok
    here.sql(f"ALTER ROLE {poor_user} CONNECTION LIMIT 4")
    found = _all_connections(20, 1)
    assert not found.ok
    [change] = re.findall("`(ALTER .*)`", found.remedy)
    here.sql(change)
    assert _all_connections(20, 1).ok
    here.sql(f"ALTER DATABASE {here.database_name} CONNECTION LIMIT 10")
    assert f"ALTER DATABASE {here.database_name} CONNECTION LIMIT 40" in _all_connections(20, 1).remedy
    here.sql(f"ALTER DATABASE {here.database_name} CONNECTION LIMIT -1")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"NEXUS_EMBEDDER": "minilm", "NEXUS_EMBEDDER_MODEL": "/nowhere"}, "NEXUS_EMBEDDER_MODEL|pip install"),
        (
            {
                "NEXUS_EMBEDDER": "openai-compatible",
                "NEXUS_EMBEDDER_URL": "http://127.0.0.1:1/v1",
                "NEXUS_EMBEDDER_MODEL": "none",
            },
            "NEXUS_EMBEDDER_URL|pip install",
        ),
    ],
    ids=["no model", "no server"],
)
def test_an_embedder_that_makes_no_vector_is_found(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], remedy: str
) -> None:
    assert checks()["embedder"]["ok"]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    found = checks()["embedder"]
    assert not found["ok"]
    assert re.search(remedy, str(found["remedy"]))


def test_clocks_that_differ_are_found() -> None:
    assert _clock({"Redis": 4.0, "Postgres": -4.0}).ok
    assert not _clock({"Redis": 0.0, "Postgres": -6.0}).ok
