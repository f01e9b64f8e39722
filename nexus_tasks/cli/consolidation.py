"""``nexus digest``, ``dream``, ``extract`` and ``undo``: condense a namespace's memory now, or undo a reflection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from nexus_tasks.cli import words, workers
from nexus_tasks.cli.backlog import backlog_of
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import paragraph
from nexus_tasks.cli.memories import is_number
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.output import emit, hint, out
from nexus_tasks.cli.progress import explain_interrupt, meter
from nexus_tasks.errors import WaitTimeout

if TYPE_CHECKING:
    from nexus_tasks.idempotency.producer.result import JobResult
    from nexus_tasks.types import DreamPlan, JobOutcome, ReflectionPlan

SessionKey = Annotated[str, typer.Argument(metavar="SESSION", help="The session's key.")]

_INDENT = 14  # columns
_POLL_SECONDS = 1.0
_HOLDS = {"new": "the new one holds", "old": "the old one holds", "both": "undecided"}


def digest(
    session: SessionKey,
    namespace: Namespace,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the digest again from scratch.")] = False,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Digest a session now, even if only few messages are new."""
    job = connect().digest(namespace, session, rebuild=rebuild)
    _report_job(
        job,
        namespace,
        "manual_rebuild" if rebuild else "manual_digest",
        asked=f"Job {job.id} digests session {session}.",
        ended=lambda outcome: f"Digest of {session}: {outcome.status}.",
        see=f"Read it with `nexus sessions show {session} --namespace {namespace}`.",
        timeout=timeout if wait else None,
        json=json,
    )


def dream(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace (tenant).")],
    wait: Wait = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print the plan. The model is still asked, which costs money."),
    ] = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Digest every session that has new messages, then reflect. If a dream has begun already, join that dream."""
    if dry_run:
        plans = connect().dream_plans(namespace)
        if json:
            emit(plans)
        else:
            _print_plans(plans)
        return
    job = connect().dream(namespace)
    _report_job(
        job,
        namespace,
        "manual",
        asked=f"Job {job.id} dreams {'for' if job.created else 'already for'} {namespace}.",
        ended=lambda outcome: (
            f"Dream of {namespace}: {outcome.status},"
            f" {words.count(outcome.details.get('sessions', 0), 'session')} digested."
        ),
        see=f"See the conclusions with `nexus memories list --namespace {namespace} --level derived`.",
        timeout=timeout if wait else None,
        json=json,
    )


def extract(
    session: SessionKey,
    namespace: Namespace,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Extract topics and facts from a session's messages since the last extraction."""
    job = connect().extract(namespace, session)
    _report_job(
        job,
        namespace,
        "turn",
        asked=f"Job {job.id} extracts from session {session}.",
        ended=extraction_line,
        see=f"Read them with `nexus topics list --namespace {namespace}`.",
        timeout=timeout if wait else None,
        json=json,
    )


def extraction_line(outcome: JobOutcome) -> str:
    """The sentence about an ended extraction. It says why nothing was extracted."""
    details = outcome.details
    topics, facts = words.count(details.get("topics", 0), "topic"), words.count(details.get("facts", 0), "fact")
    status = f"{outcome.status}: {details['why']}" if "why" in details else outcome.status
    return f"{topics} written, {facts} stored ({status})."


def undo(
    reflection: Annotated[
        str, typer.Argument(metavar="REFLECTION", help="A reflection's number, or the id of its job.")
    ],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Undo one reflection: delete its conclusions, and restore the facts that it changed."""
    undone = connect().undo(namespace, int(reflection) if is_number(reflection) else reflection)
    if json:
        emit(undone)
        return
    if undone.status == "unchanged":
        print(f"Reflection {undone.reflection} was undone before.")
        return
    removed = words.count(len(undone.removed), "memory", "memories")
    revived, restored = (words.count(len(ids), "fact") for ids in (undone.revived, undone.restored))
    print(
        f"Reflection {undone.reflection} ({undone.observer} about {undone.subject}) is undone: "
        f"{removed} removed, {revived} in force again, {restored} with earlier figures."
    )


def _report_job(
    job: JobResult,
    namespace: str,
    reason: str,
    *,
    asked: str,
    ended: Callable[[JobOutcome], str],
    see: str,
    timeout: float | None,
    json: bool,
) -> None:
    """Print that ``job`` is queued. With a ``timeout``, wait for the job instead, and print its outcome.

    Args:
        job: the queued job.
        namespace: the namespace of the job.
        reason: why the job was queued. Only the output of ``--json`` contains the reason.
        asked: the sentence that is printed when the call does not wait.
        ended: a function that makes the sentence about the job's outcome.
        see: the hint that says how to read the result.
        timeout: the longest wait, seconds. With ``None`` the call does not wait.
        json: print a JSON document instead of sentences.

    Raises:
        JobFailed: the job is a dead letter.
        WaitTimeout: the job did not end within ``timeout`` seconds.
        EmbeddedError: no worker runs, and a temporary worker could not be started.
    """
    if timeout is None:
        if json:
            emit({"job_id": job.id, "status": "pending", "reasons": [reason], "details": {}})
        else:
            print(asked)
        workers.warn_if_none()
        return
    with workers.worker_for_wait() as fate, explain_interrupt(lambda: fate):
        outcome = _wait(job, namespace, timeout)
    if json:
        emit(outcome)
    else:
        print(ended(outcome))
        hint(see)


def _wait(job: JobResult, namespace: str, timeout: float) -> JobOutcome:
    """Wait for ``job``, and show from the first second on what runs in the namespace, and what waits and why."""
    deadline = time.monotonic() + timeout
    with meter("ended") as progress:
        while True:
            left = deadline - time.monotonic()
            try:
                return job.wait(timeout=min(_POLL_SECONDS, max(left, 0)))
            except WaitTimeout:
                if left <= _POLL_SECONDS:
                    raise
            progress.at(0, 1, backlog_of(connect(), [namespace]).note)


# --- output of a dream's plan -----------------------------------------------------------------------------------------
def _print_plans(found: DreamPlan) -> None:
    console = out()
    sessions = ", ".join(found.sessions) or "none"
    _line(console, "would digest", sessions)
    if not found.reflections:
        _line(console, "would reflect", "on nothing: no facts are new")
    for plan in found.reflections:
        console.print()
        _print_plan(console, plan)


def _print_plan(console: Console, plan: ReflectionPlan) -> None:
    held = "; held for review" if plan.held else ""
    about = f"{plan.observer} about {plan.subject}"
    console.print(Text.assemble((about, "bold"), f": {words.count(plan.facts, 'new fact')}{held}"))
    for relation in plan.relations:
        new, old = f"m{relation.new_id} {relation.new}", f"m{relation.old_id} {relation.old}"
        verdict = "" if relation.kind != "contradicts" else f" ({_HOLDS[relation.holds]})"
        _line(console, relation.kind, f"{new} — {old}{verdict}")
        _line(console, "", relation.rationale, style="dim")
    for insight in plan.insights:
        _line(console, "insight", f"{insight.content} ({', '.join(f'm{i}' for i in insight.support)})")
    if plan.supersedes:
        _line(console, "supersedes", ", ".join(f"m{i}" for i in plan.supersedes))
    if not (plan.relations or plan.insights):
        _line(console, "", "nothing to relate", style="dim")


def _line(console: Console, name: str, value: str, style: str = "") -> None:
    paragraph(console, Text(words.line(value), style=style), indent=_INDENT, first=Text(name, style="dim"))
