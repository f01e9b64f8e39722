"""Claims on the run's Redis: requests to claim, a clock that can be moved, and the truth about every key.

Redis's own time cannot be faked. :meth:`Bench.jump` makes it later by making everything written earlier: the times in
the claims, the scores of the indexes, the watermarks and what is left of the markers.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import redis

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claim, Wakeup
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.request import URGENT, Delivery, Flags, Request, WhileRunning, canonical

LEASE = 10.0
ATTEMPTS = 5
GRACE, LONGEST = 10.0, 600.0
AHEAD, BEHIND = 8, 2.0**42  # as in common.lua
ALWAYS = ("id", "kind", "namespace", "queue", "scope", "args", "version", "enqueued_at", "state")
ONLY_IN = {
    "waiting": ("due_at", "wait_reason", "wait_detail"),
    "pending": (),
    "running": ("token", "lease_until", "open", "slot"),
}

# The claims' own keys: Celery's messages and what a test notes have the same prefix.
_OURS = """
local ours = {}
local names = 'job done due leases published delivered count waits woken paused queues parked delivery settle '
  .. 'line lines ahead cap clock versions ids kinds reasons'
for name in string.gmatch(names, '%S+') do
  ours[name] = true
end
local function keys(prefix)
  local found = {}
  for _, key in ipairs(redis.call('KEYS', prefix .. ':*')) do
    if ours[string.match(key, '^:([^:]+)', #prefix + 1)] then table.insert(found, key) end
  end
  return found
end
"""

_DUMP = f"""{_OURS}
local out = {{}}
for _, key in ipairs(keys(ARGV[1])) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = {{ redis.call('GET', key), tostring(redis.call('TTL', key)) }} end
  table.insert(out, {{ key, kind, value }})
end
return out
"""

_JUMP = f"""{_OURS}
local prefix, ms = ARGV[1], tonumber(ARGV[2])
local times = {{ 'due_at', 'lease_until', 'published_at', 'enqueued_at', 'started_at', 'failing_since' }}
local function earlier(value) return string.format('%.0f', tonumber(value) - ms) end
for _, key in ipairs(keys(prefix)) do
  local kind = redis.call('TYPE', key).ok
  if string.find(key, prefix .. ':job:', 1, true) == 1 then
    for _, name in ipairs(times) do
      local at = redis.call('HGET', key, name)
      if at then redis.call('HSET', key, name, earlier(at)) end
    end
  elseif string.find(key, prefix .. ':delivery:', 1, true) == 1 then
    local at, ttl = redis.call('HGET', key, 'published_at'), redis.call('PTTL', key)
    if at then redis.call('HSET', key, 'published_at', earlier(at)) end
    if ttl > 0 then redis.call('PEXPIRE', key, ttl - ms) end
  elseif kind == 'zset' then
    local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do
      redis.call('ZADD', key, string.format('%.4f', tonumber(members[i + 1]) - ms), members[i])
    end
  elseif key == prefix .. ':clock' or string.find(key, prefix .. ':delivered:', 1, true) == 1 then
    redis.call('SET', key, earlier(redis.call('GET', key)))
  elseif string.find(key, prefix .. ':woken:', 1, true) == 1 then
    redis.call('SET', key, earlier(redis.call('GET', key)), 'KEEPTTL')
  elseif redis.call('PTTL', key) > 0 then
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - ms)
  end
end
"""


@dataclass(frozen=True)
class Bench:
    """One test's claims."""

    claims: Claims
    woken: list[Wakeup] = field(default_factory=list)  # by the last `begin` or `take`: the next claims in line
    deleted: list[str] = field(default_factory=list)  # claims that the test deleted past the scripts

    @cached_property
    def client(self) -> redis.Redis:
        """A client past the product's own code."""
        return redis.Redis.from_url(self.claims.url, decode_responses=True)

    def request(
        self,
        name: str = "a",
        *,
        namespace: str = "acme",
        kind: str = "thing",
        queue: str = "maintenance",
        while_running: WhileRunning = "rerun",
        immutable: bool = False,
        **options: Any,
    ) -> Request:
        """A request for the work ``name``; ``force``, ``reasons`` and ``urgency`` become its flags."""
        scope = canonical({"namespace": namespace, "name": name})
        flags = Flags(**{flag: options.pop(flag) for flag in ("force", "reasons", "urgency") if flag in options})
        return Request(
            id=options.pop("id", None) or f"{name}-{uuid.uuid4().hex[:8]}",
            kind=kind,
            namespace=namespace,
            queue=queue,
            scope=scope,
            args=scope,
            flags=flags,
            while_running=while_running,
            immutable=immutable,
            **options,
        )

    def key(self, request: Request) -> str:
        """Where the request's claim is."""
        return self.claims.key(request)

    def fields(self, request: Request) -> dict[str, str]:
        """The claim as it is in Redis, or an empty dict."""
        return self.client.hgetall(self.key(request))

    def set(self, request: Request, **fields: Any) -> None:
        """Write fields of a claim past the transitions: counters, say, that would take many steps to reach."""
        self.client.hset(self.key(request), mapping=fields)

    def begin(
        self, request: Request, token: str = "t1", *, cap: int = 16, gathers: bool = False, published_at: str = ""
    ) -> tuple[Begun, Claim | None]:
        """Begin a run, as a worker woken for ``request`` does."""
        begun, claim, self.woken[:] = self.claims.begin(
            request, token, lease=LEASE, cap=cap, gathers=gathers, published_at=published_at
        )
        return begun, claim

    def run(self, request: Request, token: str = "t1", *, claim: bool = True, **options: Any) -> Claim:
        """Claim (unless told not to) and begin: the claim of the live run."""
        if claim:
            self.claims.claim([request])
        begun, found = self.begin(request, token, **options)
        assert begun is Begun.RUN
        assert found is not None
        return found

    def take(
        self, lead: Claim, siblings: Sequence[Request], *, company: str = "", again: bool = False
    ) -> list[Claim] | None:
        """Take siblings along; ``None`` when the run has lost its claim."""
        answer = self.claims.take(lead, siblings, lease=LEASE, company=company, again=again)
        if answer is None:
            return None
        taken, self.woken[:] = answer
        return taken

    def sweep_due(self) -> list[Wakeup]:
        """What is due now."""
        return self.claims.sweep_due(500)[1]

    def sweep_lines(self) -> list[Wakeup]:
        """Look at every line."""
        return self.claims.sweep_lines(500, every=0.0)

    def sweep_leases(self, token: str = "sweep", attempts: int = ATTEMPTS) -> tuple[int, list[Claim], list[Wakeup]]:
        """The first half of a sweep, due at once."""
        return self.claims.sweep_leases(500, attempts=attempts, token=token, lease=LEASE, due_in=0.0)

    def sweep_settle(self, queue: str = "maintenance", *, empty: bool = True) -> list[Wakeup]:
        """Canvas deliveries that are to be completed and whose message is lost."""
        return self.claims.sweep_settle(queue, 500, empty=empty, grace=GRACE, longest=LONGEST)

    def sweep_lost(
        self, queue: str = "maintenance", *, empty: bool = True, limit: int = 500, age: float | None = None
    ) -> list[Wakeup]:
        """The other half, for one queue."""
        return self.claims.sweep_lost(queue, limit, empty=empty, grace=GRACE, longest=LONGEST, age=age)

    def jump(self, seconds: float) -> None:
        """Make it ``seconds`` later."""
        self.client.eval(_JUMP, 0, self.claims.prefix, int(seconds * 1000))

    def flush(self) -> None:
        """Lose everything at once, as FLUSHALL does."""
        delete = "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do redis.call('DEL', key) end"
        self.client.eval(delete, 0, self.claims.prefix)

    def dump(self) -> dict[str, Any]:
        """Every key of the prefix with what it holds: hashes and sorted sets as dicts, strings with their TTL."""
        found: dict[str, Any] = {}
        for key, kind, value in self.client.eval(_DUMP, 0, self.claims.prefix):
            if kind == "hash":
                found[key] = dict(zip(value[::2], value[1::2], strict=True))
            elif kind == "zset":
                found[key] = {member: float(score) for member, score in zip(value[::2], value[1::2], strict=True)}
            elif kind == "set":
                found[key] = set(value)
            else:
                found[key] = (value[0], int(value[1]))
        return found

    def content(self) -> dict[str, Any]:
        """:meth:`dump` without TTLs, to compare before and after."""
        return {key: value[0] if isinstance(value, tuple) else value for key, value in self.dump().items()}

    def audit(self, *, lines: bool = True, by_hand: bool = False) -> dict[str, dict[str, str]]:
        """Check that every claim is in the indexes of its state and no other, and that the counters are the truth.

        Returns the claims by key.

        Args:
            lines: whether no claim is of a release that knew no lines and did not index job ids.
            by_hand: whether claims were deleted past the scripts, so that their ids are still in the index.
        """
        prefix, dump = self.claims.prefix, self.dump()
        claims = {key: value for key, value in dump.items() if key.startswith(f"{prefix}:job:")}
        indexes: dict[str, dict[str, float]] = defaultdict(dict)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        ids: dict[str, dict[str, str]] = defaultdict(dict)
        for key, claim in claims.items():
            state = claim.get("state")
            assert state in ONLY_IN, f"{key} has no state: {claim}"
            assert not [name for name in ALWAYS if name not in claim], claim
            for other, names in ONLY_IN.items():
                assert other == state or not [name for name in names if name in claim], (state, claim)
            if state == "waiting":
                whose = claim["kind" if claim["wait_reason"] in ("pause", "version") else "namespace"]
                if claim["wait_reason"] == "version":
                    whose += "|" + claim["strange_to"]
                    assert whose in dump[f"{prefix}:versions"]
                if "due_at" in claim:
                    indexes[f"{prefix}:due"][key] = float(claim["due_at"])
                elif claim["wait_reason"] == "concurrency":
                    place = float(claim["enqueued_at"]) + (BEHIND if claim.get("urgency") == "dream" else 0)
                    line = f"{prefix}:line:{claim['namespace']}|{claim['queue']}"
                    indexes[line][key] = found = dump.get(line, {}).get(key, 0.0)
                    assert place <= found < place + 1, (found, claim)
                else:
                    assert claim["wait_reason"] in ("pause", "version"), claim
                indexes[f"{prefix}:waits:{claim['wait_reason']}:{whose}"][key] = float(claim["enqueued_at"])
            elif state == "pending":
                grown = min(GRACE * 2 ** int(claim.get("republished", 0)), LONGEST) - GRACE
                score = float(claim["published_at"]) + grown * 1000
                indexes[f"{prefix}:published:{claim['queue']}"][key] = score
                ahead = f"{prefix}:ahead:{claim['namespace']}|{claim['queue']}"
                if lines and int(claim.get("republished", 0)) < 2:
                    indexes[ahead][key] = dump.get(ahead, {}).get(key, 0.0)
            else:
                assert claim["token"], claim
                indexes[f"{prefix}:leases"][key] = float(claim["lease_until"])
                assert "run_reasons" in claim, claim
            counts[f"{prefix}:count:{claim['namespace']}"][state] += 1
            counts[f"{prefix}:count:{claim['namespace']}"]["slots"] += "slot" in claim
            for job_id in filter(None, (claim["id"], claim.get("rerun_id"), *claim.get("also", "").split(","))):
                ids[f"{prefix}:ids:{claim['kind']}:{job_id[:3]}"][job_id] = key.rpartition(":")[2]
        written = {key: value for key, value in dump.items() if isinstance(value, Mapping) and key not in claims}
        deliveries = self._audit_deliveries(claims, written, indexes)
        for key, members in indexes.items():
            assert written.get(key) == members, f"{key}: {written.get(key)} instead of {members}"
        for key, truth in counts.items():
            said = {name: int(number) for name, number in written.get(key, {}).items()}
            assert said == +truth, f"{key}: {said} instead of {dict(+truth)}"
        if by_hand:
            here = {key.rpartition(":")[2] for key in claims}
            for key in [key for key in written if key.startswith(f"{prefix}:ids:")]:
                written[key] = {i: digest for i, digest in written[key].items() if digest in here}
                if not written[key]:
                    del written[key]
        for key, members in ids.items() if lines else ():
            assert written.get(key) == members, f"{key}: {written.get(key)} instead of {members}"
        known = {*indexes, *counts, *deliveries, *self._audit_lines(indexes, counts, dump), *ids}
        left = [key for key in written if key not in known and ":paused:" not in key]
        assert not left, f"indexes and counters of nothing: {left}"
        return claims

    def _audit_lines(
        self, indexes: Mapping[str, Mapping[str, float]], counts: Mapping[str, Counter[str]], dump: Mapping[str, Any]
    ) -> set[str]:
        """The sweep finds every line, and no line waits while its namespace has room."""
        prefix = self.claims.prefix
        for key in [key for key in indexes if key.startswith(f"{prefix}:line:")]:
            namespace, _, queue = key.removeprefix(f"{prefix}:line:").partition("|")
            assert namespace in dump[f"{prefix}:lines"], dump[f"{prefix}:lines"]
            assert queue in dump[f"{prefix}:lines:{namespace}"]
            cap, slots = int(dump.get(f"{prefix}:cap:{namespace}", ("16",))[0]), counts[f"{prefix}:count:{namespace}"]
            ahead = len(indexes.get(key.replace(":line:", ":ahead:", 1), ()))
            # A slot is kept for each urgent wake-up. Its claim may have left this queue with its place ahead.
            ahead += queue != URGENT and len(indexes.get(f"{prefix}:ahead:{namespace}|{URGENT}", ()))
            assert min(AHEAD, cap - slots["slots"]) <= ahead, (key, cap, slots, ahead)
        return {key for key in dump if key.startswith((f"{prefix}:lines", f"{prefix}:lines:"))}

    def _audit_deliveries(
        self, claims: Mapping[str, Any], written: Mapping[str, Any], indexes: dict[str, dict[str, float]]
    ) -> set[str]:
        """Every canvas delivery is parked for as many runs to come as it waits for, or stands in the settle list."""
        prefix, found, waits = self.claims.prefix, set(), Counter[str]()
        for key in [key for key in written if key.startswith(f"{prefix}:parked:")]:
            claim = claims.get(key.replace(":parked:", ":job:", 1))
            assert claim, f"{key}: {written[key]} is parked with nothing"
            to_come = {claim["id"], claim.get("rerun_id"), *claim.get("also", "").split(",")}
            assert set(written[key].values()) <= to_come, (written[key], claim)
            waits.update(list(written[key]))
            found.add(key)
        for key in [key for key in written if key.startswith(f"{prefix}:delivery:")]:
            record, name = written[key], key.removeprefix(f"{prefix}:delivery:")
            assert waits[name] == int(record["parts"]), (name, record, waits)
            if record["parts"] == "0":
                grown = min(GRACE * 2 ** int(record.get("republished", 0)), LONGEST) - GRACE
                indexes[f"{prefix}:settle:{record['queue']}"][name] = float(record["published_at"]) + grown * 1000
            found.add(key)
        return found


@contextmanager
def new_bench(servers: ServerAddresses) -> Iterator[Bench]:
    """A prefix of its own; every key is checked at the end, then deleted."""
    made = Bench(Claims(servers.redis_url, f"c{uuid.uuid4().hex[:12]}"))
    try:
        yield made
        made.audit(by_hand=bool(made.deleted))
    finally:
        made.flush()


def tagged(request: Request, *reasons: str, **flags: Any) -> Request:
    """The same request from another caller: an id of its own, and these reasons."""
    return replace(request, id=f"r-{uuid.uuid4().hex[:8]}", flags=Flags(reasons=reasons, **flags))


def waited_for(request: Request, *, of: Request | None = None, parts: int = 1) -> Request:
    """The same request as a canvas delivery; ``of`` makes it another part of that one's delivery."""
    first = of or request
    delivery = Delivery(id=first.id, options='{"chain": []}', parts=parts, first=of is None)
    return replace(request, delivery=delivery)


def scope_of(claim: Claim) -> str:
    """The ``name`` a claim's request was made with."""
    return str(json.loads(claim.scope)["name"])
