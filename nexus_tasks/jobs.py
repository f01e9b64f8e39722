"""The names for declaring your own job kinds::

    class CountWords(Arguments):
        scope: ClassVar = ("namespace", "session_key")
        namespace: str
        session_key: str

    @job(arguments=CountWords, queue="maintenance")
    @in_namespace
    def count_words(work: NamespaceRun, arguments: CountWords) -> JobOutcome: ...

A worker imports the modules that the setting ``imports`` of its Celery configuration names. Add the module of your kind
to this setting. There is no other list of kinds. ``docs/job-kinds.md`` explains each name. This module is public, so
later releases keep its names.
"""

from nexus_tasks.errors import (
    JobError,
    Misconfigured,
    OverBudget,
    Permanent,
    Throttled,
    Transient,
)
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.worker.run import Run, Superseded, Wait
from nexus_tasks.tasks.durable import Wanted
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.tasks.registry import Job, job
from nexus_tasks.types import JobOutcome

__all__ = [
    "Arguments",
    "Flags",
    "Job",
    "JobError",
    "JobOutcome",
    "JobResult",
    "Misconfigured",
    "NamespaceRun",
    "Outbox",
    "OverBudget",
    "Permanent",
    "Request",
    "Run",
    "Superseded",
    "Throttled",
    "Transient",
    "Wait",
    "Wanted",
    "in_namespace",
    "job",
]
