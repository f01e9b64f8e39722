"""Sentry's SDK sends one event for each dead letter, to a real HTTP endpoint; none for what passes; and no text."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nexus_tasks import Nexus
from tests.integration.jobkinds import ROOT, WITH_KINDS, play, play_briefly
from tests.sandbox import Sandbox, eventually

pytest.importorskip("sentry_sdk")
pytestmark = pytest.mark.long
SECRET = "quokka-sk-ant-api03-PLANTED"
LONG = 60.0


class Tracker:
    """A Sentry: it takes envelopes, and keeps their events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.raw = b""
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                tracker._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://public@127.0.0.1:{self.server.server_address[1]}/1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _take(self, envelope: bytes) -> None:
        self.raw += envelope
        lines = envelope.split(b"\n")
        for about, item in zip(lines[1::2], lines[2::2], strict=False):
            if about and json.loads(about)["type"] == "event":
                self.events.append(json.loads(item))

    def of(self, job_id: str) -> list[dict[str, Any]]:
        """The events about a job."""
        return [event for event in self.events if event["extra"].get("job") == job_id]


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    tracker = Tracker()
    yield tracker
    tracker.server.shutdown()
    tracker.server.server_close()


def frames(event: dict[str, Any]) -> list[str]:
    stacks = [one.get("stacktrace", {}).get("frames", []) for one in event["exception"]["values"]]
    return [frame["function"] for stack in stacks for frame in stack]


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_dead_letter_is_one_event_with_its_stack(deploy: Callable[..., Sandbox], tracker: Tracker, pool: str) -> None:
    here = deploy(NEXUS_MAX_ATTEMPTS="2", NEXUS_LEASE_SECONDS="3")
    Nexus().create_namespace("acme")
    (here.folder / "leaky.py").write_text(
        "from tests.integration import jobkinds\n"
        "from nexus_tasks.errors import Permanent\n"
        f"jobkinds.ERRORS['leak'] = lambda: Permanent('{SECRET}')\n"
    )
    worker = here.worker(
        "--include",
        f"{WITH_KINDS[1]},leaky",
        pool=pool,
        concurrency=8,
        SENTRY_DSN=tracker.dsn,
        PYTHONPATH=f"{here.folder}:{ROOT['PYTHONPATH']}",
    )
    dead = {
        "Permanent": play.delay(name="permanent", plan=("leak",)).id,
        "ZeroDivisionError": play.delay(name="bug", plan=("bug",)).id,
        "RanTooLong": play_briefly.delay(name="hang", plan=("hang",)).id,
    }
    passing = [
        play.delay(name="transient", plan=("transient", "ok")),
        play.delay(name="mended", plan=("bug", "ok")),
        play.delay(name="waits", plan=("wait",)),
    ]
    for error, job_id in dead.items():
        eventually(lambda j=job_id: tracker.of(j), within=LONG, why=f"{error}\n{worker.text()}")
        [event] = tracker.of(job_id)
        assert event["exception"]["values"][-1]["type"] == error
        assert (event["tags"]["job"], event["level"]) == (job_id, "error")
        if error != "RanTooLong":  # its stack is in the text of the error, in the dead letter
            assert "perform" in frames(event)
    for one in passing[:2]:
        assert one.wait(timeout=LONG).status == "completed"
    worker.stop()
    assert len(tracker.events) == len(dead), [event.get("logentry") for event in tracker.events]
    assert SECRET.encode() not in tracker.raw
    assert here.database_url.encode() not in tracker.raw


def test_a_job_whose_workers_died_is_one_event(deploy: Callable[..., Sandbox], tracker: Tracker) -> None:
    here = deploy(NEXUS_MAX_ATTEMPTS="2", NEXUS_LEASE_SECONDS="3")
    Nexus().create_namespace("acme")
    here.worker(*WITH_KINDS, pool="processes", concurrency=1, SENTRY_DSN=tracker.dsn, **ROOT)
    asked = play.delay(plan=("kill",))
    eventually(lambda: tracker.of(asked.id), within=LONG)
    here.workers[0].stop()
    [event] = tracker.of(asked.id)
    assert event["tags"] == {"job": asked.id, "kind": "play"}


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_beside_the_integration_for_celery_it_is_one_event_too(
    deploy: Callable[..., Sandbox], tracker: Tracker, pool: str
) -> None:
    """An application that has started the SDK itself, with all that the SDK turns on by itself."""
    here = deploy(NEXUS_MAX_ATTEMPTS="2")
    Nexus().create_namespace("acme")
    (here.folder / "tracked.py").write_text("import sentry_sdk\nsentry_sdk.init(include_local_variables=False)\n")
    worker = here.worker(
        "--include",
        f"tracked,{WITH_KINDS[1]}",
        pool=pool,
        concurrency=2,
        SENTRY_DSN=tracker.dsn,
        PYTHONPATH=f"{here.folder}:{ROOT['PYTHONPATH']}",
    )
    dead = [play.delay(name=plan, plan=(plan,)).id for plan in ("permanent", "bug")]
    mended = play.delay(name="mended", plan=("bug", "ok"))
    for job_id in dead:
        eventually(lambda j=job_id: tracker.of(j), within=LONG)
    assert mended.wait(timeout=LONG).status == "completed"
    worker.stop()
    assert len(tracker.events) == 2
    assert all("perform" in frames(event) for event in tracker.events)
