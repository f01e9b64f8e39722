"""Finds claims (the records of jobs) for an operator's commands: by job id, or by state, namespace and kind.

It reads the indexes that ``lua/common.lua`` lists. A listing loads only the claims that it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims, answering, whole
from nexus_tasks.idempotency.kind import JobKind
from nexus_tasks.limits import NAMESPACE_JOBS

State = Literal["running", "waiting", "pending"]
STATES: tuple[State, ...] = ("running", "waiting", "pending")

# How many members of an index one script looks at. The script takes about 5 ms, and Redis serves no other client then.
LOOKED_AT_ONCE = 5_000
READ_AT_ONCE = 1_000  # hashes per round trip
PAUSE, VERSION = "pause", "version"  # the wait reasons whose indexes are kept by kind, not by namespace
BY_KIND = f"{PAUSE} or {VERSION}"  # the reason in `Waits.counts` for claims that wait for one of these two
DELAY = "delay"  # the wait reason of claims that a caller has asked for later
IN_LINE = "concurrency"  # the wait reason of claims in their namespace's line, which are not in `<prefix>:due`
INDEXED_START = 3  # how many bytes at the start of a job id choose its hash in `<prefix>:ids`


@dataclass(frozen=True, kw_only=True)
class Page:
    """A part of a listing."""

    claims: list[Claim]
    skipped: int  # fitting claims that were left out at the beginning
    stale: int  # keys of the index whose claims are gone


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Why the claims of a namespace wait."""

    counts: Mapping[str, int]  # by reason
    oldest: list[Claim]  # for each reason the claims that were asked for first


class ClaimIndex:
    """Finds claims of one deployment. Every method raises :class:`QueueUnavailable` when Redis does not answer."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._redis = claims.redis
        self._prefix = claims.prefix

    # --- by id --------------------------------------------------------------------------------------------------------
    def find(self, job_id: str) -> Claim | None:
        """The claim whose job, rerun or merged job has this id; ``None`` when there is none."""
        kinds = self._members("kinds")
        with answering():
            pipe = self._redis.pipeline(transaction=False)
            for kind in kinds:
                pipe.hget(self._ids(kind, job_id), job_id)
            hashes = pipe.execute()
        for kind, found in zip(kinds, hashes, strict=True):
            claim = self._claims.get(f"{self._prefix}:job:{kind}:{found}") if found else None
            if claim and has_id(claim, job_id):
                return claim
        return None

    def ids_that_begin_with(self, start: str, most: int) -> list[str]:
        """At most ``most`` job ids that begin with ``start``. The text ``start`` has at least 3 characters."""
        pattern = "".join(f"[{c}]" if c in "*?[]" else "\\\\" if c == "\\" else c for c in start) + "*"
        found: list[str] = []
        kinds = self._members("kinds")
        with answering():
            for kind in kinds:
                for job_id, _ in self._redis.hscan_iter(self._ids(kind, start), match=pattern, count=1_000):
                    found.append(job_id)
                    if len(found) >= most:
                        return found
        return found

    def _ids(self, kind: str, job_id: str) -> bytes:
        return f"{self._prefix}:ids:{kind}:".encode() + job_id.encode()[:INDEXED_START]

    # --- by state, namespace and kind ---------------------------------------------------------------------------------
    def page(
        self, state: State, *, namespace: str | None = None, kind: str | None = None, skip: int = 0, limit: int
    ) -> Page:
        """Claims of one state, in the order of their index. Waiting and pending claims come about the oldest first.

        Args:
            skip: how many claims to leave out at the beginning.
            limit: how many claims to return at the most.
        """
        keys: list[str] = []
        skipped = 0
        for index, exact in self._indexes(state, namespace):
            looked = 0
            while len(keys) < limit:
                saw, left_out, found = self._claims.look(
                    index,
                    looked,
                    LOOKED_AT_ONCE,
                    kind=kind or "",
                    namespace="" if exact else namespace or "",
                    skip=skip - skipped,
                    limit=limit - len(keys),
                )
                looked, skipped = looked + saw, skipped + left_out
                keys += found
                if saw < LOOKED_AT_ONCE:
                    break
        claims = self._read(keys)
        return Page(claims=claims, skipped=skipped, stale=len(keys) - len(claims))

    def every(self, state: State, namespace: str) -> list[Claim]:
        """Every claim of a namespace that is in one state."""
        return self.page(state, namespace=namespace, limit=1_000_000).claims

    def running(self, namespace: str | None = None, kind: str | None = None) -> list[Claim]:
        """Every running claim, the longest running first. They are few: the claims of jobs that workers run now."""
        found = self.page("running", namespace=namespace, kind=kind, limit=1_000_000).claims
        return sorted(found, key=lambda claim: claim.started_at or 0.0)

    def _indexes(self, state: State, namespace: str | None) -> Iterator[tuple[str, bool]]:
        """The indexes of a state. Each comes with ``False`` when it also has claims of other namespaces."""
        if state == "running":
            yield f"{self._prefix}:leases", False
        elif state == "pending":
            for queue in self._claims.queues():
                yield f"{self._prefix}:published:{queue}", False
        elif namespace is None:
            yield f"{self._prefix}:due", True
            for index in self._indexes_by_kind():
                yield index, True
            with answering():
                in_line = self._redis.zrange(f"{self._prefix}:lines", 0, -1)
            for name in in_line:
                yield f"{self._prefix}:waits:{IN_LINE}:{name}", True
        else:
            for reason in self._reasons():
                yield f"{self._prefix}:waits:{reason}:{namespace}", True
            for index in self._indexes_by_kind():
                yield index, False

    # --- by namespace -------------------------------------------------------------------------------------------------
    def counts(self, namespaces: Sequence[str]) -> dict[str, Mapping[str, int]]:
        """By namespace, the number of ``waiting``, ``pending`` and ``running`` claims, and of ``slots`` in use."""
        rows = self._hashes([f"{self._prefix}:count:{name}" for name in namespaces])
        return {
            name: {what: whole(number) for what, number in row.items()}
            for name, row in zip(namespaces, rows, strict=True)
        }

    def full(self, namespaces: Iterable[str], kinds: Iterable[JobKind]) -> set[str]:
        """Those of the namespaces that have as many claims as a namespace may have (``limits.NAMESPACE_JOBS``).

        Claims that wait for a time, or for the end of other jobs, do not count. Otherwise 100,000 digests that wait for
        derivations would leave no room for the derivations.

        Args:
            namespaces: the namespaces.
            kinds: the known kinds, which name these waits (:attr:`JobKind.awaits`).
        """
        counts = self.counts(list(namespaces))
        many = {name: sum(of.get(state, 0) for state in STATES) for name, of in counts.items()}
        perhaps = [name for name, number in many.items() if number >= NAMESPACE_JOBS]
        if not perhaps:
            return set()
        reasons = sorted({DELAY, *filter(None, (kind.awaits for kind in kinds))})
        with answering():
            pipe = self._redis.pipeline(transaction=False)
            for name in perhaps:
                for reason in reasons:
                    pipe.zcard(f"{self._prefix}:waits:{reason}:{name}")
            aside = iter(pipe.execute())
        return {name for name in perhaps if many[name] - sum(next(aside) for _ in reasons) >= NAMESPACE_JOBS}

    def waits(self, namespaces: Mapping[str, int], most: int) -> dict[str, Waits]:
        """By namespace, why its claims wait.

        Args:
            namespaces: for each namespace the number of its waiting claims.
            most: how many claims to return for each reason at the most.
        """
        reasons = self._reasons()
        indexes = [(name, reason) for name, number in namespaces.items() if number for reason in reasons]
        with answering():
            pipe = self._redis.pipeline(transaction=False)
            for name, reason in indexes:
                index = f"{self._prefix}:waits:{reason}:{name}"
                pipe.zcard(index).zrange(index, 0, most - 1)
            answers = pipe.execute()
        counts: dict[str, dict[str, int]] = {name: {} for name in namespaces}
        keys: dict[str, list[str]] = {name: [] for name in namespaces}
        for (name, reason), number, first in zip(indexes, answers[::2], answers[1::2], strict=True):
            if number:
                counts[name][reason] = number
                keys[name] += first
        for name, number in namespaces.items():
            if (paused := number - sum(counts[name].values())) > 0:  # their index is kept by kind
                counts[name][BY_KIND] = paused
                keys[name] += self._some_by_kind(name, most)
        claims = iter(self._read([key for some in keys.values() for key in some]))
        read = {claim.key: claim for claim in claims}
        return {
            name: Waits(counts=counts[name], oldest=[read[key] for key in keys[name] if key in read])
            for name in namespaces
        }

    def _indexes_by_kind(self) -> list[str]:
        return [
            *(f"{self._prefix}:waits:{PAUSE}:{kind}" for kind in self._members("kinds")),
            *(f"{self._prefix}:waits:{VERSION}:{whose}" for whose in self._members("versions")),
        ]

    def _some_by_kind(self, namespace: str, most: int) -> list[str]:
        """Claims of a namespace that wait for the end of a pause or for another worker.

        Of each index by kind, only the first 5,000 claims are looked at.
        """
        found: list[str] = []
        for index in self._indexes_by_kind():
            _, _, some = self._claims.look(index, 0, LOOKED_AT_ONCE, namespace=namespace, limit=most - len(found))
            found += some
        return found

    def _reasons(self) -> list[str]:
        """The wait reasons whose claims are indexed by namespace."""
        return sorted({IN_LINE, *self._members("reasons")} - {PAUSE, VERSION})

    # --- reading ------------------------------------------------------------------------------------------------------
    def _members(self, name: str) -> list[str]:
        with answering():
            return sorted(self._redis.smembers(f"{self._prefix}:{name}"))

    def _read(self, keys: Sequence[str]) -> list[Claim]:
        found = (Claim.read(key, row) for key, row in zip(keys, self._hashes(keys), strict=True) if row)
        return [claim for claim in found if claim]

    def _hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        with answering():
            for start in range(0, len(keys), READ_AT_ONCE):
                pipe = self._redis.pipeline(transaction=False)
                for key in keys[start : start + READ_AT_ONCE]:
                    pipe.hgetall(key)
                found += pipe.execute()
        return found


def has_id(claim: Claim, job_id: str) -> bool:
    """Whether this is the id of the claim's job, of its rerun, or of a job that was merged into it."""
    return job_id in (claim.job_id, claim.rerun_id, *claim.also)
