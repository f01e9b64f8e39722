"""The documented job kind of one's own, in a real worker."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from nexus_tasks import Nexus
from tests.integration.inline import NAMESPACE, say
from tests.sandbox import Sandbox, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_words.py"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "job-kinds.md"


def test_a_job_kind_of_ones_own_runs_in_a_worker(here: Sandbox) -> None:
    spec = importlib.util.spec_from_file_location("count_words", EXAMPLE)
    assert spec
    assert spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    say("One two three.", "Four five.")
    job = example.count_words.delay(namespace=NAMESPACE, session_key="chat")
    again = example.count_words.delay(namespace=NAMESPACE, session_key="chat", longer_than=3)
    assert (again.id, again.created) == (job.id, False), "the same scope is the same work"
    here.worker("--include", "count_words", PYTHONPATH=os.pathsep.join([str(EXAMPLE.parent)]))
    outcome = job.wait(timeout=120)
    assert (outcome.status, outcome.details["words"]) == ("completed", 3), "the newest request gives the other values"
    # Its effects are committed; its claim ends a moment later.
    eventually(lambda: Nexus().job(job.id).status == "completed", within=60)
    assert Nexus().job(job.id).kind == "count_words.count_words"


def test_the_page_shows_the_example_as_it_is() -> None:
    code = EXAMPLE.read_text().split('"""\n', 1)[1].strip()
    assert code in DOCUMENTED.read_text()
