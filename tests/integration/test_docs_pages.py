"""Every page of the docs, executed in order in one Python, as its reader pastes it; each page has its own namespaces.

A worker runs between the blocks, and the page prints what it says. The README, the tutorial, and the pages on the
buffer and on coding agents, are executed by ``tests/acceptance`` with the real stack.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import Permanent
from tests import prometheus
from tests.cells import AS_MADE
from tests.collector import collecting
from tests.databases import TEMPLATE, administer
from tests.integration.inline import time_passes, waiting, work, work_as_asked
from tests.integration.jobkinds import BODIES, play
from tests.pages import PAGES, ROOT, RUNNABLE, Reader, blocks, commands
from tests.sandbox import Sandbox, eventually
from tests.standin import StandIn

DOCS = ROOT / "docs"
INLINE = (
    "asking",
    "cognition",
    "coming-from-honcho",
    "coming-from-mem0",
    "correcting",
    "embeddings",
    "erasure",
    "extraction",
    "job-kinds",
    "limits",
    "mcp",
    "observation",
    "operating",
    "recall",
    "secrets",
    "tenants",
    "webhooks",
)
ELSEWHERE = {
    "adapters": "tests/adapters/test_page.py",
    "README": "tests/acceptance/test_first_pages.py",
    "tutorial": "tests/acceptance/test_first_pages.py",
    "http": "tests/integration/test_http_page.py",
    "buffer": "tests/acceptance/test_capture_docs.py",
    "coding-agents": "tests/acceptance/test_capture_docs.py",
}
# each has a test of its own below
ALONE = ("cells", "cost", "deployments", "flower", "jobs", "models", "monitoring", "tracing")
LEFT_OUT = {
    "nexus mcp --http 8000": "its port may be taken; tests/integration/test_mcp.py serves HTTP on a free port",
    "nexus mcp --http 0.0.0.0:8000": "the same",
    "NEXUS_EMBEDDER=sentence-transformers nexus db reembed": "needs a model from the network",
    "nexus db reembed --drop-others": "follows the command that is left out",
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some blocks write files into the current folder."""
    monkeypatch.chdir(tmp_path)


def worker(here: Sandbox) -> None:
    """Do everything that was asked for, as a worker that has all the time in the world."""
    work()
    for _ in range(5):
        if waiting():
            time_passes(here)
            work()


def patient_worker(here: Sandbox) -> None:
    """The same, but as live or patient as it was asked for: what a dream asks for goes through a batch."""
    work_as_asked()
    for _ in range(5):
        here.sql("UPDATE message_batches SET due_at = now() - interval '1 s'")
        time_passes(here)
        work_as_asked()


def reader(here: Sandbox, **placeholders: Callable[[], str]) -> Reader:
    return Reader(here, lambda: worker(here), placeholders=placeholders, left_out=LEFT_OUT)


def newest_memory() -> str:
    return str(max(one.id for one in Nexus().memories("attic", levels=["raw"])))


def newest_job() -> str:
    return Nexus().jobs(namespace="canteen", status="dead")[0].id


@pytest.mark.parametrize("page", INLINE)
def test_the_page_prints_what_it_says(here: Sandbox, page: str, capfd: pytest.CaptureFixture[str]) -> None:
    one = reader(here, M=newest_memory, TOKEN=lambda: Nexus().tokens("hotel")[0].id, JOB=newest_job)
    one.execute(DOCS / f"{page}.md")
    left = {"observation": "## Recent messages\n[m1] ", "mcp": "[m1] "}.get(page)
    # The client over standard output runs in an event loop of its own, which prints past the redirection of a block.
    assert (left is None and not one.printed) or left in one.printed + capfd.readouterr().out


@pytest.mark.long
def test_a_dead_letter_is_replayed_by_processes_that_only_follow_the_page(here: Sandbox) -> None:
    """The worker, the program and the commands know the kind through the page's files and variables alone."""
    page = blocks(DOCS / "operating.md")
    kind, ask, wait, mend = [text for language, text in page if language == "python"]
    [settings] = [text for language, text in page if language == "ini"]
    [start] = [text for language, text in page if language == "sh" and "celery" in text]
    exported = start.splitlines()[0].removeprefix("export ").split()
    variables = dict(one.split("=", 1) for one in exported) | {"NEXUS_HOME": str(here.folder / "home")}
    (here.folder / "practice.py").write_text(kind)
    (here.folder / "celeryconfig.py").write_text(settings)

    def run(*command: str) -> str:
        env = {**here.environment, **variables}
        done = subprocess.run(
            [sys.executable, *command],
            env=env,
            cwd=here.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
        return done.stdout

    def nexus(*words: str) -> str:
        return run("-m", "nexus_tasks.cli.main", *words)

    here.worker(**variables)
    assert run("-c", f"from practice import *\n{ask}{wait}") == "JobFailed\n"
    [dead] = json.loads(nexus("jobs", "list", "--status", "dead", "--namespace", "canteen", "--json"))["jobs"]
    assert "menu.txt is missing" in nexus("jobs", "show", dead["id"])
    run("-c", f"from practice import *\n{mend}")
    nexus("jobs", "retry", dead["id"])
    done = ["jobs", "list", "--status", "completed", "--namespace", "canteen", "--json"]
    eventually(lambda: json.loads(nexus(*done))["jobs"], within=30)


def test_the_page_on_cost_prints_what_it_says(claude: Callable[..., Sandbox]) -> None:
    here = claude(NEXUS_BATCH_THRESHOLD="1")
    one = Reader(here, lambda: patient_worker(here))
    one.execute(DOCS / "cost.md")
    assert one.printed == ""


def test_the_page_on_models_prints_what_it_says(deploy: Callable[..., Sandbox], standin: StandIn) -> None:
    standin.models.add("qwen3:8b")
    here = deploy(
        **{
            **standin.environment(),
            **standin.openai_environment(),
            "NEXUS_MODEL": "anthropic",
            "NEXUS_MODEL_REFLECT": "offline",
            "NEXUS_MODEL_DIGEST": "openai/qwen3:8b",
        }
    )
    one = reader(here)
    one.execute(DOCS / "models.md")
    assert one.printed == ""


@pytest.fixture
def staging(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second deployment of the page on deployments: an empty database and keys of its own."""
    name = f"x{uuid.uuid4().hex[:12]}"
    administer(here.servers, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    monkeypatch.setenv("STAGING_DATABASE_URL", here.servers.database_url.replace("/nexus?", f"/{name}?"))
    monkeypatch.setenv("STAGING_REDIS_URL", here.servers.redis_url)
    monkeypatch.setenv("STAGING_HOME", str(here.folder / "staging"))
    yield
    for key in here.redis().scan_iter("staging:*"):
        here.redis().delete(key)
    administer(here.servers, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.usefixtures("staging")
@pytest.mark.long
def test_the_page_on_deployments_works_as_written(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_DATABASE_URL", "BLOG_DATABASE_URL"):
        monkeypatch.setenv(name, here.database_url)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "examples"), str(ROOT)]))
    one = reader(here)
    try:
        one.execute(DOCS / "deployments.md")
    finally:
        for name in ("staging", "nexus", "deployment"):
            if deployment := getattr(one.program.get(name), "deployment", one.program.get(name)):
                getattr(deployment, "close", lambda: None)()


@pytest.mark.long
def test_the_page_on_cells_works_as_written(
    deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = deploy(), deploy()
    for name, here in (("ONE", one), ("TWO", two)):
        monkeypatch.setenv(f"{name}_DATABASE_URL", here.database_url)
    monkeypatch.setenv("REDIS_URL", one.environment["NEXUS_REDIS_URL"])
    page = DOCS / "cells.md"
    [file] = [text for language, text in blocks(page) if language == "json"]
    (tmp_path / "cells.json").write_text(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEXUS_CELLS", str(tmp_path / "cells.json"))
    reading = Reader(two, lambda: None)
    try:
        reading.execute(page)
        assert reading.printed == ""
        assert one.sql("SELECT name, residence FROM namespaces") == [("quay", "here")]
        assert two.sql("SELECT name, residence FROM namespaces") == [("quay", "left")]
    finally:
        reading.program["nexus"].cells.close()
        for here in (one, two):
            here.sql(AS_MADE)
        for name in ("one", "two"):
            for key in one.redis().scan_iter(f"{name}:*"):
                one.redis().delete(key)


@pytest.mark.long
def test_the_page_on_flower_works_as_written(here: Sandbox) -> None:
    reader(here).execute(DOCS / "flower.md")


@pytest.mark.long
def test_the_page_on_monitoring_works_as_written(here: Sandbox) -> None:
    (here.folder / "deploy").symlink_to(ROOT / "deploy")
    one = reader(here)
    if why := prometheus.missing():
        one.left_out["prometheus"] = why
    one.execute(DOCS / "monitoring.md")


@pytest.mark.long
def test_the_page_on_tracing_works_as_written(here: Sandbox) -> None:
    with collecting() as collector:
        here.environment |= collector.environment
        reader(here).execute(DOCS / "tracing.md")
        traces = {span.name: span.trace for span in collector.spans}
        asked = {span.name for span in collector.spans if span.trace == traces["checkout"]}
    assert {"checkout", "nexus.remember", "nexus.ingest"} <= asked
    assert all(span.parent for span in collector.named("nexus.ingest"))


@pytest.mark.long
def test_the_page_on_jobs_works_as_written(here: Sandbox) -> None:
    Nexus().create_namespace("acme")

    def give_up(*_: object) -> None:
        raise Permanent("never")

    BODIES["a"] = give_up
    BODIES["b"] = give_up
    first, second = (str(play.delay(name=name).id) for name in ("a", "b"))
    work()
    BODIES.clear()
    one = reader(here, JOB=lambda: first, ANOTHER=lambda: second, ID=lambda: "nonesuch")
    one.execute(DOCS / "jobs.md")


# --- guards -----------------------------------------------------------------------------------------------------------
def test_every_page_with_a_block_is_executed() -> None:
    found = {page.stem for page in PAGES if any(block.language in RUNNABLE for block in blocks(page))}
    assert found == {*INLINE, *ALONE, *ELSEWHERE}


def test_what_is_left_out_is_on_a_page() -> None:
    lines = {line for page in PAGES for block in blocks(page) for line in commands(block.text)}
    assert [one for one in LEFT_OUT if not any(line.startswith(one) for line in lines)] == []


def test_no_two_pages_use_one_namespace() -> None:
    """A reader pastes one page after another: the names of the second one must not be those of the first."""
    users = defaultdict(set)
    for page in PAGES:
        for language, text in blocks(page):
            if language in RUNNABLE:
                for name in _namespaces(text):
                    users[name].add(page.stem)
    assert len(users) >= len(INLINE)
    assert {name: pages for name, pages in users.items() if len(pages) > 1} == {}


def _namespaces(text: str) -> set[str]:
    called = r"(?:nexus|Nexus\(\w*\)|buffer)\.\w+\(\s*\"([\w.-]+)\"|namespace=\"([\w.-]+)\""
    typed = r"--namespace (\w[\w.-]*)|nexus (?:dream|jobs pause|namespaces set) (\w[\w.-]*)"
    return {name for found in re.findall(f"{called}|{typed}", text) for name in found if name}


def test_the_tutorials_line_of_jsonl_is_stored_after_its_python() -> None:
    [program] = [text for language, text in blocks(DOCS / "tutorial.md") if language == "python"]
    [line] = [json.loads(text) for language, text in blocks(DOCS / "tutorial.md") if language == "json"]
    assert f'"{line["session"]}"' not in program


def test_the_json_of_the_page_on_mcp_names_the_server_of_its_python() -> None:
    [config] = [json.loads(text) for language, text in blocks(DOCS / "mcp.md") if language == "json"]
    [program] = [text for language, text in blocks(DOCS / "mcp.md") if language == "python"]
    server = config["mcpServers"]["memory"]
    assert server["command"] == "nexus"
    assert json.dumps(server["args"])[1:-1] in program
