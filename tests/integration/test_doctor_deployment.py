"""``nexus doctor`` finds planted faults of a deployment; the remedy that it names ends each of them."""

from __future__ import annotations

import json

import pytest

from nexus_tasks.cli.checks.claims import _clock
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


def test_clocks_that_differ_are_found() -> None:
    assert _clock({"Redis": 4.0, "Postgres": -4.0}).ok
    assert not _clock({"Redis": 0.0, "Postgres": -6.0}).ok
