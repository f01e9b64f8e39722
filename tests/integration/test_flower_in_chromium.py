"""Flower in a real Chromium: workers, a dream in flight, a retry, a dead letter, and what its buttons do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from nexus_tasks import Nexus
from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.inline import facts, say
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, play
from tests.integration.test_browser_in_chromium import CHROMIUM, QUIET, missing
from tests.rabbitmq import free_ports
from tests.sandbox import Sandbox, engine, eventually
from tests.standin import StandIn, faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing() or "Chromium is here")]


@contextmanager
def flower(here: Sandbox) -> Iterator[str]:
    """Flower as the docs start it; its address."""
    [port] = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.flower_app:app", "flower"]
    with (here.folder / "flower.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--port={port}", f"--address={LOOPBACK}"],
            env={**here.environment, **ROOT, "FLOWER_UNAUTHENTICATED_API": "true"},
            cwd=here.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: process.poll() is not None or answers(url), within=60)
        assert process.poll() is None, (here.folder / "flower.log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def told(page: Page, url: str, job_id: str) -> str:
    """What the page of a message says; empty before Flower has heard of it."""
    answer = page.goto(f"{url}/task/{job_id}")
    return page.locator("#task-page").inner_text() if answer and answer.ok else ""


def ended(name: str) -> tuple[str, str] | None:
    """Id and status of the last run of a name, as its claim has them."""
    return engine.claims.marker(engine.claims.key(play.request_for(Play(name=name))))


@pytest.mark.timeout(300)
def test_flower_shows_what_is_true_and_its_buttons_do_what_they_say(
    claude: Callable[..., Sandbox], standin: StandIn
) -> None:
    from playwright.sync_api import sync_playwright

    here = claude(NEXUS_DERIVE_MAX_WAIT="0")
    worker = here.worker(*WITH_KINDS, **ROOT)
    for session in ("mon", "tue"):
        say("I live in Lisbon.", "I drink green tea.", session=session)
    eventually(lambda: len(facts()) >= 2)
    with flower(here) as url, sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        page = chromium.new_page(viewport={"width": 1400, "height": 700})

        def shows(job_id: str, *words: str) -> bool:
            text = told(page, url, job_id)
            return all(word in text for word in words)

        # Workers online.
        page.goto(f"{url}/workers")
        page.get_by_text(here.name).first.wait_for()
        page.get_by_text("Online").first.wait_for()
        # A dream whose digests wait for the model, a job that holds, one that is tried again, and a dead letter.
        standin.faults.extend(faults.slow(15.0) for _ in range(2))
        dream = Nexus().dream("acme")
        held = play.delay(name="held", plan=("hold",)).id
        again = play.delay(name="again", plan=("transient",)).id
        dead = play.delay(name="dead", plan=("permanent",)).id
        eventually(lambda: attempts("held"))
        assert eventually(lambda: shows(held, "STARTED"))
        assert eventually(lambda: shows(again, "RETRY", "away"))
        assert eventually(lambda: shows(dead, "FAILURE", "Permanent", "never"))
        page.goto(f"{url}/tasks")
        row = page.locator("#tasks-table tbody tr")
        row.filter(has_text="digest_session").filter(has_text="STARTED").first.wait_for()
        assert row.filter(has_text=dead).filter(has_text="FAILURE").count() == 1
        # What is true: the claims say the same.
        assert ended("dead") == (dead, "dead")
        assert [one.id for one in Nexus().jobs(namespace="acme", status="dead")] == [dead]
        # Revoke, by its button.
        assert eventually(lambda: shows(again, "RETRY"))
        page.locator("#task-revoke").click()
        assert eventually(lambda: ended("again")) == (again, "dropped")
        # Apply, by its API from the page.
        applied = page.evaluate(
            "async () => (await (await fetch('/api/task/async-apply/nexus_tasks.play', {method: 'POST',"
            " body: JSON.stringify({kwargs: {name: 'applied'}})})).json())['task-id']"
        )
        assert eventually(lambda: shows(applied, "SUCCESS", "completed"))
        assert len(attempts("applied")) == 1
        # The dream ends, and Flower says so.
        assert dream.wait(90).status == "completed"
        assert eventually(lambda: shows(dream.id, "SUCCESS"))
        worker.stop()
        page.goto(f"{url}/workers")
        eventually(lambda: page.reload() and page.get_by_text("Offline").count())
        chromium.close()
