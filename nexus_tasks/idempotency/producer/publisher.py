"""Sends wake-ups (the Celery messages of claims). A lost wake-up loses no job, because the sweep sends another one.

When claims and messages share a Redis, :meth:`Publisher.enqueue` claims a job and pushes its message in one script.
Therefore a crash cannot leave a claim without a message, or a message without a claim. With another broker there are
two steps: first the claim, then the message. Canvas deliveries take two steps too, because only Celery can write them.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from celery import Celery, signals
from celery.exceptions import QueueNotFound
from kombu.exceptions import KombuError, OperationalError

from nexus_tasks.idempotency.claim import Messages, Ticket, Wakeup
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kind import task_name_of
from nexus_tasks.idempotency.producer.wire_format import Template, header, make_template, send, trace_of_call
from nexus_tasks.idempotency.request import URGENT, Request

log = logging.getLogger(__name__)


@contextmanager
def _library_errors(producer: Any) -> Iterator[None]:
    """Make a ``KombuError`` of each error of a lost connection.

    When the connection is lost while kombu 5.7 declares a queue, kombu connects again. Then it publishes to the channel
    of the lost connection, and raises an ``AttributeError``.
    """
    with producer.connection._reraise_as_library_errors():
        try:
            yield
        except AttributeError as error:
            if producer.channel.connection is not None:
                raise
            raise OperationalError("The connection was lost.") from error


class Publisher:
    """Sends one deployment's messages to the broker of ``app``, also while another Celery application is current."""

    def __init__(self, app: Celery, claims: Claims) -> None:
        self.app, self.claims = app, claims
        # For each kind and queue, the template of the kind's messages in this queue.
        self._templates: dict[tuple[str, str], Template | None] = {}
        # Together they make the delivery tags of this process. A UUID for each message would cost more time.
        self._tag, self._calls = uuid.uuid4().hex, itertools.count()

    def enqueue(self, requests: Sequence[Request], **options: Any) -> list[Ticket]:
        """Claim jobs, and publish the messages of the new claims.

        Args:
            requests: the requests for the jobs.
            options: options of Celery's ``apply_async``.

        Returns:
            One ticket for each request, in the same order.

        Raises:
            QueueUnavailable: Redis does not answer. Nothing was queued.
        """
        tickets = self.claims.claim(*self._written(requests, options))
        self.publish([ticket.wakeup for ticket in tickets if ticket.wakeup], **options)
        return tickets

    def enqueue_steps(self, steps: Iterable[Sequence[Request]]) -> Iterator[tuple[Request, Ticket]]:
        """Like :meth:`enqueue` for many steps, one after the other. Yields each request with its ticket.

        While Redis claims the jobs of one step, this thread makes and writes the requests of the next step. A thread of
        its own waits for Redis. So the call takes little longer than the slower of the two.

        Raises:
            QueueUnavailable: Redis does not answer. No job of this step and of later steps was queued.
        """
        with ThreadPoolExecutor(1, "nexus-enqueue") as aside:
            before: Sequence[Request] = ()
            claimed: Future[list[Ticket]] | None = None
            for step in itertools.chain(steps, [()]):
                requests, messages = self._written(step, {})
                tickets = claimed.result() if claimed else []
                claimed = aside.submit(self.claims.claim, requests, messages)
                self.publish([ticket.wakeup for ticket in tickets if ticket.wakeup])
                yield from zip(before, tickets, strict=True)
                before = requests

    def _written(
        self, requests: Sequence[Request], options: Mapping[str, Any]
    ) -> tuple[Sequence[Request], Messages | None]:
        """The requests with their trace, and the messages that the claims' script pushes itself."""
        if trace := trace_of_call(self.app, options):
            requests = [replace(request, trace=trace) for request in requests]
        if options or not self._is_plain():
            return requests, None
        places = {(request.kind, request.queue) for request in requests}
        wires = {place: made.wire for place in places if (made := self.template_of(*place))}
        bodies = [
            wire.body(request) if (wire := wires.get((request.kind, request.queue))) and not request.delay else ""
            for request in requests
        ]
        known = {place: (wire.queue, wire.text) for place, wire in wires.items() if wire}
        return requests, Messages(tag=f"{self._tag}-{next(self._calls)}", templates=known, bodies=bodies)

    def publish(self, wakeups: Iterable[Wakeup], **options: Any) -> int:
        """Publish each wake-up as a message of its job's task. Returns the number of messages that were sent."""
        rest = list(wakeups)
        sent, batched = 0, False
        try:
            if not rest:
                return 0
            if options or not self._is_plain():
                for wakeup in rest:
                    sent += self._send(wakeup, **options)
                return sent
            with self.app.producer_or_acquire() as producer, _library_errors(producer):
                # Redis takes a batch in few round trips. A batch is not retried, so its first error ends it.
                batched = len(rest) > 1 and producer.supports_batch_publish
                retry = {"retry": False} if batched else {}
                with producer.batch():
                    for wakeup in rest:
                        template = self.template_of(wakeup.kind, wakeup.queue)
                        if template and wakeup.options is None:
                            template.publish(producer, wakeup, **retry)
                            sent += 1
                        else:
                            sent += self._send(wakeup, producer=producer, **retry)
        except KombuError as error:
            # The broker does not take the other wake-ups either, so they are not tried: each would cost a time-out.
            log.warning("Not all of %d messages were sent (%s); the sweep sends the rest.", len(rest), error)
            return 0 if batched else sent
        return sent

    def has_template(self, kind: str, queue: str) -> bool:
        """Whether there is a template for messages of ``kind`` in its own queue. If so, the queue exists."""
        return bool(self._templates.get((kind, queue)))

    def template_of(self, kind: str, queue: str) -> Template | None:
        """The template of a kind's messages in a queue, or ``None`` when Celery must write each message."""
        made, place = self._templates, (kind, queue)
        if place not in made:
            task = self.app.tasks.get(task_name_of(kind))
            if task and queue not in (task.kind.queue, URGENT):
                return None  # a claim of an earlier release names this queue
            try:
                made[place] = make_template(task, queue, self.claims.url) if task else None
            except (QueueNotFound, KombuError) as error:
                log.debug("No template for messages of %s: %s", kind, error)
                return None
        return made[place]

    def _is_plain(self) -> bool:
        """Whether messages may be made from a template. Some signals and settings need Celery for each message."""
        if signals.before_task_publish.receivers or signals.after_task_publish.receivers:
            return False
        return not (self.is_eager or self._is_on("task_send_sent_event"))

    @property
    def is_eager(self) -> bool:
        """Whether Celery's ``task_always_eager`` is set, so that jobs run in this process."""
        return self._is_on("task_always_eager")

    def _is_on(self, name: str) -> bool:
        # Reading a setting from `app.conf` takes half as long as a round trip to Redis. Reading `changes` is faster.
        return bool(self.app.conf.changes.get(name, self._configured[name]))

    @cached_property
    def _configured(self) -> dict[str, Any]:
        return {name: self.app.conf[name] for name in ("task_always_eager", "task_send_sent_event")}

    def _send(self, wakeup: Wakeup, **options: Any) -> bool:
        """Let Celery itself write and publish a message."""
        task = self.app.tasks.get(task_name_of(wakeup.kind))
        if task is None:
            return self._send_unknown(wakeup)
        try:
            send(task, wakeup, **options)
        except QueueNotFound as error:
            log.warning("Job %s has no queue: %s", wakeup.job_id, error)
            return False
        return True

    def _send_unknown(self, wakeup: Wakeup) -> bool:
        """Publish a message of a job kind that this process does not know: a worker that knows the kind receives it."""
        name = task_name_of(wakeup.kind)
        if wakeup.options is not None or wakeup.queue not in self.app.amqp.queues:
            log.warning("No task named %s is registered here.", name)
            return False
        self.app.send_task(
            name,
            kwargs=dict(wakeup.args),
            task_id=wakeup.job_id,
            queue=wakeup.queue,
            headers=header(wakeup),
            ignore_result=True,
        )
        return True
