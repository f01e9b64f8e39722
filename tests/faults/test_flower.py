"""What people do from Flower while jobs run: apply, revoke, terminate. It listens on a socket file of the test."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, play
from tests.sandbox import Sandbox, app, engine, eventually

LONG = 90.0  # seconds: a deadline for a machine that is busy with other things

Ask = Callable[..., tuple[int, Any]]


class Client(http.client.HTTPConnection):
    """A connection to a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("flower", timeout=LONG)
        self.path = path

    def connect(self) -> None:
        """Called before the first request."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@pytest.fixture
def here(deploy: Callable[..., Sandbox]) -> Sandbox:
    """With a worker of two processes: only these can be terminated."""
    made = deploy(NEXUS_LEASE_SECONDS="3")
    Nexus().create_namespace("acme")
    # Celery takes `prefork` for "as configured", `processes` is the same pool.
    made.worker(*WITH_KINDS, pool="processes", concurrency=2, **ROOT)
    play.delay(name="first")
    eventually(lambda: attempts("first"), within=LONG)  # it consumes, and hears what it is told
    return made


@pytest.fixture
def ask(here: Sandbox) -> Iterator[Ask]:
    """POST to Flower; the status and what came back."""
    path = here.folder / "flower"
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.integration.flower_app:app", "flower", f"--unix-socket={path}"],
        env={**here.environment, **ROOT, "FLOWER_UNAUTHENTICATED_API": "true"},
        cwd=here.folder,
        stdin=subprocess.DEVNULL,
    )

    def post(address: str, **body: Any) -> tuple[int, Any]:
        client = Client(path)
        client.request("POST", address, json.dumps(body), {"Content-Type": "application/json"})
        answer = client.getresponse()
        text = answer.read().decode()
        client.close()
        return answer.status, json.loads(text) if answer.status == 200 else text

    def listens() -> bool:
        assert process.poll() is None
        with suppress(OSError):
            return post("/nothing")[0] == 404
        return False

    try:
        eventually(listens, within=LONG)
        yield post
    finally:
        process.terminate()
        process.wait(LONG)


def is_over() -> bool:
    return engine.claims.counts("acme") == {}


def apply(ask: Ask, **kwargs: Any) -> str:
    status, answer = ask("/api/task/async-apply/nexus_tasks.play", kwargs=kwargs)
    assert status == 200, answer
    return str(answer["task-id"])


def ended(name: str) -> tuple[str, str] | None:
    """Id and status of the last run of a name, once nothing is queued."""
    eventually(is_over, within=LONG)
    return engine.claims.marker(engine.claims.key(play.request_for(Play(name=name))))


@pytest.mark.long
def test_what_flower_can_do_leaves_claims_consistent(ask: Ask) -> None:
    """One test, because a worker and a Flower take seconds to start."""
    # Apply is `.delay()`: validated, claimed, and merged with what runs already.
    asked = apply(ask, name="a", reason="x")
    assert ended("a") == (asked, "completed")
    assert [reasons for _, reasons in attempts("a")] == ["x"]
    assert ask("/api/task/async-apply/nexus_tasks.play", kwargs={"nonsense": 1})[0] == 500
    assert is_over()

    # Terminate ends the run, its process and its claim; who asks again gets a new run.
    held = play.delay(name="held", plan=("hold",)).id
    eventually(lambda: attempts("held"), within=LONG)
    assert apply(ask, name="held") != held  # a run that would follow
    assert ask(f"/api/task/revoke/{held}?terminate=true")[0] == 200
    assert ended("held") == (held, "dropped")
    assert len(attempts("held")) == 1
    assert play.delay(name="held").wait(LONG).status == "completed"

    # Revoke drops a job that waits, once its message comes.
    later = play.apply_async(kwargs={"name": "later"}, countdown=600)
    assert ask(f"/api/task/revoke/{later.id}")[0] == 200
    eventually(lambda: later.id in str(app.control.inspect(timeout=5).revoked()), within=LONG)
    play.delay(name="later")  # due now: its message bears the id that was revoked
    assert later.wait(LONG).status == "dropped"
    assert ended("later") == (later.id, "dropped")
    assert attempts("later") == []
