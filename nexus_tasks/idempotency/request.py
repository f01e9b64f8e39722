"""A producer's request for a job, and its idempotency key. Two requests for the same work have the same key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic_core import to_json

from nexus_tasks.types.unicode_form import nfc

# This number is increased when the meaning of a claim's fields or of a message changes. A worker of an older release
# does not run claims with a higher number.
VERSION = 1

WhileRunning = Literal["drop", "rerun"]
# The urgency of jobs that a caller waits for, and the name of the queue that has their messages. `lua/common.lua` has
# the same name.
URGENT = "urgent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags of a request. When two requests ask for the same work, their flags are merged.

    The merged flags have ``force`` if one of the requests has it. They have the reasons of both requests. Their urgency
    is the higher one: ``urgent``, then ``live``, then any other.
    """

    force: bool = False
    reasons: tuple[str, ...] = ()
    urgency: str = ""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message that Celery itself waits for: it is in a chord or a chain, or has links. See ``canvas.py``."""

    id: str
    options: str  # Celery's options of the message, such as its chord and links, as canonical JSON
    parts: int = 1  # how many requests the delivery stands for; each of these requests has a copy of the delivery
    first: bool = True  # whether this copy belongs to the first of these requests


# Slots are used, because the dicts of thousands of requests would slow the garbage collector.
@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request for a job, ready to be claimed. ``scope`` and ``args`` are canonical JSON."""

    id: str
    kind: str
    namespace: str
    queue: str
    scope: str
    args: str
    flags: Flags
    while_running: WhileRunning
    immutable: bool
    live_ends_wait: str = ""  # a request of urgency `live` ends a wait for this reason at once
    delay: float = 0.0  # seconds
    wait_reason: str = "delay"  # the reason of the wait for `delay` seconds
    anew: bool = False  # ignores the done marker; without force and reasons, a run that is under way serves the request
    delivery: Delivery | None = None
    trace: str = ""  # JSON: `root_id`, `parent_id` and `headers` that all messages of the job carry

    def key(self, prefix: str) -> str:
        """The idempotency key: ``<prefix>:job:<kind>:<sha256 of the canonical scope>``."""
        return claim_key(prefix, self.kind, self.scope)

    def as_json(self) -> str:
        """The request as JSON for the Lua scripts."""
        fields: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "namespace": self.namespace,
            "queue": self.queue,
            "scope": self.scope,
            "args": self.args,
            "version": VERSION,
            "force": "1" if self.flags.force else "",
            "reasons": ",".join(self.flags.reasons),
            "urgency": self.flags.urgency,
            "while_running": self.while_running,
            "immutable": self.immutable,
            "anew": self.anew,
            "live_ends_wait": self.live_ends_wait,
            "delay": int(self.delay * 1000),
            "wait_reason": self.wait_reason,
        }
        if self.delivery:
            fields["delivery"] = self.delivery.__dict__
        if self.trace:
            fields["trace"] = self.trace
        return to_json(fields).decode()

    def renewed(self) -> Request:
        """This request with ``anew`` and without flags. Reconcile and erasure ask for jobs with this form."""
        return replace(self, anew=True, flags=Flags())


# `json.dumps` with options makes a new encoder for every call. This encoder is made only once, which saves time.
compact = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def claim_key(prefix: str, kind: str, scope: str) -> str:
    """The idempotency key of a kind and its canonical scope."""
    return f"{prefix}:job:{kind}:{hashlib.sha256(scope.encode()).hexdigest()}"


def canonical(value: Mapping[str, Any]) -> str:
    """``value`` as JSON in Unicode form NFC, with sorted keys. Keys whose value is ``None`` are left out.

    Raises:
        TypeError: ``value`` contains a float. A float can be written in several ways, and each would make another key.
    """
    kept = {name: item for name, item in value.items() if item is not None}
    for item in kept.values():
        _refuse_floats(item)
    return nfc(compact(kept))


def _refuse_floats(value: Any) -> None:
    if isinstance(value, str | int):
        return
    if isinstance(value, float):
        raise TypeError(f"The scope of a job holds {value!r}; a float cannot be part of a key.")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _refuse_floats(item)
