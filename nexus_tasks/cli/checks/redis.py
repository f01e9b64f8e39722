"""Check that Redis answers, is new enough, takes writes, and is configured so that no data are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nexus_tasks.cli.checks.check import Check, failed, passed

_OLDEST = (6, 2)
_CONNECT_SECONDS = 5
_FULL = 0.9  # share of `maxmemory` in use from which on there is a fault
_MACHINE = 0.7  # share of its machine's memory that Redis may have; a snapshot takes more for a while


def redis(url: str, master_name: str) -> Sequence[Check]:
    """Check the version, the role, the memory and the persistence of Redis, and that it never evicts keys.

    Raises:
        redis.RedisError: the server does not answer.
        ValueError: the URL is malformed.
    """
    from nexus_tasks.idempotency.redis_client import client

    with client(url, timeout=_CONNECT_SECONDS, master_name=master_name) as asked:
        # INFO is used, because hosted servers refuse the command CONFIG.
        info = asked.info()
    return [
        _version(str(info["redis_version"])),
        _role(info),
        _eviction(str(info["maxmemory_policy"])),
        _memory(int(info["used_memory"]), int(info["maxmemory"]), int(info.get("total_system_memory", 0))),
        _file(info["aof_enabled"]),
        _saving(info),
    ]


def _version(version: str) -> Check:
    if tuple(int(part) for part in version.split(".")[:2]) >= _OLDEST:
        return passed("redis", f"Redis {version}")
    return failed("redis", f"Redis {version}", "Use Redis 6.2 or later.")


def _role(info: Mapping[str, Any]) -> Check:
    if info["role"] == "master":
        return passed("redis role", "primary")
    found = f"a replica of {info['master_host']}:{info['master_port']}, which refuses writes"
    remedy = (
        "Name the primary in NEXUS_REDIS_URL. Only if the primary is gone for good, make this server the primary with"
        " `REPLICAOF NO ONE`."
    )
    return failed("redis role", found, remedy)


def _eviction(policy: str) -> Check:
    if policy == "noeviction":
        return passed("redis eviction", policy)
    remedy = "Set `CONFIG SET maxmemory-policy noeviction`, also in redis.conf, so that Redis does not drop jobs."
    return failed("redis eviction", policy, remedy)


def _memory(used: int, most: int, machine: int) -> Check:
    if not most:
        return passed("redis memory", f"{used / 1e6:,.0f} MB, without a limit")
    found = f"{used / 1e6:,.0f} of {most / 1e6:,.0f} MB"
    if used < _FULL * most:
        return passed("redis memory", found)
    more = 2 * max(used, most)
    remedy = f"Give it more: `CONFIG SET maxmemory {more}`, also in redis.conf."
    if machine and more > _MACHINE * machine:  # the kernel would kill Redis
        remedy = (
            f"Its machine has {machine / 1e6:,.0f} MB: give it a larger one, or move other programs' keys out of it."
        )
    return failed("redis memory", f"{found}; a full Redis refuses new jobs", remedy)


def _file(enabled: object) -> Check:
    if enabled:
        return passed("redis file", "append-only file on")
    remedy = "Set `CONFIG SET appendonly yes`, also in redis.conf, so that a restart keeps the queue."
    return failed("redis file", "append-only file off", remedy)


def _saving(info: Mapping[str, Any]) -> Check:
    fields = {"aof_last_write_status": "append-only file", "rdb_last_bgsave_status": "snapshot"}
    failing = [name for field, name in fields.items() if info.get(field, "ok") != "ok"]
    if not failing:
        return passed("redis disk", "the last write succeeded")
    remedy = "Free room on the disk of Redis, and let Redis write its folder. Then run `BGSAVE`."
    return failed("redis disk", f"Redis could not write its {' and its '.join(failing)}", remedy)
