"""What reaches a worker past the task class: Flower's buttons, `send_task`, messages that nobody here has written."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Producer

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from tests.integration import inline
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, heard, note, play
from tests.sandbox import Sandbox, app, engine, eventually

pytestmark = pytest.mark.long


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_they_leave_consistent_claims(here: Sandbox, pool: str) -> None:
    Nexus().create_namespace("acme")
    [memory] = inline.say("I moved to Lisbon.", session="s", end=True)
    here.flush()  # what follows asks for the derivation itself
    with app.producer_or_acquire() as producer:
        pickled(producer)
    app.send_task("nexus_tasks.play", kwargs={"nonsense": 1}, queue="maintenance")
    app.send_task("nexus_tasks.play", args=["acme", "sent"], queue="maintenance")
    app.send_task("nexus_tasks.derive_memory", kwargs={"namespace": "acme", "memory_id": memory}, queue="derive")
    here.worker(*WITH_KINDS, pool=pool, concurrency=2, **ROOT)
    eventually(lambda: attempts("sent"), within=60)
    eventually(lambda: here.sql("SELECT state FROM derivations") == [("done",)], within=60)
    assert play.delay(name="large", plan=("ok", "x" * 2_000_000)).wait(60).status == "completed"
    if pool == "processes":
        terminated()
    eventually(lambda: engine.claims.counts("acme") == {}, within=60)
    assert here.sql("SELECT error_type FROM dead_letters") == []
    assert len(attempts("sent")) == 1


def pickled(producer: Producer) -> None:
    """A message that workers do not open."""
    producer.publish(
        ((), {"name": "pickled"}, {}), serializer="pickle", routing_key="maintenance", exchange="nexus", retry=False
    )


def terminated() -> None:
    """Flower's `terminate`: the job and its claim are gone, and whoever waits for it hears of that."""
    asked = play.delay(name="held", plan=("hold",))
    play.apply_async(
        kwargs={"name": "held", "plan": ("hold",)}, link_error=note.si(name="error"), link=note.si(name="ok")
    )
    eventually(lambda: attempts("held"), within=60)
    app.control.revoke(asked.id, terminate=True, signal="SIGKILL")
    assert asked.wait(60).status == "dropped"
    claims: Any = default_deployment().claims
    assert claims.get(claims.key(play.request_for(play.kind.arguments(name="held")))) is None
    eventually(lambda: heard("ok") or heard("error"), within=60)
    assert len(attempts("held")) == 1
