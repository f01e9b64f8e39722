"""How messages reach the broker: in one step with their claims, or after them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from kombu import Producer
from kombu.exceptions import OperationalError

from nexus_tasks.celery import app
from nexus_tasks.errors import InvalidInput, QueueUnavailable
from nexus_tasks.idempotency import publish as publishing
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Wakeup
from nexus_tasks.idempotency.publish import publish, template_of
from nexus_tasks.idempotency.sweep import Sweeper
from tests.deployment import Deployment
from tests.integration.claiming import Bench
from tests.integration.jobkinds import Play, play, play_once, work

AWKWARD = 'ann%s "quoted" \\ 漢字 %(id)s\n'


def queued(here: Deployment, queue: str = "maintenance") -> list[dict[str, Any]]:
    """The messages of a queue, oldest first, their bodies decoded."""
    texts = here.redis().lrange(f"{here.name}:celery:{queue}", 0, -1)
    messages: list[dict[str, Any]] = [json.loads(text) for text in reversed(texts)]
    for message in messages:
        message["body"] = json.loads(base64.b64decode(message["body"]))
    return messages


@pytest.fixture
def only_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever publishes in a second step has died before it."""
    monkeypatch.setattr(publishing, "publish", lambda *_args, **_options: 0)


def test_a_message_is_what_celery_would_have_written(here: Deployment) -> None:
    asked = play.delay(name=AWKWARD)
    [ours] = queued(here)
    here.redis().delete(f"{here.name}:celery:maintenance")
    at = ours["headers"]["nexus"]["published_at"]
    args = play.request_for(Play(name=AWKWARD)).args
    wakeup = Wakeup(
        key="", job_id=asked.id, kind="play", queue="maintenance", args=json.loads(args), published_at=at, namespace=""
    )
    play.send(wakeup)  # Celery alone
    assert publish(app, [wakeup, wakeup]) == 2  # kombu from the template
    for other in queued(here):
        other["properties"]["delivery_tag"] = ours["properties"]["delivery_tag"]
        other["headers"]["kwargsrepr"] = ours["headers"]["kwargsrepr"]  # Celery's has quotes of its own
        assert other == ours


@pytest.mark.usefixtures("only_claims")
def test_a_new_job_has_its_message_by_the_same_step(here: Deployment) -> None:
    asked = play.delay()
    [message] = queued(here)
    assert message["headers"]["id"] == asked.id
    assert message["headers"]["nexus"]["published_at"] == here.redis().hget(claim_key("a"), "published_at")


@pytest.mark.usefixtures("only_claims")
def test_only_a_new_job_has_a_message(here: Deployment) -> None:
    play_once.delay()
    play_once.delay()  # merged
    assert len(queued(here, "reflect")) == 1
    work()
    play_once.delay()  # done
    play.apply_async(kwargs={"name": "later"}, countdown=60)  # waits
    assert len(queued(here, "reflect")) == 1
    assert queued(here) == []


def test_who_listens_to_messages_hears_every_one(here: Deployment) -> None:
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
    assert [message["headers"]["trace"] for message in queued(here)] == ["t1", "t1"]


def test_options_of_one_call_reach_its_message(here: Deployment) -> None:
    play.apply_async(headers={"trace": "t2"})
    assert queued(here)[0]["headers"]["trace"] == "t2"


@pytest.fixture
def elsewhere(here: Deployment) -> Iterator[Deployment]:
    """Messages in another database than the claims, as with another broker."""
    url = app.conf.broker_write_url
    other = url.replace("virtual_host=0", "virtual_host=1")
    assert other != url
    app.conf.broker_write_url = other
    yield here
    app.conf.broker_write_url = url


def test_messages_may_be_elsewhere_than_claims(elsewhere: Deployment) -> None:
    assert template_of(app, "play").wire is None
    asked = play.delay()
    assert queued(elsewhere) == []
    client = elsewhere.redis()
    client.execute_command("SELECT", 1)
    assert asked.id in client.lindex(f"{elsewhere.name}:celery:maintenance", 0)
    client.delete(f"{elsewhere.name}:celery:maintenance")


def claim_key(name: str) -> str:
    return binding().claims.key(play.request_for(Play(name=name)))


def test_many_jobs_are_asked_for_at_once(here: Deployment) -> None:
    first = play.delay(name="0")
    results = play.enqueue_many([{"name": str(n)} for n in range(1_201)])
    assert [result.created for result in results] == [False] + [True] * 1_200
    assert results[0].id == first.id
    messages = queued(here)
    assert [message["headers"]["id"] for message in messages] == [result.id for result in results]
    assert len({message["properties"]["delivery_tag"] for message in messages}) == 1_201
    assert binding().claims.counts("acme") == {"pending": 1_201}


def test_one_bad_call_among_many_queues_nothing(here: Deployment) -> None:
    with pytest.raises(InvalidInput, match=r"calls\[1\]: play: .*colour"):
        play.enqueue_many([{"name": "a"}, {"name": "b", "colour": "red"}])
    assert binding().claims.counts("acme") == {}
    assert queued(here) == []


def test_a_bulk_that_breaks_off_loses_and_doubles_nothing(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"name": str(n)} for n in range(700)]
    ask, asked = binding().claims.claim, []

    def breaks_off(requests: Any, messages: Any = None) -> Any:
        asked.append(len(requests))
        if len(asked) == 2:
            raise QueueUnavailable
        return ask(requests, messages)

    monkeypatch.setattr(binding().claims, "claim", breaks_off)
    with pytest.raises(QueueUnavailable):
        play.enqueue_many(calls)
    assert binding().claims.counts("acme") == {"pending": 500}
    results = play.enqueue_many(calls)
    assert sum(result.created for result in results) == 200
    assert len(queued(here)) == 700


def test_in_two_steps_a_lost_message_is_sent_by_the_sweep(
    elsewhere: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Producer, "publish", _away)
    play.enqueue_many([{"name": str(n)} for n in range(3)])
    assert binding().claims.counts("acme") == {"pending": 3}
    monkeypatch.undo()
    Bench(binding().claims).jump(11)
    Sweeper(app, binding()).tick()
    client = elsewhere.redis()
    client.execute_command("SELECT", 1)
    assert client.llen(f"{elsewhere.name}:celery:maintenance") == 3
    client.delete(f"{elsewhere.name}:celery:maintenance")


def _away(*_args: object, **_options: object) -> None:
    raise OperationalError("away")
