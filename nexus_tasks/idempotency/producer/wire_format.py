"""The wire format of wake-ups (the Celery messages that wake workers), and the templates that make them fast.

Sending a message takes more time in Python code than in the broker. Celery renders every argument, and kombu makes a
client for every message. With a :class:`Template` this work is done once for each job kind. Celery writes one message
of the kind as the template, and all other messages are copies of the template. Therefore a copy has everything that the
deployment's settings and annotations put into a message.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery, Task
from kombu import Producer
from kombu.transport import redis
from kombu.utils.json import dumps

from nexus_tasks import tracing
from nexus_tasks.embedded.urls import celery_url
from nexus_tasks.idempotency.claim import Wakeup
from nexus_tasks.idempotency.request import VERSION, Request, compact

HEADER = "nexus"
LONGEST_SHOWN = 1_024  # how many characters of the arguments Flower and the log show: Celery's own limit
# The places that claim.lua fills in.
SLOTS = ("id", "root", "parent", "headers", "published", "key", "shown", "body", "tag")


def header(wakeup: Wakeup) -> dict[str, Any]:
    """This package's header of a wake-up's message, which a worker reads beside the task's arguments."""
    told: dict[str, Any] = {"version": VERSION, "published_at": wakeup.published_at}
    if wakeup.key:
        told["key"] = wakeup.key
    if wakeup.options is not None:
        told["canvas"] = True
    if wakeup.outcome is not None:
        told["status"], told["job_id"] = wakeup.outcome
    return {HEADER: told}


def trace_of_call(app: Celery, options: Mapping[str, Any]) -> str:
    """The trace of a call, as JSON: the ids of the root and parent tasks, and headers such as ``traceparent``.

    The headers are those of the caller and of the current span of OpenTelemetry, if there is one. Every message of the
    job gets this trace, as in Celery's own retries. The text is empty when the call has no trace.
    """
    parent, context = app.current_worker_task, tracing.carrier()
    if not (parent or options or context):
        return ""
    message = parent.request if parent else None
    return _trace(
        options.get("root_id") or (message and (message.root_id or message.id)),
        options.get("parent_id") or (message and message.id),
        {**context, **(options.get("headers") or {})},
    )


def trace_of_message(message: Any) -> str:
    """The trace of a message in the form of :func:`trace_of_call`. ``message`` is the worker's Celery request."""
    root_id = message.root_id if message.root_id != message.id else None
    return _trace(root_id, message.parent_id, headers_of_caller(message))


def headers_of_caller(message: Any) -> dict[str, Any]:
    """The headers that the caller has set, without those of Celery and of this package.

    ``message`` is the worker's Celery request.
    """
    return {name: value for name, value in message.as_execution_options()["headers"].items() if name != HEADER}


def _trace(root_id: str | None, parent_id: str | None, headers: Mapping[str, Any] | None) -> str:
    found = {"root_id": root_id, "parent_id": parent_id, "headers": headers}
    known = {name: value for name, value in found.items() if value}
    return dumps(known) if known else ""


def send(task: Any, wakeup: Wakeup, **options: Any) -> None:
    """Let Celery write and publish one wake-up (the Celery message of a claim). This function makes no claim.

    Args:
        task: the :class:`~nexus_tasks.idempotency.task.JobTask` of the wake-up's kind.
        wakeup: the wake-up.
        options: options of Celery's ``apply_async``.

    Raises:
        celery.exceptions.QueueNotFound: the kind's queue is not configured.
        kombu.exceptions.KombuError: the broker does not answer.
    """
    # A claim of an earlier release may name a queue that is gone. Its message goes to the kind's present queue.
    queue = wakeup.queue if wakeup.queue in task.app.amqp.queues else task.kind.queue
    options = {**(wakeup.options or {}), **options}
    # Without these ids Celery names the task that now runs in this process as the parent. This task may be another job,
    # whose end made the wake-up.
    parent = {
        "root_id": options.get("root_id") or wakeup.trace.get("root_id") or wakeup.job_id,
        "parent_id": options.get("parent_id") or wakeup.trace.get("parent_id"),
    }
    of_the_caller = {**wakeup.trace.get("headers", {}), **(options.pop("headers", None) or {})}
    if wakeup.outcome:
        # The job that runs now only reports the outcome. Celery must not add the message to the job's children.
        options["add_to_parent"] = False
    # Another library may make a span of the message. It belongs to the job's trace, also when the sweep sends it.
    with tracing.continued(of_the_caller):
        Task.apply_async(
            task,
            kwargs=dict(wakeup.args),
            task_id=wakeup.job_id,
            queue=queue,
            headers={**of_the_caller, **parent, **header(wakeup)},
            **options,
        )


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A message as it stands in a Redis list, with slots that ``claim.lua`` fills in."""

    queue: str  # the key of the list
    text: str
    embed: str  # what Celery puts behind the arguments, as JSON

    def body(self, request: Request) -> str:
        """The body of the message for ``request``, in base64."""
        return base64.b64encode(f"[[], {request.args}, {self.embed}]".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class Template:
    """The parts that all messages of a job kind have in common."""

    queue: str  # the queue that the requests name
    headers: Mapping[str, Any]
    embed: Mapping[str, Any]
    options: Mapping[str, Any]  # options of kombu's ``publish``
    wire: Wire | None  # only where claims and messages share a Redis

    def publish(self, producer: Any, wakeup: Wakeup, **options: Any) -> None:
        """Publish ``wakeup`` through kombu, to any broker."""
        headers = {
            **self.headers,
            **wakeup.trace.get("headers", {}),
            **header(wakeup),
            "id": wakeup.job_id,
            "root_id": wakeup.trace.get("root_id") or wakeup.job_id,
            "parent_id": wakeup.trace.get("parent_id"),
            "kwargsrepr": compact(wakeup.args)[:LONGEST_SHOWN],
        }
        body = (), wakeup.args, self.embed
        producer.publish(body, headers=headers, **{**self.options, "correlation_id": wakeup.job_id, **options})


def make_template(task: Any, queue: str, claims_url: str) -> Template | None:
    """The template of ``task``'s messages in a queue, or ``None`` when Celery must write each message.

    Celery must write each message when the messages are compressed or are not JSON.

    Raises:
        kombu.exceptions.KombuError: claims and messages share a Redis, and this Redis does not answer.
    """
    slots = {name: f"{name}-{uuid.uuid4().hex}" for name in SLOTS}
    with task.app.connection_for_write() as connection:
        shared = task.app.conf.broker_write_url == celery_url(claims_url)
        if shared := shared and connection.get_transport_cls() is redis.Transport:
            connection.transport_cls = _Scribes
        producer = _Dictation(connection, slots, send=shared)
        send(task, _blank(task, queue, slots), producer=producer)
        wire = _wire(producer, slots) if shared else None
    if producer.options["serializer"] != "json" or producer.options["compression"]:
        return None
    headers = {name: value for name, value in producer.headers.items() if name != slots["headers"]}
    return Template(queue=queue, headers=headers, embed=producer.embed, options=producer.options, wire=wire)


def _blank(task: Any, queue: str, slots: Mapping[str, str]) -> Wakeup:
    return Wakeup(
        key=slots["key"],
        job_id=slots["id"],
        kind=task.kind.name,
        queue=queue,
        args={},
        published_at=slots["published"],
        namespace="",
        trace={"root_id": slots["root"], "parent_id": slots["parent"], "headers": {slots["headers"]: ""}},
    )


class _Dictation(Producer):  # type: ignore[misc]
    """Records the message that Celery asks kombu to publish. With ``send`` it also passes the message to kombu."""

    def __init__(self, connection: Any, slots: Mapping[str, str], *, send: bool) -> None:
        super().__init__(connection, auto_declare=False)
        self.slots, self.send = slots, send

    def publish(self, body: Any, *, headers: Any, correlation_id: str, **options: Any) -> None:
        """Celery calls this once."""
        self.embed, self.headers, self.options = body[2], headers, options
        if self.send:
            shown = {**headers, "kwargsrepr": self.slots["shown"]}
            super().publish(body, headers=shown, correlation_id=correlation_id, **options)


class _Scribe(redis.Channel):  # type: ignore[misc]
    """Records the message that kombu would push, and the key of the Redis list. It pushes nothing."""

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:
        key = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
        self.written = self.global_keyprefix + key, message, queue in self._expires


class _Scribes(redis.Transport):  # type: ignore[misc]
    Channel = _Scribe


def _wire(producer: _Dictation, slots: Mapping[str, str]) -> Wire | None:
    queue, message, expires = producer.channel.written
    # Celery and kombu must write each message of a queue that expires, because they renew the expiry with each message.
    # They must also write each message whose result is kept, because Celery first subscribes to the result.
    if expires or not producer.headers["ignore_result"]:
        return None
    message["body"], message["properties"]["delivery_tag"] = slots["body"], slots["tag"]
    # The caller's headers take the place of this one. Celery puts other headers behind it.
    text = json.dumps(message).replace(f'"{slots["headers"]}": "", ', "\x01headers\x01")
    for name, slot in slots.items():
        text = text.replace(f'"{slot}"', f"\x01{name}\x01")
    return Wire(queue=queue, text=text, embed=json.dumps(producer.embed))
