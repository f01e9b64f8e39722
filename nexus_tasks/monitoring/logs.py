"""Log lines as JSON (``NEXUS_LOG_FORMAT=json``): one object a line, with the job that the line is about.

    {"time": "…", "level": "WARNING", "logger": "nexus_tasks…", "message": "…", "job": "…", "kind": "…",
     "namespace": "…", "trace": "…"}

Lines that a job's thread logs have ``job``, ``kind``, ``namespace`` and ``trace``. The trace is the id of the first
task of a chain of tasks. Celery's lines about a received or ended message have ``job`` and ``kind``. Arguments and
results are left out: Celery attaches them to its lines as data.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from nexus_tasks import tracing

_TELLING = ("anthropic", "openai", "celery.pool")  # the last one logs the arguments of each job
_NAMES = ("job", "kind", "namespace")  # a line that is not logged by the job's own thread names its job itself


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **_of_celery(record),
            **_of_job(),
            **{name: value for name in _NAMES if isinstance(value := getattr(record, name, None), str)},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _message(record: logging.LogRecord) -> str:
    """The text of a line. Of Celery's line about the end of a task, the result is left out."""
    data = getattr(record, "data", None)
    if isinstance(data, dict) and "return_value" in data and isinstance(record.args, dict):
        return str(record.msg) % {**record.args, "return_value": "…", "args": "…", "kwargs": "…"}
    return record.getMessage()


def _of_celery(record: logging.LogRecord) -> dict[str, Any]:
    data = getattr(record, "data", None)
    if not isinstance(data, dict) or "id" not in data:
        return {}
    return {"job": data["id"], "kind": str(data.get("name", ""))}


def _of_job() -> dict[str, Any]:
    """The job that runs in this thread. Without Celery in this process there is none."""
    celery = sys.modules.get("celery._state")
    task = celery.get_current_task() if celery else None
    request: Any = getattr(task, "request", None)
    if task is None or not getattr(request, "id", None):
        trace = tracing.trace_id()
        return {"trace": trace} if trace else {}
    kind = getattr(task, "kind", None)
    trace = tracing.trace_id() or request.root_id or request.id
    found = {"job": request.id, "kind": getattr(kind, "name", task.name), "trace": trace}
    namespace = (request.kwargs or {}).get("namespace")
    return found | ({"namespace": namespace} if isinstance(namespace, str) else {})


def leave_out_prompts() -> None:
    """Keep prompts, which quote messages, and the arguments of jobs out of the log at the level DEBUG.

    With ``ANTHROPIC_LOG=debug`` and ``OPENAI_LOG=debug`` the SDKs of model servers still log each request.
    """
    for name in _TELLING:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


def write_json(logger: logging.Logger) -> None:
    """Have every handler of ``logger`` write JSON."""
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
