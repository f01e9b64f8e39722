"""A worker whose database is not the one that the claims belong to touches no claim."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nexus_tasks import Nexus, reflect_namespace
from nexus_tasks.cli.main import app as cli
from nexus_tasks.errors import ForeignDatabase
from nexus_tasks.idempotency.worker.executor import execute
from nexus_tasks.idempotency.worker.identity import EX_CONFIG
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from tests.integration.inline import NAMESPACE, pending, say, waiting, work
from tests.sandbox import Sandbox, engine


@pytest.fixture
def elsewhere(here: Sandbox) -> Sandbox:
    """Production's claims, and a worker of staging: it has another database."""
    say("I like tea.")
    engine.storage.verify()
    here.sql("UPDATE database_identity SET id = 'staging'")
    here.sql("UPDATE namespaces SET name = 'staging'")
    here.deployment._namespaces.clear()
    return here


def test_it_does_not_start(elsewhere: Sandbox) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "nexus_tasks", "worker", "--loglevel", "INFO", "--pool", "threads"],
        env=elsewhere.environment,
        cwd=elsewhere.folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == EX_CONFIG, ended.stderr
    assert "belong to another database" in ended.stderr
    assert "nexus db accept" in ended.stderr
    assert len(pending()) == 1


def test_a_job_that_it_began_all_the_same_is_left_to_the_others(elsewhere: Sandbox) -> None:
    [claim] = pending()
    kind = engine.kind(claim.kind)
    request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
    assert execute(engine, kind, request, published_at="", eager=False).outcome.status == "superseded"
    assert [(one.wait_reason, one.wait_detail) for one in waiting()] == [("retry", "ForeignDatabase")]
    assert not engine.breaker.closed()  # it begins no other job
    with pytest.raises(ForeignDatabase):
        Reconciler(engine).round()
    elsewhere.sql("UPDATE namespaces SET name = :name", name=NAMESPACE)


def test_an_operator_accepts_a_database_that_takes_the_place_of_another(elsewhere: Sandbox) -> None:
    elsewhere.sql("UPDATE namespaces SET name = :name", name=NAMESPACE)
    result = CliRunner().invoke(cli, ["db", "accept", "--json"])
    assert result.exit_code == 0, result.output
    assert Reconciler(engine).round() == 0
    assert [one["status"] for one in work("derive_memory")] == ["completed"]


def test_after_a_flush_the_first_worker_decides_whose_the_claims_are(elsewhere: Sandbox) -> None:
    """What the page on guarantees says is not guaranteed. The right workers stop, and an operator sets it right."""
    elsewhere.flush()
    engine.storage.verify()  # the worker of staging comes first
    elsewhere.sql("UPDATE database_identity SET id = 'production'")
    with pytest.raises(ForeignDatabase):
        Reconciler(engine).round()
    assert not engine.breaker.closed()
    elsewhere.sql("UPDATE namespaces SET name = :name", name=NAMESPACE)
    assert CliRunner().invoke(cli, ["db", "accept"]).exit_code == 0
    assert Reconciler(engine).round() == 1, "what Postgres wants is asked for again"


@pytest.mark.usefixtures("here")
def test_a_job_of_a_namespace_that_nobody_made_says_so(caplog: pytest.LogCaptureFixture) -> None:
    Nexus().create_namespace(NAMESPACE)
    reflect_namespace.delay(namespace="acmee")
    assert [one["status"] for one in work()] == ["gone"]
    assert "there is no namespace 'acmee'" in caplog.text
