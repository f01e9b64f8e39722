"""Claims (the records of jobs) in Redis. Each method that changes claims calls one Lua script and returns typed values.

The scripts are in ``lua/``; ``lua/common.lua`` lists the keys. ``claim.py`` has the returned types.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import redis
from redis.lock import Lock

from nexus_tasks.errors import DamagedKey, QueueUnavailable
from nexus_tasks.idempotency.claim import Begun, Claim, Claimed, Messages, Ticket, Wakeup
from nexus_tasks.idempotency.redis_client import Script, client, serves_us_not, takes_no_writes
from nexus_tasks.idempotency.request import VERSION, Request, claim_key
from nexus_tasks.types import Worker

log = logging.getLogger(__name__)

Row = list[Any]
AT_ONCE = 1_000  # claims that one script wakes; Redis serves no other client while a script runs
_PLACE = "-- [common.lua]\n"  # where a script has the definitions of common.lua, if not at its start
_COMMENT = re.compile(r"(?m)--.*$")
_DEFINITION = re.compile(r"(?m)^(?=local )")  # the start of each definition of common.lua
LONGEST_NUMBER = 15  # digits; `number` in common.lua has the same bound
LOCKS = ("reconciling", "checking", "repairing")  # the locks of workers beside that of the sweep
_NAMES = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_WORD = re.compile(r"\w+")
# How Redis tells that a value is no number, or that a script met something which it does not expect.
_WRONG_VALUE = ("not an integer", "not a float", "would overflow", "user_script")
HELD_SECONDS = 30  # how long a worker's report of its held threads counts


class Claims:
    """The claims of one deployment (one Redis database and key prefix). Thread-safe; connects on first use.

    Every method raises :class:`QueueUnavailable` when Redis does not answer.
    """

    def __init__(self, url: str, prefix: str, *, timeout: float = 5.0, master_name: str = "") -> None:
        self.url = url
        self.prefix = prefix
        self._timeout = timeout  # seconds for each answer
        self._master_name = master_name  # the name of the master that Sentinels are asked for

    @cached_property
    def redis(self) -> Any:
        """The Redis client of the claims. It is not kombu's, which adds its key prefix only to a script's first key."""
        return client(self.url, timeout=self._timeout, master_name=self._master_name)

    @cached_property
    def _scripts(self) -> dict[str, Script]:
        return {name: Script(self.redis, source) for name, source in _sources().items()}

    def _run(self, script: str, keys: Sequence[str], *args: str | int | float) -> Any:
        with answering():
            return self._scripts[script](keys, [self.prefix, *args])

    def key(self, request: Request) -> str:
        """The request's idempotency key."""
        return request.key(self.prefix)

    # --- producers ----------------------------------------------------------------------------------------------------
    def claim(self, requests: Sequence[Request], messages: Messages | None = None) -> list[Ticket]:
        """Ask for jobs in one atomic step. The caller publishes the wake-ups (messages of claims) of the tickets.

        Args:
            messages: messages that the same step pushes for new jobs. The ticket of such a request has no wake-up,
                because nothing is left to publish.
        """
        if not requests:
            return []
        known = messages or Messages(tag="", templates={}, bodies=[""] * len(requests))
        args = [text for place, template in known.templates.items() for text in (*place, *template)]
        for request, body in zip(requests, known.bodies, strict=True):
            args += request.as_json(), body
        keys = [self.key(request) for request in requests]
        now, rows = self._run("claim", keys, known.tag, len(known.templates), *args)
        return [
            Ticket(
                outcome=Claimed[outcome],
                job_id=job_id,
                wakeup=next(iter(self._wakeups([wakeup] if wakeup else [])), None),
                asked_at=int(now) / 1000,
            )
            for outcome, job_id, wakeup in rows
        ]

    # --- runs ---------------------------------------------------------------------------------------------------------
    def begin(
        self,
        request: Request,
        token: str,
        *,
        lease: float,
        cap: int,
        gathers: bool,
        published_at: str,
        worker: Worker | None = None,
        dialect: str = "",
    ) -> tuple[Begun, Claim | None, list[Wakeup]]:
        """Start a run of the request's claim under the fencing token ``token``.

        Args:
            lease: seconds.
            cap: how many runs the request's namespace may have at once.
            gathers: whether another run may take this claim along, until this run has called :meth:`take` itself.
            published_at: when the message was published, in ms; empty without a message.
            worker: the process of the run, which ``nexus status`` shows.
            dialect: this worker's version of the kind (:attr:`JobKind.dialect`).

        Returns:
            The outcome, the claim (only with :attr:`Begun.RUN`), and wake-ups to publish. The wake-ups belong to the
            next claims in the namespace's line.
        """
        key, told = self.key(request), worker.as_json() if worker else ""
        outcome, fields, wakeups = self._run(
            "begin",
            [key],
            token,
            _ms(lease),
            cap,
            int(gathers),
            published_at or 0,
            request.as_json(),
            VERSION,
            told,
            dialect,
        )
        claim = self._parsed(key, _pairs(fields)) if fields else None
        if fields and claim is None:
            raise DamagedKey("A claim in Redis has a wrong value. Another program wrote it.")
        return Begun[outcome], claim, self._wakeups(wakeups)

    def take(
        self,
        lead: Claim,
        siblings: Sequence[Request],
        *,
        lease: float,
        company: str = "",
        again: bool = False,
        despite_errors: bool = False,
    ) -> tuple[list[Claim], list[Wakeup]] | None:
        """Take siblings (other messages of a session) into the run of ``lead``. ``take.lua`` says which are taken.

        Args:
            siblings: the requests of the siblings.
            lease: seconds.
            company: the wait reason of siblings that wait for a run to take them along.
            again: the siblings were in a batch whose run was cut off; they may wait for any reason.
            despite_errors: with ``again``, take siblings with two unknown errors too: their whole batch has failed.

        Returns:
            The claims that were taken, and wake-ups to publish; ``None`` when the run has lost ``lead`` itself.
        """
        keys = [self.key(r) for r in siblings]
        answer = self._run(
            "take",
            [lead.key, *keys],
            lead.token,
            _ms(lease),
            2 if despite_errors else int(again),
            company,
            *(r.as_json() for r in siblings),
        )
        if answer is None:
            return None
        rows, wakeups = answer
        read = (self._parsed(key, _pairs(row)) for key, row in zip(keys, rows, strict=True) if row)
        taken = [claim for claim in read if claim]
        return taken, self._wakeups(wakeups)

    def renew(self, running: Sequence[Claim], *, lease: float) -> list[Claim]:
        """Renew the leases of this process's running claims for ``lease`` seconds.

        Returns:
            The claims that this process has lost. Their leases are not renewed.
        """
        if not running:
            return []
        args = [text for claim in running for text in (claim.token, claim.as_json())]
        lost = self._run("renew", [claim.key for claim in running], _ms(lease), *args)
        return [running[position - 1] for position in lost]

    def ended(self, runs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether each of these runs, given as (claim key, token), has ended or lost its claim for certain.

        While a claim is unknown, for example after a flush of Redis, its run may go on. So may the run of a dropped
        claim until its next check.
        """
        with answering():
            pipe = self.redis.pipeline(transaction=False)
            for key, _ in runs:
                pipe.hmget(key, "state", "token")
                pipe.get(key.replace(f"{self.prefix}:job:", f"{self.prefix}:done:", 1))
            found = pipe.execute()
        return [
            owner != token if state else marker is not None and not marker.endswith(" dropped")
            for (_, token), (state, owner), marker in zip(runs, found[::2], found[1::2], strict=True)
        ]

    def finish(self, claims: Sequence[Claim], statuses: Sequence[str], *, delivery: str = "") -> list[Wakeup]:
        """End the run of ``claims``, each with its status. Returns wake-ups to publish.

        Args:
            statuses: of each claim; ``dead`` only when the claim's dead letter is committed.
            delivery: the canvas delivery that the caller completes itself.
        """
        _, wakeups = self._run("finish", [c.key for c in claims], claims[0].token, delivery, *statuses)
        return self._wakeups(wakeups)

    def wait(
        self,
        claims: Sequence[Claim],
        reason: str,
        seconds: float,
        *,
        detail: str = "",
        failure: str = "",
        retry: bool = False,
        error: bool = False,
    ) -> list[Wakeup]:
        """Let ``claims`` wait for ``seconds``. Returns wake-ups to publish.

        Args:
            detail: what ``nexus status`` shows beside the reason.
            failure: type and text of the error that ended the run, for people; empty when nothing failed.
            retry: whether the run failed and is retried.
            error: whether the cause of the failure is unknown. If so, the run counts against ``max_attempts``.
        """
        _, wakeups = self._run(
            "wait",
            [c.key for c in claims],
            claims[0].token,
            reason,
            _ms(seconds),
            detail,
            int(retry),
            int(error),
            failure,
        )
        return self._wakeups(wakeups)

    # --- waking, dropping and keeping claims --------------------------------------------------------------------------
    def hurry(self, reason: str, *, requests: Sequence[Request]) -> list[Wakeup]:
        """Wake the claims of ``requests`` that wait for ``reason``. Other claims do not change."""
        return self._hurry(reason, [self.key(r) for r in requests])[1] if requests else []

    def hurry_all(self, reason: str, whose: str, *, most: float = float("inf")) -> Iterator[list[Wakeup]]:
        """Wake every claim of ``whose`` that waits for ``reason``, the longest waiting first.

        A run of ``whose`` that is about to wait for ``reason`` is due again at once: what it waits for may have come
        after it looked. (Not so for the reasons ``pause`` and ``version``.)

        Args:
            whose: a namespace; for the reason ``pause`` a job kind, for ``version`` a member of ``<prefix>:versions``.
            most: how many claims to wake at the most.

        Returns:
            Wake-ups to publish, a list per 1,000 claims.
        """
        while True:
            asked = int(min(AT_ONCE, most))
            woken, wakeups = self._hurry(reason, (), whose, asked)
            yield wakeups
            most -= woken
            if woken < asked or most <= 0:
                return

    def _hurry(self, reason: str, keys: Sequence[str], *whose: str | int) -> tuple[int, list[Wakeup]]:
        woken, wakeups = self._run("hurry", keys, reason, *whose)
        return woken, self._wakeups(wakeups)

    def drop(self, key: str, *, job_id: str = "", delivery: str = "") -> tuple[bool, list[Wakeup]]:
        """Remove a claim in any state.

        Args:
            job_id: if given, the claim is removed only when it has this id.
            delivery: a canvas delivery that was revoked. It is forgotten, even if its claim stays.

        Returns:
            Whether the claim was removed, and wake-ups to publish.
        """
        dropped, wakeups = self._run("drop", [key], job_id, delivery)
        return bool(dropped), self._wakeups(wakeups)

    def leave_to_others(self, key: str, dialect: str) -> list[Wakeup]:
        """Let a claim wait for another worker, because a worker with this dialect does not understand it.

        Returns:
            Wake-ups to publish, which belong to the next claims in the namespace's line.
        """
        return self._wakeups(self._run("leave_to_others", [key], dialect))

    def understood(self, dialects: Mapping[str, str], *, try_all: bool = False) -> Iterator[list[Wakeup]]:
        """Wake claims that other workers did not understand, and that this worker understands.

        Args:
            dialects: for each kind, this worker's version of it (:attr:`JobKind.dialect`).
            try_all: also wake claims that a worker of the same dialect did not understand.

        Returns:
            Wake-ups to publish, a list per 1,000 claims.
        """
        with answering():
            waiting = self.redis.smembers(f"{self.prefix}:versions")
        for one in sorted(waiting):
            kind, _, strange_to = one.partition("|")
            if kind in dialects and (try_all or dialects[kind] not in strange_to.split(",")):
                yield from self.hurry_all("version", one)

    def not_understood(self) -> dict[str, int]:
        """How many claims of each kind wait for a worker that understands them."""
        with answering():
            waiting = sorted(self.redis.smembers(f"{self.prefix}:versions"))
            pipe = self.redis.pipeline(transaction=False)
            for one in waiting:
                pipe.zcard(f"{self.prefix}:waits:version:{one}")
            numbers = pipe.execute()
        found: dict[str, int] = {}
        for one, number in zip(waiting, numbers, strict=True):
            if number:
                kind = one.partition("|")[0]
                found[kind] = found.get(kind, 0) + number
        return found

    def forget_errors(self, keys: Iterable[str]) -> None:
        """Delete the error texts of claims, which ``nexus jobs show`` prints."""
        with answering():
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hdel(key, "error")
            pipe.execute()

    def rewrite_file(self, *, within: float) -> None:
        """Let Redis write its append-only file anew, without what was deleted, and wait for that.

        Redis does it in the background. A rewrite that began before may still have what was deleted.

        Args:
            within: seconds; the longest wait.
        """
        deadline, asked = time.monotonic() + within, False
        with answering():
            while True:
                state = self.redis.info("persistence")
                is_at_it = state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]
                if not state["aof_enabled"] or (asked and not is_at_it):
                    return
                if not is_at_it:
                    with suppress(redis.exceptions.ResponseError):  # another one has just begun
                        self.redis.bgrewriteaof()
                        asked = True
                if time.monotonic() >= deadline:
                    log.warning("Redis has not written its file anew within %.0f s.", within)
                    return
                time.sleep(0.05)  # Redis does not tell when it has finished

    def keep_reserved(self, messages: Mapping[str, str]) -> None:
        """Keep the sweep from sending messages again that this worker has received and has not begun.

        Args:
            messages: for each message's id the key of its claim.
        """
        if messages:
            self._run("keep_reserved", list(messages.values()), *messages)

    # --- canvas deliveries --------------------------------------------------------------------------------------------
    def delivery_outcome(self, delivery: str, *, queue: str, published_at: str = "") -> tuple[str, str] | None:
        """The outcome of the runs that a canvas delivery waits for: the status and the id of the job that did the work.

        It is ``None`` when the runs have not ended, or when another message of the delivery has had this answer.
        """
        found = self._run("delivery_outcome", [], delivery, queue, published_at or 0)
        return (found[0], found[1]) if found else None

    def has_delivery(self, delivery: str) -> bool:
        """Whether Celery has not yet accounted for a canvas delivery of this id."""
        with answering():
            return bool(self.redis.exists(f"{self.prefix}:delivery:{delivery}"))

    def delivery_accounted(self, delivery: str) -> None:
        """Forget a canvas delivery, because Celery has stored its result and sent its links."""
        self._run("delivery_accounted", [], delivery)

    # --- the sweep ----------------------------------------------------------------------------------------------------
    def lock(self, name: str, *, seconds: float) -> Lock:
        """A lock of redis-py with the key ``<prefix>:<name>``. The caller takes the lock, which lasts ``seconds``."""
        return Lock(self.redis, f"{self.prefix}:{name}", timeout=seconds, blocking=False, thread_local=False)

    def now(self) -> float:
        """The Redis server's time, seconds since the epoch."""
        with answering():
            seconds, microseconds = self.redis.time()
        return float(seconds) + float(microseconds) / 1e6

    def uptime(self) -> float:
        """Seconds since the Redis server was started."""
        with answering():
            return float(self.redis.info("server")["uptime_in_seconds"])

    def queues(self) -> list[str]:
        """The queues that have, or ever had, pending claims."""
        with answering():
            return sorted(self.redis.smembers(f"{self.prefix}:queues"))

    def sweep_clock(self, *, lease: float, lock: str, lock_seconds: float, limit: int) -> tuple[float, float]:
        """Write down the server's time. If its clock went back, correct the times that now lie in the future.

        Args:
            lock: the name of the sweep's lock. The lock lasts at most ``lock_seconds``.
            limit: how many entries of each index are corrected at the most.

        Returns:
            The server's time, and the seconds by which its clock went back since the last call, or 0.
        """
        locks = [f"{self.prefix}:{name}" for name in (lock, *LOCKS)]
        now, back, ended = self._run("sweep_clock", [], _ms(lease), locks[0], _ms(lock_seconds), limit, *locks[1:])
        for name in ended:
            log.warning("The lock %s had no end, because another program wrote it. It ends now.", name)
        return int(now) / 1000, int(back) / 1000

    def sweep_due(self, limit: int) -> tuple[int, list[Wakeup]]:
        """Let waiting claims go on that are due. Returns their number, and wake-ups to publish."""
        due, wakeups = self._run("sweep_due", [], limit)
        return due, self._wakeups(wakeups)

    def set_cap(self, namespace: str, cap: int) -> list[Wakeup]:
        """Set how many runs a namespace may have at a time, 0 while it is paused. Each ``begin`` sets it again."""
        return self._wakeups(self._run("cap", [], namespace, cap))

    def sweep_lines(self, limit: int, *, every: float) -> list[Wakeup]:
        """Let claims go on in lines with room, of namespaces last looked at more than ``every`` seconds ago.

        Returns:
            Wake-ups to publish.
        """
        return self._wakeups(self._run("sweep_lines", [], limit, _ms(every)))

    def sweep_leases(
        self, limit: int, *, attempts: int, token: str, lease: float, due_in: float, held_by: str = ""
    ) -> tuple[int, list[Claim], list[Wakeup]]:
        """Take claims away from runs whose lease has ended, or whose process has died.

        Args:
            attempts: how many crashes and unknown errors make a dead letter.
            token: the sweep's own token, for the claims that the sweep takes over.
            due_in: seconds until a claim that waits again is due.
            held_by: the first part of the tokens of a dead process. If empty, the claims whose lease has ended are
                taken.

        Returns:
            How many claims wait again, the claims without attempts left, and wake-ups to publish.
        """
        returned, dead, wakeups = self._run(
            "sweep_leases", [], limit, attempts, token, _ms(lease), _ms(due_in), held_by
        )
        return returned, self._claims(dead), self._wakeups(wakeups)

    def sweep_lost(
        self, queue: str, limit: int, *, empty: bool, grace: float, longest: float, age: float | None = None
    ) -> list[Wakeup]:
        """Find pending claims of ``queue`` whose message is lost. Returns wake-ups to publish again.

        Args:
            empty: whether the queue holds no message.
            grace: seconds before a message may count as lost. Each republishing doubles them, up to ``longest``.
            age: fewer seconds, just after a worker has died. The grace still doubles.
        """
        ages = _ms(grace if age is None else age), _ms(grace), _ms(longest)
        rows = self._run("sweep_lost", [], queue, int(empty), limit, *ages)
        return self._wakeups(rows)

    def sweep_settle(
        self, queue: str, limit: int, *, empty: bool, grace: float, longest: float, age: float | None = None
    ) -> list[Wakeup]:
        """Find canvas deliveries of ``queue`` whose runs have ended, but whose message or worker is lost.

        Returns:
            Wake-ups to publish again. The arguments are those of :meth:`sweep_lost`.
        """
        ages = _ms(grace if age is None else age), _ms(grace), _ms(longest)
        rows = self._run("sweep_settle", [], queue, int(empty), limit, *ages)
        return self._wakeups(rows)

    def _claims(self, rows: Sequence[Row]) -> list[Claim]:
        found = []
        for row in rows:
            fields = _pairs(row)
            key = claim_key(self.prefix, fields.get("kind", ""), fields.get("scope", ""))
            if claim := self._parsed(key, fields):
                found.append(claim)
        return found

    def _parsed(self, key: str, fields: Mapping[str, str]) -> Claim | None:
        """A claim. ``None`` for one that another program has damaged; the sweep then begins a repair."""
        claim = Claim.read(key, fields)
        if claim is None:
            self._note_damage(key)
        return claim

    def _wakeups(self, rows: Sequence[Row]) -> list[Wakeup]:
        """Wake-ups, without those of claims and deliveries that another program has damaged."""
        found = []
        for row in rows:
            try:
                found.append(Wakeup.parse(row))
            except (ValueError, TypeError, AttributeError):
                self._note_damage(str(row[0] or f"{self.prefix}:delivery:{row[1]}"))
        return found

    def _note_damage(self, key: str) -> None:
        with answering():
            self.redis.sadd(f"{self.prefix}:mended", key.removeprefix(f"{self.prefix}:"))

    # --- reconcile ----------------------------------------------------------------------------------------------------
    def missing(self, kind: str, scopes: Sequence[str]) -> list[int]:
        """The positions (from 0) of the canonical ``scopes`` that have no claim of ``kind``.

        Of a scope that comes several times, only the first position is returned.
        """
        positions: dict[str, int] = {}
        for position, scope in enumerate(scopes):
            positions.setdefault(claim_key(self.prefix, kind, scope), position)
        keys = list(positions)
        return [positions[keys[found - 1]] for found in self._run("missing", keys)] if keys else []

    def identity(self, own: str) -> str:
        """The identity of the storage that the claims belong to. If Redis has none yet, it becomes ``own``."""
        with answering():
            pipe = self.redis.pipeline(transaction=False)
            pipe.set(f"{self.prefix}:storage", own, nx=True).get(f"{self.prefix}:storage")
            return str(pipe.execute()[1])

    def accept_identity(self, own: str) -> None:
        """Make ``own`` the identity of the storage that the claims belong to."""
        with answering():
            self.redis.set(f"{self.prefix}:storage", own)

    def cursor(self, kind: str) -> int:
        """The cursor at which reconcile goes on among the wanted rows of ``kind``; 0 is before the first row."""
        with answering():
            return whole(self.redis.get(f"{self.prefix}:reconcile:{kind}"))

    def move_cursor(self, kind: str, cursor: int) -> None:
        """Set the cursor at which reconcile goes on among the wanted rows of ``kind``."""
        with answering():
            self.redis.set(f"{self.prefix}:reconcile:{kind}", cursor)

    # --- repair -------------------------------------------------------------------------------------------------------
    def scan(self, what: str, cursor: int, count: int) -> tuple[int, list[str]]:
        """Do one step of a scan for the keys that begin with ``<prefix>:<what>:``.

        Args:
            cursor: the cursor that the step before returned; 0 for the first step.
            count: how many keys Redis looks at in this step, also keys that begin otherwise.

        Returns:
            The next cursor, which is 0 after the last step, and the found keys without this beginning. Redis may return
            a key in more than one step.
        """
        start = f"{self.prefix}:{what}:"
        with answering():
            cursor, keys = self.redis.scan(cursor, match=f"{start}*", count=count)
        return int(cursor), [key.removeprefix(start) for key in keys]

    def mend_counts(
        self, namespaces: Sequence[str], *, reasons: Sequence[str] | None = None, kinds: Sequence[str] = ()
    ) -> list[tuple[str, str, int, int]]:
        """Correct the counters of these namespaces.

        Args:
            reasons: every reason for which a claim waits. With ``None`` only ``running`` and ``slots`` are corrected,
                also in other namespaces that have running claims.
            kinds: every kind that has claims; used only with ``reasons``.

        Returns:
            For each counter that was wrong: namespace, counter, old and new value.
        """
        every = reasons is not None
        lists = [json.dumps(list(names)) for names in (namespaces, reasons or (), kinds)]
        rows = self._run("mend_counts", [], lists[0], int(every), *lists[1:])
        return [(namespace, what, old, new) for namespace, what, old, new in rows]

    def mended(self) -> list[str]:
        """The keys and fields with values of another program that were taken out since the last call."""
        with answering():
            pipe = self.redis.pipeline()
            pipe.smembers(f"{self.prefix}:mended").delete(f"{self.prefix}:mended")
            return sorted(pipe.execute()[0])

    def mend_sets(self) -> int:
        """Remove members of sets that stand for nothing. Returns how many were removed or corrected."""
        return int(self._run("mend_sets", []))

    def mend_indexes(self, names: Sequence[str]) -> tuple[int, set[str], set[str], set[str], list[str]]:
        """Put claims back into the indexes of their state.

        Args:
            names: the claims, as :meth:`scan` returns them for ``job``.

        Returns:
            How many entries were put back, the namespaces, wait reasons and kinds of these claims, and the keys of
            damaged claims that were set aside.
        """
        put_back, *found, damaged = self._run("mend_indexes", [f"{self.prefix}:job:{name}" for name in names])
        namespaces, reasons, kinds = map(set, found)
        return put_back, namespaces, reasons, kinds, list(damaged)

    def astray(self, names: Sequence[str]) -> list[str]:
        """The names of the claims that are missing in an index which should have them. Nothing would let them go on.

        Args:
            names: the claims to look at, as :meth:`scan` returns them for ``job``.
        """
        return [names[found - 1] for found in self._run("astray", [f"{self.prefix}:job:{name}" for name in names])]

    def mend_index(self, index: str, start: int, limit: int, *, belong: tuple[str, str]) -> tuple[int, int]:
        """Remove keys from an index whose claims are gone or do not belong to it.

        Args:
            index: the key of the index, without the prefix.
            start: the rank to begin at.
            limit: how many keys to look at.
            belong: a field, and the value that it has in every claim that belongs to the index.

        Returns:
            How many keys were looked at, and how many were removed.
        """
        looked, taken_out = self._run("mend_index", [f"{self.prefix}:{index}"], start, limit, *belong)
        return looked, taken_out

    def set_aside(self, key: str, wanted: str) -> bool:
        """Rename a key whose type is not ``wanted``. Returns whether the key was renamed."""
        return bool(self._run("set_aside", [key], wanted))

    # --- pauses -------------------------------------------------------------------------------------------------------
    def pause(self, kind: str, reason: str) -> None:
        """Let no job of ``kind`` begin until :meth:`resume`. Another call changes the reason, but not the time."""
        key, since = f"{self.prefix}:paused:{kind}", int(self.now())
        with answering():
            pipe = self.redis.pipeline()
            pipe.hsetnx(key, "since", since).hset(key, "reason", reason).sadd(f"{self.prefix}:pauses", kind).execute()

    def resume(self, kind: str) -> list[Wakeup]:
        """Lift the pause of ``kind``, and wake the claims that wait for its end. Returns wake-ups to publish."""
        with answering():
            self.redis.delete(f"{self.prefix}:paused:{kind}")
        wakeups = [wakeup for some in self.hurry_all("pause", kind) for wakeup in some]

        def forget(pipe: Any) -> None:
            paused_again = pipe.exists(f"{self.prefix}:paused:{kind}")
            pipe.multi()
            if not paused_again:
                pipe.srem(f"{self.prefix}:pauses", kind)

        # The last step. If this process dies before it, `half_resumed` returns the kind, and the sweep resumes it.
        with answering():
            self.redis.transaction(forget, f"{self.prefix}:paused:{kind}")
        return wakeups

    def half_resumed(self) -> list[str]:
        """Kinds whose pause was lifted by a process that died before it had woken all of their claims."""
        return [kind for kind, why in self._pauses().items() if not why]

    def paused(self) -> dict[str, dict[str, str]]:
        """The paused kinds, each with ``reason`` and ``since`` (seconds since the epoch)."""
        return {kind: why for kind, why in self._pauses().items() if why}

    def _pauses(self) -> dict[str, dict[str, str]]:
        with answering():
            kinds = self.redis.smembers(f"{self.prefix}:pauses")
            rows = {kind: self.redis.hgetall(f"{self.prefix}:paused:{kind}") for kind in sorted(kinds)}
        # Another program may have written the hash.
        return {
            kind: {"reason": row.get("reason", ""), "since": str(whole(row.get("since")))} if row else {}
            for kind, row in rows.items()
        }

    def note_pauses(self, kinds: Iterable[str]) -> None:
        """Write paused kinds into the set of pauses, from which the sweep lifts them. Another program may not have."""
        with answering():
            paused = [kind for kind in kinds if self.redis.exists(f"{self.prefix}:paused:{kind}")]
            if paused and self.redis.sadd(f"{self.prefix}:pauses", *paused):
                log.warning("Pauses were not in the set of pauses, and are probed now: %s.", ", ".join(paused))

    # --- held threads -------------------------------------------------------------------------------------------------
    def report_held_threads(self, worker: str, *, held: int, threads: int) -> None:
        """Report that runs over their limit hold ``held`` of a worker's ``threads``. With 0 the report is removed."""
        key = f"{self.prefix}:held"
        now = self.now()
        with answering():
            if held:
                note = json.dumps({"held": held, "threads": threads, "at": now})
                self.redis.pipeline().hset(key, worker, note).expire(key, HELD_SECONDS).execute()
            else:
                self.redis.hdel(key, worker)

    def held_threads(self) -> dict[str, tuple[int, int]]:
        """For each worker with held threads: how many runs over their limit hold, and how many threads it has.

        Reports of the last 30 s count, because a worker reports every 5 s.
        """
        now = self.now()
        with answering():
            notes = self.redis.hgetall(f"{self.prefix}:held")
        found = {}
        for worker, note in sorted(notes.items()):
            with suppress(ValueError, KeyError, TypeError):  # another program has written it
                read = json.loads(note)
                if now - float(read["at"]) < HELD_SECONDS:
                    found[worker] = int(read["held"]), int(read["threads"])
        return found

    # --- reading ------------------------------------------------------------------------------------------------------
    def totals(self) -> dict[str, int]:
        """The counters for metrics: name → number since Redis was empty. See ``total`` in ``lua/common.lua``."""
        with answering():
            return {name: whole(number) for name, number in self.redis.hgetall(f"{self.prefix}:totals").items()}

    def count(self, by: Mapping[str, int]) -> None:
        """Add to counters for metrics, each by its name in :meth:`totals`."""
        with answering():
            pipe = self.redis.pipeline(transaction=False)
            for name, number in by.items():
                pipe.hincrby(f"{self.prefix}:totals", name, number)
            # A counter that another program has made no number is set right by the next script that adds to it.
            answers = pipe.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception) and not any(sign in str(answer) for sign in _WRONG_VALUE):
                    raise answer

    def figures(self, *, max_age: float, longest: int) -> dict[str, Any]:
        """How many claims there are by state, kind and wait reason, as ``lua/figures.lua`` says.

        Args:
            max_age: seconds; figures that another process has read so recently are returned again.
            longest: how many of the longest lines are returned.
        """
        try:
            return dict(json.loads(self._run("figures", [], _ms(max_age), AT_ONCE, longest)))
        except ValueError:  # another program has written the kept figures
            return dict(json.loads(self._run("figures", [], 0, AT_ONCE, longest)))

    def get(self, key: str) -> Claim | None:
        """The claim behind a key, or ``None``."""
        with answering():
            fields = self.redis.hgetall(key)
        return Claim.read(key, fields) if fields else None

    def marker(self, key: str) -> tuple[str, str] | None:
        """The job id and status in the done marker of the claim with this key; ``None`` without a marker."""
        with answering():
            text = self.redis.get(key.replace(f"{self.prefix}:job:", f"{self.prefix}:done:", 1))
        return (text.partition(" ")[0], text.partition(" ")[2]) if text else None

    def counts(self, namespace: str) -> dict[str, int]:
        """How many claims a namespace has ``waiting``, ``pending`` and ``running``, and how many ``slots`` in use."""
        with answering():
            return {name: whole(n) for name, n in self.redis.hgetall(f"{self.prefix}:count:{namespace}").items()}

    def waiting(self, limit: int = 1_000, *, after: int = 0) -> list[Claim]:
        """Waiting claims: first those with a due time, the soonest due first, then those that wait for an event.

        Args:
            limit: how many claims at the most.
            after: how many claims to leave out at the beginning.
        """
        found: list[Claim] = []
        with answering():
            indexes = self._waiting_indexes()
            pipe = self.redis.pipeline(transaction=False)
            for index in indexes:
                pipe.zcard(index)
            lengths = pipe.execute()
        for index, length in zip(indexes, lengths, strict=True):
            if len(found) == limit:
                break
            if after < length:
                read = self._read(index, limit - len(found), after)
                found += read if index == indexes[0] else [claim for claim in read if claim.due_at is None]
            after = max(after - length, 0)
        return found

    def _waiting_indexes(self) -> list[str]:
        """The sorted sets that together contain every waiting claim once."""
        namespaces = self.redis.zrange(f"{self.prefix}:lines", 0, -1)
        pipe = self.redis.pipeline(transaction=False)
        for namespace in namespaces:
            pipe.smembers(f"{self.prefix}:lines:{namespace}")
        return [
            f"{self.prefix}:due",
            *(f"{self.prefix}:waits:pause:{kind}" for kind in sorted(self.redis.smembers(f"{self.prefix}:pauses"))),
            *(f"{self.prefix}:waits:version:{one}" for one in sorted(self.redis.smembers(f"{self.prefix}:versions"))),
            *(
                f"{self.prefix}:line:{namespace}|{queue}"
                for namespace, queues in zip(namespaces, pipe.execute(), strict=True)
                for queue in sorted(queues)
            ),
        ]

    def running(self, limit: int = 1_000) -> list[Claim]:
        """Running claims. The first is the claim whose lease ends first."""
        return self._read(f"{self.prefix}:leases", limit)

    def pending(self, queue: str, limit: int = 1_000) -> list[Claim]:
        """Claims of a queue that no worker has begun, the oldest first."""
        return self._read(f"{self.prefix}:published:{queue}", limit)

    def look(
        self,
        index: str,
        after: int,
        many: int,
        *,
        kind: str = "",
        namespace: str = "",
        skip: int = 0,
        limit: int,
    ) -> tuple[int, int, list[str]]:
        """Find claims in a part of an index, which is a sorted set of claims.

        Args:
            after: how many members at the beginning of the index to pass over.
            many: how many members to look at.
            kind: the kind that the claims must have; empty for any.
            namespace: the namespace that the claims must have; empty for any.
            skip: how many of the fitting claims to leave out.
            limit: how many claims to return at the most.

        Returns:
            How many members were looked at, how many fitting claims were left out, and the keys of the others.
        """
        looked, skipped, keys = self._run("find", [index], after, many, kind, namespace, skip, limit)
        return int(looked), int(skipped), list(keys)

    def _read(self, index: str, limit: int, after: int = 0) -> list[Claim]:
        with answering():
            keys = self.redis.zrange(index, after, after + limit - 1)
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(key)
            rows = pipe.execute()
        read = (Claim.read(key, fields) for key, fields in zip(keys, rows, strict=True) if fields)
        return [claim for claim in read if claim]


@contextmanager
def answering() -> Iterator[None]:
    """Raise :class:`QueueUnavailable` when Redis does not answer or takes no writes, or when a key has a wrong type."""
    try:
        yield
    except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise QueueUnavailable(
            f"Redis refuses the user or the password: {str(error).rstrip('.')}.",
            remedy="Correct the user and the password in NEXUS_REDIS_URL, then run `nexus doctor`.",
        ) from error
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        raise QueueUnavailable(f"Redis does not answer: {type(error).__name__}.") from error
    except redis.exceptions.InvalidResponse as error:
        raise QueueUnavailable(
            f"What answers is no Redis: {str(error).rstrip('.')}.",
            remedy="Correct the host and port in NEXUS_REDIS_URL, then run `nexus doctor`.",
        ) from error
    except redis.exceptions.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise DamagedKey(
                "A key of the jobs' records in Redis has a wrong type. Another program made it."
            ) from error
        if remedy := takes_no_writes(error):
            raise QueueUnavailable(f"Redis takes no writes: {str(error).rstrip('.')}.", remedy=remedy) from error
        if remedy := serves_us_not(error):
            raise QueueUnavailable(f"Redis refuses: {str(error).rstrip('.')}.", remedy=remedy) from error
        if any(sign in str(error) for sign in _WRONG_VALUE):
            # Redis does not undo what a script has done before the error. A repair corrects the indexes and counters.
            raise DamagedKey(
                "A key of the jobs' records in Redis has a wrong value. Another program wrote it."
            ) from error
        raise


@lru_cache(maxsize=1)
def _sources() -> Mapping[str, str]:
    folder = resources.files("nexus_tasks.idempotency") / "lua"
    files = {
        item.name.removesuffix(".lua"): item.read_text() for item in folder.iterdir() if item.name.endswith(".lua")
    }
    common = files.pop("common")
    return {name: _joined(common, source) for name, source in files.items()}


def _joined(common: str, source: str) -> str:
    """A script with the definitions of common.lua that it uses, in place of its line ``-- [common.lua]`` or in front.

    Redis makes all functions of a script anew for each call: all of common.lua takes about 10 µs.
    """
    used, kept = set(_WORD.findall(_COMMENT.sub("", source))), []
    for definition in reversed(_DEFINITION.split(_COMMENT.sub("", common))):
        names = _NAMES.match(definition)
        if names and used.isdisjoint(names[1].replace(",", " ").split()):
            continue
        kept.append(definition)
        used.update(_WORD.findall(definition))
    text = "".join(reversed(kept))
    return source.replace(_PLACE, text) if _PLACE in source else text + source


def whole(text: str | None) -> int:
    """The number of a text from Redis; 0 for a text that no release writes."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else 0


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
