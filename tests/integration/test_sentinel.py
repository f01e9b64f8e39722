"""Redis behind Sentinels: for claims, messages and results, also when the master dies."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from celery import chord

from nexus_tasks import Nexus
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.producer.result import JobResult
from tests import sentinel
from tests.commandline import nexus
from tests.integration.jobkinds import ROOT, WITH_KINDS, go, heard, note, play
from tests.sandbox import Sandbox, eventually


@pytest.mark.long
def test_jobs_survive_the_death_of_the_master(deploy: Callable[..., Sandbox]) -> None:
    with sentinel.watched() as watched:
        node = f"sentinel://:{quote(sentinel.PASSWORD)}@127.0.0.1:{watched.sentinel}"
        here = deploy(NEXUS_REDIS_URL=f"{node}/1;{node}", NEXUS_REDIS_MASTER=sentinel.MASTER)
        Nexus().create_namespace("acme")
        doctor = nexus("doctor").stdout
        assert "Redis 6.2" in doctor or "Redis 7" in doctor or "Redis 8" in doctor
        assert sentinel.PASSWORD not in doctor
        assert quote(sentinel.PASSWORD) not in doctor
        waiting = play.apply_async(kwargs={"name": "waiting"}, countdown=3_600)
        here.worker(*WITH_KINDS, **ROOT)
        assert play.delay(name="before").wait(60).status == "completed"
        chord([play.si(name="x"), play.si(name="y")], note.si(name="body")).apply_async()
        eventually(lambda: heard("body"), within=60)
        held = play.delay(name="held", plan=("hold",))
        eventually(lambda: status().get("running"), within=60)
        died = watched.master()
        watched.kill_master()
        eventually(lambda: watched.master() != died, within=60)
        # The claims went along: whoever asks joins them, and the run that was under way has kept its own.
        assert eventually(lambda: ask("waiting"), within=60).id == waiting.id
        go("held")
        assert held.wait(60).status == "completed"
        after = eventually(lambda: ask("after"), within=60)
        assert after.wait(90).status == "completed"
        here.workers[0].stop()


def status() -> dict[str, int]:
    [found] = Nexus().status("acme").namespaces
    return found.jobs.to_dict()


def ask(name: str) -> JobResult | None:
    try:
        return play.delay(name=name)
    except QueueUnavailable:
        return None
