"""Malformed messages: none ends a worker or stops its queue; each one is moved to the quarantine, and counted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Queue

from nexus_tasks import Nexus
from nexus_tasks.idempotency import quarantine
from nexus_tasks.idempotency.celery_patches.malformed_messages import fault_of
from tests.broker import RABBITMQ, queued
from tests.commandline import nexus
from tests.integration.jobkinds import ROOT, WITH_KINDS, play
from tests.sandbox import Sandbox, app, engine, eventually

QUEUE = "maintenance"
GOOD_BODY = [[], {"name": "by hand"}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def headers(**changed: Any) -> dict[str, Any]:
    """Those of a job's message; a value of ``...`` leaves its header out."""
    whole = {
        "task": "nexus_tasks.play",
        "id": str(uuid.uuid4()),
        "root_id": None,
        "retries": 0,
        "timelimit": [None, None],
    }
    return {name: value for name, value in (whole | changed).items() if value is not ...}


MESSAGES: dict[str, tuple[dict[str, Any], Any]] = {
    "no id": (headers(id=...), GOOD_BODY),
    "an id that is a list": (headers(id=[1]), GOOD_BODY),
    "no task": (headers(task=...), GOOD_BODY),
    "a task that is a list": (headers(task=["x"]), GOOD_BODY),
    "no headers": ({}, GOOD_BODY),
    "a body of a list": (headers(), []),
    "a body of a number": (headers(), 5),
    "a body of null": (headers(), None),
    "a body of the first protocol without arguments": ({}, {"task": "nexus_tasks.play"}),
    "args that are a text": (headers(), ["x", {}, {}]),
    "kwargs that are a list": (headers(), [[], [], {}]),
    "an embed that is a list": (headers(), [[], {}, []]),
    "a timelimit that is a text": (headers(timelimit="x"), GOOD_BODY),
    "a timelimit of texts": (headers(timelimit=["x", "y"]), GOOD_BODY),
    "an eta that is a number": (headers(eta=5), GOOD_BODY),
    "an eta that is no time": (headers(eta="soon"), GOOD_BODY),
    "expires that is no time": (headers(expires="soon"), GOOD_BODY),
    "retries that are a text": (headers(retries="x"), GOOD_BODY),
    "an unknown compression": (headers(compression="x"), GOOD_BODY),
    "a compression that is a list": (headers(compression=["x"]), GOOD_BODY),
    "a body that is not compressed": (headers(compression="application/x-gzip"), GOOD_BODY),
    "a header of ours that is a text": (headers(nexus="x"), GOOD_BODY),
    "stamped headers that are objects": (headers(stamped_headers=[{}], stamps={}), GOOD_BODY),
    "an id with a NUL": (headers(id="a\0b"), GOOD_BODY),
}
# (content type, bytes)
BODIES = {
    "no JSON": ("application/json", b"{"),
    "bytes": ("application/json", b"\xff\x00\xfe"),
    "pickle": ("application/x-python-serialize", b"\x80\x04N."),
    "an unknown type": ("application/x-unheard-of", b"x"),
}
# What a Redis list may hold beside kombu's envelopes.
RAW = {
    "bytes": b"\xff\x00\xfe garbage",
    "a number": b"5",
    "a list": b"[]",
    "an empty object": b"{}",
    "no delivery_info": json.dumps({"body": "", "headers": {}, "properties": {"delivery_tag": "x"}}).encode(),
    "brackets without end": b"[" * 100_000,
    "a list in a list, and so on": b"[" * 970 + b"]" * 970,
    "headers that are nested as deeply as Python can read": json.dumps(
        {
            "body": "W10=",
            "headers": headers(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": "t",
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
            },
        }
    ).encode()[:-1]
    + b', "x": '
    + b"[" * 900
    + b"]" * 900
    + b"}",
    "a body that is no base64": json.dumps(
        {
            "body": "x",
            "headers": headers(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": "t",
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
            },
        }
    ).encode(),
}


def send(publish: Callable[[Any], None]) -> None:
    with app.connection_for_write() as connection, connection.Producer() as producer:
        publish(producer)


def send_all() -> int:
    """Put each malformed message into the queue; returns how many there are."""
    declared = app.amqp.queues.get(QUEUE) or Queue(QUEUE)

    def publish(producer: Any) -> None:
        for head, body in MESSAGES.values():
            producer.publish(body, headers=head, serializer="json", routing_key=QUEUE, declare=[declared])
        for content_type, text in BODIES.values():
            options = {"content_type": content_type, "content_encoding": "utf-8"}
            producer.publish(text, headers=headers(), routing_key=QUEUE, **options)

    send(publish)
    if RABBITMQ:
        return len(MESSAGES) + len(BODIES)
    key = app.conf.broker_transport_options.get("global_keyprefix", "") + QUEUE
    for text in RAW.values():
        engine.claims.redis.lpush(key, text)
    return len(MESSAGES) + len(BODIES) + len(RAW)


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_malformed_messages_end_no_worker_and_stop_no_queue(here: Sandbox, pool: str) -> None:
    Nexus().create_namespace("acme")
    sent = send_all()
    asked = [play.delay(name=str(i)) for i in range(3)]
    worker = here.worker(*WITH_KINDS, concurrency=2, pool=pool, **ROOT)
    assert [result.wait(60).status for result in asked] == ["completed"] * 3
    eventually(lambda: quarantine.count(engine.claims) == (sent, sent), why=f"{faults(here)}\n{worker.text()}")
    eventually(lambda: queued(QUEUE) == 0)
    assert worker.process.poll() is None
    assert "Traceback" not in worker.text()
    assert "Connection to broker lost" not in worker.text()

    assert f"{sent} messages could not be read: `nexus jobs quarantine` shows why" in nexus("status").stdout
    listed = json.loads(nexus("jobs", "quarantine", "--json").stdout)["messages"]
    assert {one["queue"] for one in listed} == {QUEUE}
    assert all(one["fault"] and one["at"] for one in listed)
    assert json.loads(nexus("jobs", "quarantine", "--drop", listed[0]["id"], "--json").stdout) == {"dropped": 1}
    assert nexus("jobs", "quarantine", "--drop-all").stdout == f"Deleted {sent - 1} messages.\n"
    assert Nexus().quarantined() == []
    assert quarantine.count(engine.claims) == (0, sent), "what was moved stays counted"


def faults(here: Sandbox) -> list[str]:
    return [one.fault for one in here.deployment and Nexus().quarantined()]


@pytest.mark.skipif(RABBITMQ, reason="the values are in Redis")
def test_what_is_no_message_among_the_taken_ones_keeps_no_worker_from_starting(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
    for name, text in {"a": b"x", "b": b"[" * 100_000, "c": b"\xff", "d": b"[]", "e": b"5", "f": b"[1, 2, 3]"}.items():
        engine.claims.redis.hset(f"{prefix}unacked", name, text)
        engine.claims.redis.zadd(f"{prefix}unacked_index", {name: 1})
    asked = play.delay(name="a")
    worker = here.worker(*WITH_KINDS, concurrency=2, **ROOT)
    assert asked.wait(60).status == "completed"
    eventually(lambda: engine.claims.redis.zcount(f"{prefix}unacked_index", 0, 1) == 0, why=worker.text())
    assert worker.process.poll() is None


@pytest.mark.long
def test_a_job_whose_message_was_malformed_has_lost_only_a_wake_up(here: Sandbox) -> None:
    """Its claim stays, and the sweep publishes another message."""
    Nexus().create_namespace("acme")
    asked = play.delay(name="a")
    key = app.conf.broker_transport_options.get("global_keyprefix", "") + QUEUE
    if RABBITMQ:
        pytest.skip("the message is changed in its Redis list")
    text = json.loads(engine.claims.redis.lpop(key))
    del text["headers"]["id"]
    engine.claims.redis.lpush(key, json.dumps(text))
    here.worker(*WITH_KINDS, **ROOT)
    assert asked.wait(60).status == "completed"
    assert [one.fault for one in Nexus().quarantined()] == ["it has no id"]


def test_the_quarantine_keeps_the_newest_messages_only(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr(quarantine, "MOST", 3)
    for n in range(5):
        quarantine.set_aside(engine.claims, received(headers(), [n]), f"fault {n}")
    assert [one.fault for one in Nexus().quarantined()] == ["fault 4", "fault 3", "fault 2"]
    assert quarantine.count(engine.claims) == (3, 5)


class received:
    """A message as kombu hands it to Celery."""

    def __init__(self, head: Any, body: Any, **parts: Any) -> None:
        self.headers, self.payload, self.body = head, body, json.dumps(body)
        self.properties = parts.get("properties", {})
        self.delivery_info = parts.get("delivery_info", {"routing_key": QUEUE})


@pytest.mark.parametrize(
    "message",
    [
        received(headers(), GOOD_BODY),
        received(headers(group="g", shadow=None, eta="2030-01-01T00:00:00+00:00", stamps={}, nexus={}), GOOD_BODY),
        received(headers(timelimit=[3, 2.5], retries=None), tuple(GOOD_BODY)),
        received({}, {"task": "shop.pay", "id": "1", "args": [1], "kwargs": {}, "retries": 0}),
        received(headers(), {"args": [], "kwargs": {}}),
    ],
)
def test_a_message_that_celery_can_run_has_no_fault(message: Any) -> None:
    assert fault_of(message) == ""
