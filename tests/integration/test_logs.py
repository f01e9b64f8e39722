"""Every line that a run logs names the job and its trace, in both pools; and no line has
the text of a message or of an answer that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks import Message, Nexus
from tests.collector import collecting
from tests.sandbox import Sandbox, Worker, eventually
from tests.standin import StandIn, faults

pytestmark = pytest.mark.long
BOTH_POOLS = pytest.mark.parametrize("pool", ["threads", "processes"])
TEXT, SECRET = "quokkas", "sk-ant-api03-PLANTEDPLANTEDPLANTEDPLANTED"
SAID = f"I keep {TEXT}, and my key is {SECRET}."
LONG = 40.0
TALKING = """
import logging
from nexus_tasks.tasks import derive_memory
from nexus_tasks.cognition import derive as module
derive = module.derive
def told(*args, **options):
    logging.getLogger("shop").warning("Within a run.")
    return derive(*args, **options)
module.derive = told
"""


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]


@BOTH_POOLS
def test_a_line_of_a_run_names_the_job_and_the_trace_that_the_collector_has(
    deploy: Callable[..., Sandbox], pool: str
) -> None:
    with collecting() as collector:
        here = deploy(NEXUS_LOG_FORMAT="json")
        here.environment |= collector.environment | {"PYTHONPATH": str(here.folder)}
        (here.folder / "talking.py").write_text(TALKING)
        worker = here.worker("--include", "talking", pool=pool, concurrency=2)
        Nexus().ingest("acme", "chat-1", [Message(content=SAID, author="ann")], end=True)
        [run] = eventually(lambda: collector.named("derive_memory", nexus_job_outcome="completed"), within=LONG)
        [told] = [one for one in lines(worker.text()) if one["logger"] == "shop"]
        job = run.attributes["nexus.job.id"]
        named = {name: told.get(name) for name in ("job", "kind", "namespace", "trace")}
        assert named == {"job": job, "kind": "derive_memory", "namespace": "acme", "trace": run.trace}


@BOTH_POOLS
def test_no_line_has_a_message_or_an_answer_that_cannot_be_read(
    claude: Callable[..., Sandbox], standin: StandIn, pool: str
) -> None:
    """The model answers with the user's words outside of the schema."""
    here = claude(NEXUS_MAX_ATTEMPTS="2", NEXUS_LOG_FORMAT="json", NEXUS_DERIVE_MAX_WAIT="0")
    worker = here.worker(pool=pool, concurrency=2)
    standin.always(faults.says(SAID))
    Nexus().ingest("says", TEXT, [Message(content=SAID, author=TEXT)])
    eventually(lambda: failed(worker, "says"), within=LONG)
    worker.stop()
    assert TEXT not in worker.text()
    assert SECRET not in worker.text()


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
@BOTH_POOLS
def test_no_line_has_a_prompt_or_an_argument_at_the_level_debug(
    deploy: Callable[..., Sandbox], standin: StandIn, pool: str, provider: str
) -> None:
    """The SDKs of both providers log each request as a whole."""
    speaks = standin.environment() if provider == "anthropic" else standin.openai_environment()
    here = deploy(**speaks, NEXUS_DERIVE_MAX_WAIT="0")
    worker = here.worker("--loglevel", "DEBUG", pool=pool, concurrency=2)
    Nexus().ingest("says", "chat", [Message(content=f"I keep {TEXT}.", author="ann")])
    eventually(lambda: standin.counters.calls and Nexus().memories("says", levels=["explicit"]), within=LONG)
    asked = subprocess.run(
        [sys.executable, "-m", "nexus_tasks.cli.main", "ask", "What does ann keep?", "--namespace", "says"],
        env={**here.environment, "NEXUS_LOG_LEVEL": "DEBUG"},
        capture_output=True,
        text=True,
        check=False,
    )
    worker.stop()
    assert standin.counters.calls >= 2
    assert "DEBUG" in worker.text()
    assert "DEBUG" in asked.stderr
    assert TEXT not in worker.text() + asked.stderr
    assert '"memory_id"' not in worker.text()  # an argument of a job


def failed(worker: Worker, namespace: str) -> list[dict[str, Any]]:
    """The lines that say how a job of the namespace failed."""
    named = [one for one in lines(worker.text()) if one.get("namespace") == namespace]
    return [one for one in named if one["level"] in ("WARNING", "ERROR")]
