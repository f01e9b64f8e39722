"""A Redis that does not take our commands: the error says what a person must correct."""

from __future__ import annotations

import pytest
from redis import exceptions

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claims import answering


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (exceptions.ClusterDownError("Hash slot not served"), "Cluster"),
        (exceptions.MovedError("3999 127.0.0.1:6381"), "Cluster"),
        (exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "Cluster"),
        (exceptions.MasterDownError("Link with MASTER is down"), "primary"),
        (exceptions.NoPermissionError("this user has no permissions to run the 'evalsha' command"), "redis-users.acl"),
        (exceptions.ResponseError("ACL failure in script: User poor has no permissions"), "redis-users.acl"),
        (exceptions.ResponseError("unknown command 'EVALSHA', with args beginning with: "), "6.2"),
        (exceptions.ResponseError("DB index is out of range"), "database"),
        (exceptions.ResponseError("SELECT is not allowed in cluster mode"), "database"),
        (exceptions.InvalidResponse('Protocol error, got "H" as reply type byte'), "host and port"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_helps_is_said(error: exceptions.RedisError, remedy: str) -> None:
    with pytest.raises(QueueUnavailable) as refused, answering():
        raise error
    assert remedy in refused.value.remedy


def test_another_error_stays_as_it_is() -> None:
    with pytest.raises(exceptions.ResponseError, match="syntax"), answering():
        raise exceptions.ResponseError("syntax error")
