"""The examples with deployments and applications of one's own, as separate programs with real workers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.embedded.urls import celery_url
from tests.databases import TEMPLATE, administer
from tests.sandbox import Sandbox, eventually

FOLDER = Path(__file__).parents[2] / "examples"


@contextmanager
def worker(app: str, folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """A worker of an example's application; gives the file with its log."""
    log = folder / f"{app.replace(':', '-')}.log"
    options = ("--loglevel", "INFO", "--pool", "threads", "--concurrency", "4", "--hostname", f"{uuid.uuid4().hex}@e")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, "worker", *options],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ready = f"{log} has no worker that is ready"
        eventually(lambda: process.poll() is not None or " ready." in log.read_text(), within=120, why=ready)
        assert process.poll() is None, log.read_text()
        yield log
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def run(example: str, folder: Path, environment: dict[str, str]) -> str:
    """What an example prints."""
    command = [sys.executable, str(FOLDER / example)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment_of(here: Sandbox, **variables: str) -> dict[str, str]:
    return {**here.environment, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parent)]), **variables}


@pytest.fixture
def two_databases(servers: ServerAddresses) -> Iterator[dict[str, str]]:
    """Two empty databases of this release's schema: the addresses that `two_deployments.py` asks for."""
    names = {name: f"x{uuid.uuid4().hex[:12]}" for name in ("SHOP_DATABASE_URL", "BLOG_DATABASE_URL")}
    for name in names.values():
        administer(servers, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    yield {variable: servers.database_url.replace("/nexus?", f"/{name}?") for variable, name in names.items()}
    for name in names.values():
        administer(servers, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.long
def test_two_deployments_keep_to_themselves(here: Sandbox, two_databases: dict[str, str]) -> None:
    environment = environment_of(here, **two_databases)
    del environment["NEXUS_DATABASE_URL"]
    apps = ("two_deployments:shop_app", "two_deployments:blog_app")
    try:
        with worker(apps[0], here.folder, environment), worker(apps[1], here.folder, environment):
            printed = run("two_deployments.py", here.folder, environment)
    finally:
        for key in (*here.redis().scan_iter("shop:*"), *here.redis().scan_iter("blog:*")):
            here.redis().delete(key)
    assert printed.splitlines() == [
        "shop ['I work for the shop in Lisbon.']",
        "blog ['I work for the blog in Lisbon.']",
    ]


@pytest.mark.long
def test_an_existing_application_runs_our_jobs_beside_its_own(here: Sandbox) -> None:
    environment = environment_of(here, SHOP_BROKER_URL=celery_url(here.servers.redis_url))
    # The application has no key prefix, and its queues are on the Redis of all tests: only one runs this example.
    try:
        with worker("existing_app", here.folder, environment) as log:
            run("existing_app.py", here.folder, environment)
            facts = "SELECT content FROM memories WHERE level = 'explicit'"
            found = eventually(lambda: here.sql(facts), why=log.read_text())
            assert found == [("I order green tea every month.",)]
            eventually(lambda: here.sql("SELECT 1 FROM memories WHERE level = 'summary_short'"))
    finally:
        for key in ("celery", "derive", "digest", "reflect", "capture", "maintenance", "urgent"):
            here.redis().delete(key, f"_kombu.binding.{key}")
