"""``nexus status``: the jobs of each namespace, and why they wait."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import paragraph
from nexus_tasks.cli.options import AnyNamespace, Json
from nexus_tasks.cli.output import emit, out
from nexus_tasks.types import HeldReflection, JobCounts, NamespaceStatus, StatusReport

_MOST_WAITS = 8  # waits shown for each namespace
_LABEL = 11  # columns


def status(namespace: AnyNamespace = None, json: Json = False) -> None:
    """Show running, waiting and dead jobs, the reason of each wait, and the money spent today (UTC)."""
    found = connect().status(namespace)
    if json:
        emit(found)
    else:
        _print_status(found)


def _print_status(found: StatusReport) -> None:
    console = out()
    if not found.namespaces:
        console.print("Nothing is stored yet: begin with `nexus ingest` or `nexus remember`.", style="dim")
    if found.left_out:
        shown, every = len(found.namespaces), len(found.namespaces) + found.left_out
        console.print(f"{every:,} namespaces, jobs: {_counted(found.jobs)}", style="bold")
        text = f"These {shown} have the most jobs. Show another with `nexus status --namespace NS`."
        paragraph(console, Text(text, style="dim"))
        console.print()
    for one in found.namespaces:
        _namespace(console, one)
    for paused in found.paused:
        text = f"{paused.kind}, {words.ago(paused.since)}: {words.line(paused.reason)}"
        paragraph(console, text, indent=_LABEL, first=Text("paused", style="bold red"))
    for hung in found.held_threads:
        text = f"{hung.held} of {hung.threads} threads of {hung.worker} are held by code that does not return"
        paragraph(console, text, indent=_LABEL, first=Text("hung", style="bold red"))
    if found.quarantined:
        text = f"{words.count(found.quarantined, 'message')} could not be read: `nexus jobs quarantine` shows why"
        paragraph(console, text, indent=_LABEL, first=Text("quarantine", style="bold red"))


def _namespace(console: Console, one: NamespaceStatus) -> None:
    console.print(Text(one.namespace, style="bold"))
    _line(console, "memories", words.memory_counts(one.memories))
    _line(console, "to derive", _backlog(one))
    jobs = one.jobs
    _line(console, "jobs", _counted(jobs), style="red" if jobs.dead else "")
    if one.paused:
        why = f"{words.ago(one.paused.since)}{f', {words.line(one.paused.reason)}' if one.paused.reason else ''}"
        _line(console, "paused", f"{why}: `nexus jobs resume --namespace {one.namespace}` ends it", style="bold red")
    if jobs.dead:
        _line(console, "", f"read why with `nexus jobs list --status dead --namespace {one.namespace}`", style="dim")
    for running in one.runs[:_MOST_WAITS]:
        where = f" in {running.worker}" if running.worker else ""
        text = f"{running.kind} {words.scope(running.scope)}: for {words.span(running.for_seconds)}{where}"
        _line(console, "running", text)
    if sum(one.waiting_for.values()) > _MOST_WAITS:
        _line(console, "waits for", ", ".join(f"{reason} {n:,}" for reason, n in sorted(one.waiting_for.items())))
    for waiting in one.waits[:_MOST_WAITS]:
        _line(console, "waiting", f"{waiting.kind} {words.scope(waiting.scope)}: {words.wait(waiting)}")
    for held in one.reviews:
        _line(console, "review", _review(held), style="yellow")
    if len(one.waits) > _MOST_WAITS:
        _line(console, "", "… and more: `nexus jobs list --status waiting`", style="dim")
    for observed in one.observation[:_MOST_WAITS]:
        _line(console, "observed", f"{observed.session_key}: {words.observation(observed)}")
    calls = words.count(one.model_calls_today, "model call")
    _line(console, "today", f"{calls}, {words.money(one.spend_today_usd)} spent")
    console.print()


def _counted(jobs: JobCounts) -> str:
    return ", ".join(f"{n:,} {state}" for state, n in jobs.to_dict().items() if n) or "none"


def _review(held: HeldReflection) -> str:
    about = f"{held.observer} about {held.subject}"
    if held.released:
        return f"the reflection of {about} is released and will be carried out"
    return (
        f"a reflection of {about} would supersede {words.count(held.supersedes, 'fact')}: "
        f"`nexus jobs retry {held.job_id}` does it, `nexus jobs drop {held.job_id}` discards it"
    )


def _backlog(one: NamespaceStatus) -> str:
    if not one.underived:
        return "nothing, all messages are derived"
    oldest = words.span(one.oldest_underived_seconds or 0.0)
    return f"{words.count(one.underived, 'message')}, the oldest stored {oldest} ago"


def _line(console: Console, name: str, value: str, style: str = "") -> None:
    paragraph(console, Text(value, style=style), indent=_LABEL, first=Text(name, style="dim"))
