"""How messages reach the broker: in one step with their claims, or after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import signals
from kombu import Producer
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError

from nexus_tasks.errors import InvalidInput, QueueUnavailable
from nexus_tasks.idempotency.celery_patches.closing import close_connections
from nexus_tasks.idempotency.claim import Wakeup
from nexus_tasks.idempotency.producer.publisher import Publisher
from nexus_tasks.idempotency.producer.wire_format import send
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.broker import RABBITMQ, holds, lose, queued, take
from tests.integration.claiming import Bench
from tests.integration.jobkinds import Play, play, play_once, work
from tests.sandbox import Sandbox, app, engine

pytestmark = pytest.mark.usefixtures("here")

AWKWARD = 'ann%s "quoted" \\ 漢字 %(id)s\n'


in_redis = pytest.mark.skipif(RABBITMQ, reason="one step needs claims and messages in one Redis")


@pytest.fixture
def only_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every publisher dies between its two steps."""
    monkeypatch.setattr(Publisher, "publish", lambda *_args, **_options: 0)


@pytest.mark.parametrize("name", [AWKWARD, "\1key\1 \x7f / \1", "a" + "漢" * 700])
def test_a_message_is_what_celery_would_have_written(name: str) -> None:
    asked = play.delay(name=name)
    [ours] = take(1)
    at = ours.headers["nexus"]["published_at"]
    args = play.request_for(Play(name=name)).args
    assert args.startswith(ours.headers["kwargsrepr"])
    assert len(ours.headers["kwargsrepr"].encode()) >= min(len(args.encode()), 1_021)
    wakeup = Wakeup(
        key=claim_key(name),
        job_id=asked.id,
        kind="play",
        queue="maintenance",
        args=json.loads(args),
        published_at=at,
        namespace="",
    )
    send(play.task, wakeup)  # Celery alone
    assert engine.publisher.publish([wakeup, wakeup]) == 2  # kombu from the template
    for other in take(3):
        other.headers["kwargsrepr"] = ours.headers["kwargsrepr"]  # Celery's has quotes of its own
        assert other.headers == ours.headers
        assert other.payload == ours.payload
        assert _told(other) == _told(ours)


@in_redis
@pytest.mark.usefixtures("only_claims")
def test_a_new_job_has_its_message_by_the_same_step(here: Sandbox) -> None:
    asked = play.delay()
    [message] = take(1)
    assert message.headers["id"] == asked.id
    assert message.headers["nexus"]["published_at"] == here.redis().hget(claim_key("a"), "published_at")


@in_redis
@pytest.mark.usefixtures("only_claims")
def test_only_a_new_job_has_a_message() -> None:
    play_once.delay()
    play_once.delay()  # merged
    assert queued("reflect") == 1
    work()
    play_once.delay()  # done
    play.apply_async(kwargs={"name": "later"}, countdown=60)  # waits
    assert queued("reflect") == 1
    assert queued() == 0


def test_who_listens_to_messages_hears_every_one() -> None:
    heard = []

    def listen(headers: dict[str, Any], **_: object) -> None:
        heard.append(headers["id"])
        headers["trace"] = "t1"

    signals.before_task_publish.connect(listen)
    try:
        asked = [play.delay(name=name).id for name in "ab"]
    finally:
        signals.before_task_publish.disconnect(listen)
    assert heard == asked
    assert [message.headers["trace"] for message in take(2)] == ["t1", "t1"]


def test_options_of_one_call_reach_its_message() -> None:
    play.apply_async(headers={"trace": "t2"})
    assert take(1)[0].headers["trace"] == "t2"


@pytest.fixture
def elsewhere(here: Sandbox) -> Iterator[Sandbox]:
    """Messages in another database than the claims, as with another broker; with RabbitMQ they are anyhow."""
    if RABBITMQ:
        yield here
        return
    app.conf.broker_write_url = app.conf.broker_read_url = app.conf.broker_url.replace(
        "virtual_host=0", "virtual_host=1"
    )
    yield here
    for queue in app.amqp.queues:
        lose(queued(queue), queue)
    del app.conf.changes["broker_write_url"], app.conf.changes["broker_read_url"]


@pytest.mark.usefixtures("elsewhere")
def test_messages_may_be_elsewhere_than_claims(here: Sandbox) -> None:
    made = engine.publisher.template_of("play", "maintenance")
    assert made
    assert made.wire is None
    asked = play.delay()
    assert not list(here.redis().scan_iter(f"{here.name}:celery:maintenance"))
    assert take(1)[0].headers["id"] == asked.id


def claim_key(name: str) -> str:
    return engine.claims.key(play.request_for(Play(name=name)))


def test_many_jobs_are_asked_for_at_once() -> None:
    first = play.delay(namespace="n0")
    results = play.enqueue_many([{"namespace": f"n{n}"} for n in range(1_201)])
    assert [result.created for result in results] == [False] + [True] * 1_200
    assert results[0].id == first.id
    messages = take(1_201)
    assert [message.headers["id"] for message in messages] == [result.id for result in results]
    assert len({message.delivery_tag for message in messages}) == 1_201
    assert len(engine.claims.pending("maintenance", 2_000)) == 1_201


def test_of_many_jobs_in_one_namespace_few_messages_are_sent() -> None:
    results = play.enqueue_many([{"name": str(n)} for n in range(1_201)])
    assert [message.headers["id"] for message in take(8)] == [result.id for result in results[:8]]
    assert engine.claims.counts("acme") == {"pending": 8, "waiting": 1_193}


def test_one_bad_call_among_many_queues_nothing() -> None:
    with pytest.raises(InvalidInput, match=r"calls\[1\]: play: .*colour"):
        play.enqueue_many([{"name": "a"}, {"name": "b", "colour": "red"}])
    assert engine.claims.counts("acme") == {}
    assert queued() == 0


def test_a_bulk_that_breaks_off_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"namespace": f"n{n}"} for n in range(700)]
    ask, asked = engine.claims.claim, []

    def breaks_off(requests: Any, messages: Any = None) -> Any:
        asked.append(len(requests))
        if len(asked) == 2:
            raise QueueUnavailable
        return ask(requests, messages)

    monkeypatch.setattr(engine.claims, "claim", breaks_off)
    with pytest.raises(QueueUnavailable):
        play.enqueue_many(calls)
    assert len(engine.claims.pending("maintenance")) == 500
    results = play.enqueue_many(calls)
    assert sum(result.created for result in results) == 200
    assert holds(700)


@pytest.mark.usefixtures("elsewhere")
def test_in_two_steps_a_lost_message_is_sent_by_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producer, "publish", _away)
    play.enqueue_many([{"name": str(n)} for n in range(3)])
    assert engine.claims.counts("acme") == {"pending": 3}
    monkeypatch.undo()
    Bench(engine.claims).jump(11)
    Sweeper(engine).tick()
    assert holds(3)


def _away(*_args: object, **_options: object) -> None:
    raise OperationalError("away")


def _told(message: Any) -> dict[str, Any]:
    """What the broker was told of a message, beside its number."""
    return {name: value for name, value in message.properties.items() if name != "delivery_tag"}


@pytest.mark.skipif(RABBITMQ, reason="the connection breaks in kombu's code for Redis")
def test_a_connection_that_breaks_while_kombu_declares_a_queue_loses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    play.delay(name="one")
    close_connections(app)  # so the next message declares its queue
    bind, broken = Channel._queue_bind, list[bool]()

    def break_once(*args: Any, **options: Any) -> Any:
        if not broken:
            broken.append(True)
            raise ConnectionError("Connection closed by server.")
        return bind(*args, **options)

    monkeypatch.setattr(Channel, "_queue_bind", break_once)
    lost = partial(engine.claims.sweep_lost, "maintenance", 10, empty=True, age=0, grace=0, longest=0)
    assert engine.publisher.publish(lost()) == 0
    assert broken
    assert engine.publisher.publish(lost()) == 1
