"""Jobs for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from nexus_tasks.cli.output import iso, out
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.table import table

SHORT_ID = 8
_FIRST = ("id", "namespace", "kind", "scope", "status", "attempts")


def listed(jobs: Sequence[Mapping[str, Any]]) -> None:
    """One line per job: what, for whom, its state and when that was."""
    length = SHORT_ID if sys.stdout.isatty() else None
    rows = [
        (
            job["id"][:length],
            job["kind"],
            f"{job['namespace']} · {words.scope(job['scope'])}",
            job["status"] if job["attempts"] < 2 else f"{job['status']}, try {job['attempts']}",
            job["finished_at"] or job["started_at"] or job["queued_at"],
        )
        for job in jobs
    ]
    table(("job", "kind", "on", "status", "when"), rows, elastic="on", empty="There are no jobs.")


def one(job: Mapping[str, Any]) -> None:
    """Every field of a job; a dead letter's traceback last."""
    console = out()
    rest = [name for name in job if name not in (*_FIRST, "traceback")]
    for name in (*_FIRST, *rest):
        if job.get(name) not in (None, "", [], {}):
            console.print(Text.assemble((name.ljust(13), "dim"), _value(job[name])), soft_wrap=True)
    if job.get("traceback"):
        console.print(Text.assemble("\n", (job["traceback"], "dim")), soft_wrap=True)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return f"{iso(value)} ({words.ago(value)})"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
