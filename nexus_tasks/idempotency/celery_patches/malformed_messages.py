"""Patch of Celery 5.7 and kombu 5.7: a message that cannot be read is moved to quarantine, and the worker goes on.

Celery reads each message on the worker's event loop, and some malformed messages end the worker. Examples are a message
without an id, a body that does not belong to a task, and a time limit that is not a number. The broker then delivers
the same message to the next worker. On Redis, kombu treats a message without an id as a lost connection, so the worker
reconnects and reads the message again. On Redis, a text that is not a message ends the worker too.

With this patch a worker checks the parts of a message that Celery reads. When a message fails the check, the worker
moves the message to quarantine (``quarantine.py``) and rejects it. All other messages go to Celery, also messages of
tasks outside this package.
"""

from __future__ import annotations

import json
import logging
import numbers
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery.worker.consumer import Consumer
from kombu.transport import redis

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.engine import engine_of, has_jobs
from nexus_tasks.idempotency.producer.wire_format import HEADER
from nexus_tasks.idempotency.quarantine import set_aside

log = logging.getLogger(__name__)

_UNREADABLE = "nexus-unreadable"  # the header of an envelope, which gets a text that is no message through kombu
_TEXTS = ("root_id", "parent_id", "group", "shadow", "eta", "expires")  # headers that are a text or None
# Errors that a part of a wrong type causes. Errors of a connection are others, and Celery connects again after them.
_OF_THE_MESSAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_DEEPEST = 100  # how deeply a message may be nested. Near Python's own limit it could be read, but not be written again
_read_handler = Consumer.create_task_handler
_loads = redis.loads
_consume = redis.Channel.basic_consume
_restore = redis.QoS.restore_by_tag
_drop_undecoded = Consumer.on_decode_error


def fault_of(message: Any) -> str:
    """Why Celery cannot run this message, or an empty text. Celery reuses the body that this check decodes."""
    headers, properties = message.headers, message.properties
    if not isinstance(headers, Mapping) or not isinstance(properties, Mapping | None):
        return "it has no headers"
    if _UNREADABLE in headers:
        return str(headers[_UNREADABLE])
    if not isinstance(message.delivery_info, Mapping | None):
        return "its delivery_info is no mapping"
    try:
        body = message.payload
    except Exception as error:  # a decoder may raise any exception
        return f"its body cannot be read ({type(error).__name__}: {error})"
    if "task" not in headers:
        if not isinstance(body, dict) or "task" not in body:
            return "it names no task"
        headers = body  # in the first version of Celery's protocol the body contains the headers
    return _fault_of_headers(headers) or _fault_of_body(body)


def _fault_of_headers(headers: Mapping[str, Any]) -> str:
    for name in ("task", "id"):
        if not isinstance(headers.get(name), str) or not headers[name]:
            return f"it has no {name}"
    if not headers["id"].isprintable():
        return "its id has a character that is not printable"
    for name in _TEXTS:
        if not isinstance(headers.get(name), str | None):
            return f"its {name} is no text"
    limits = headers.get("timelimit") or (None, None)
    if not isinstance(limits, list | tuple) or len(limits) != 2 or not all(map(_is_number, limits)):
        return "its timelimit is not a pair of numbers"
    if not _is_number(headers.get("retries")):
        return "its retries is no number"
    stamped = headers.get("stamped_headers")
    if not isinstance(stamped, list | tuple | None) or not all(isinstance(name, str) for name in stamped or ()):
        return "its stamped_headers is no list of texts"
    for name in ("stamps", HEADER):
        if not isinstance(headers.get(name), Mapping | None):
            return f"its {name} is no mapping"
    return ""


def _fault_of_body(body: Any) -> str:
    if isinstance(body, dict):
        args, kwargs, embed = body.get("args", ()), body.get("kwargs", {}), {}
    elif isinstance(body, list | tuple) and len(body) == 3:
        args, kwargs, embed = body
    else:
        return "its body is not a task's"
    if not isinstance(args, list | tuple):
        return "its args are no list"
    if not isinstance(kwargs, dict):
        return "its kwargs are no mapping"
    return "" if isinstance(embed, dict) else "its body is not a task's"


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, numbers.Real)


# --- Celery's consumer ------------------------------------------------------------------------------------------------
def move_malformed_aside() -> None:
    """Make the workers of this process move malformed messages to quarantine."""
    Consumer.create_task_handler = _create_task_handler
    Consumer.on_decode_error = _on_decode_error
    redis.loads = _loads_or_wraps
    redis.Channel.basic_consume = _basic_consume
    redis.QoS.restore_by_tag = _restore_by_tag


def _create_task_handler(consumer: Any, *args: Any, **options: Any) -> Callable[[Any], object]:
    if not has_jobs(consumer.app):
        return _read_handler(consumer, *args, **options)  # type: ignore[no-any-return]
    # Celery reads these two methods when it makes its handler. They quarantine malformed messages that the check did
    # not find.
    consumer.on_unknown_message = lambda _body, message: _reject(consumer, message, "it names no task")
    consumer.on_invalid_task = lambda _body, message, error: _reject(consumer, message, str(error))
    handle, engine = _read_handler(consumer, *args, **options), engine_of(consumer.app)

    def on_task_received(message: Any) -> None:
        if fault := fault_of(message):
            _reject(consumer, message, fault)
        else:
            try:
                handle(message)
            except _OF_THE_MESSAGE as error:  # Celery read a part that the check does not know
                _reject(consumer, message, f"Celery cannot read it ({type(error).__name__}: {error})")
        # The watchdog reads this number. Messages that begin no run, such as jobs of unknown kinds, count too.
        engine.messages_taken += 1

    return on_task_received


def _on_decode_error(consumer: Any, message: Any, error: Exception) -> None:
    """kombu calls this instead of the handler when it cannot decompress a body."""
    if not has_jobs(consumer.app):
        _drop_undecoded(consumer, message, error)
        return
    fault = f"its body cannot be read ({type(error).__name__}: {error})"
    _reject(consumer, message, fault)
    engine_of(consumer.app).messages_taken += 1


def _reject(consumer: Any, message: Any, fault: str) -> None:
    try:
        set_aside(engine_of(consumer.app).claims, message, fault)
    except NexusError as error:
        log.error("A malformed message is dropped, because it cannot be kept (%s): %s", error, _shown(message))
    message.reject_log_error(log, consumer.connection_errors)


def _shown(message: Any) -> str:
    return f"{message.headers!r} {message.body!r}"[:2_000]


# --- kombu's Redis transport ------------------------------------------------------------------------------------------
def _loads_or_wraps(text: str, *args: Any, **options: Any) -> Any:
    """Parse a message of a Redis list. A text that is not JSON is put into an envelope, which fails the check."""
    try:
        parsed = _loads(text, *args, **options)
    except ValueError:
        return _envelope(text, "it is no JSON")
    except RecursionError:
        return _envelope(text, "it is nested too deeply")
    return _envelope(text, "it is nested too deeply") if _is_deep(parsed) else parsed


def _is_deep(parsed: Any) -> bool:
    """Whether JSON is nested more deeply than ``_DEEPEST``."""
    level = [parsed] if isinstance(parsed, dict | list) else []
    for _ in range(_DEEPEST):
        level = [
            each
            for one in level
            for each in (one.values() if isinstance(one, dict) else one)
            if isinstance(each, dict | list)
        ]
        if not level:
            return False
    return True


def _basic_consume(
    channel: Any, queue: str, no_ack: bool, callback: Callable[[Any], object], *args: Any, **options: Any
) -> Any:
    consuming = _consume(channel, queue, no_ack, callback, *args, **options)

    def deliver(raw: Any) -> object:
        message = _message(channel, raw, queue)
        channel.qos.append(message, message.delivery_tag)
        return callback(message)

    if not no_ack:
        channel.connection._callbacks[queue] = deliver
    return consuming


def _restore_by_tag(qos: Any, tag: Any, client: Any = None, leftmost: bool = False) -> None:
    """Put a message back that a worker has taken and lost. What is no message is deleted: with it no worker starts."""
    try:
        _restore(qos, tag, client, leftmost)
    except _OF_THE_MESSAGE as error:
        with qos.channel.conn_or_acquire(client) as connected:
            shown = f"{connected.hget(qos.unacked_key, tag)!r:.2000}"
            qos._remove_from_indices(tag, connected.pipeline()).execute()
        log.error("A value among the taken messages is deleted, because it is no message (%s): %s", error, shown)


def _message(channel: Any, raw: Any, queue: str) -> Any:
    """Make kombu's message. JSON that is not a message is put into an envelope, which fails the check."""
    try:
        message = channel.Message(raw, channel=channel)
        _ = message.delivery_info["exchange"], message.delivery_info["routing_key"]  # kombu needs both
        if isinstance(message.delivery_tag, str):
            return message
    except Exception:  # any part of the envelope may be wrong
        pass
    if not (isinstance(raw, dict) and _UNREADABLE in (raw.get("headers") or {})):
        raw = _envelope(json.dumps(raw), "it is no message")
    raw["properties"]["delivery_info"] = {"exchange": "", "routing_key": queue}
    return channel.Message(raw, channel=channel)


def _envelope(text: str, fault: str) -> dict[str, Any]:
    return {
        "body": text,
        "content-type": "text/plain",
        "content-encoding": "utf-8",
        "headers": {_UNREADABLE: fault},
        "properties": {"delivery_tag": str(uuid.uuid4()), "delivery_info": {}},
    }
