"""Notes Celery's signals about the test's jobs. Workers import this module: ``here.worker("--include", ...)``."""

from __future__ import annotations

from typing import Any

from celery import current_task, signals

from nexus_tasks.deployment import default_deployment


def _note(task_id: str, what: str) -> None:
    claims = default_deployment().claims
    claims.redis.rpush(f"{claims.prefix}:test:signals:{task_id}", what)


def signalled(task_id: str) -> list[str]:
    """The signals about a message, in their order."""
    claims = default_deployment().claims
    return list(claims.redis.lrange(f"{claims.prefix}:test:signals:{task_id}", 0, -1))


@signals.task_success.connect(weak=False)
def _success(sender: Any, **_: Any) -> None:
    _note(sender.request.id, "success")


@signals.task_failure.connect(weak=False)
def _failure(task_id: str, exception: BaseException, **_: Any) -> None:
    _note(task_id, f"failure: {type(exception.__cause__ or exception).__name__}")


@signals.task_retry.connect(weak=False)
def _retry(request: Any, reason: Any, **_: Any) -> None:
    _note(request.id, f"retry: {type(reason.exc).__name__}")


@signals.task_revoked.connect(weak=False)
def _revoked(request: Any, **_: Any) -> None:
    _note(request.id, "revoked")


@signals.task_prerun.connect(weak=False)
def _prerun(task_id: str, **_: Any) -> None:
    message = current_task.request
    told = (message.headers or {}).get("traceparent")
    _note(f"{task_id}:trace", f"{message.root_id} {message.parent_id} {told}")
