"""Format numbers, times, scopes of jobs and reasons of waits for people.

The package ``humanize`` could replace only :func:`span` and :func:`ago`. It is not used, because it prints other words
("9 seconds ago").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from nexus_tasks.types import ObservationStats, WaitingJob
from nexus_tasks.types.hidden_characters import show_hidden

_NAMES = {
    "raw": ("message", "messages"),
    "explicit": ("fact", "facts"),
    "derived": ("reflection", "reflections"),
    "contradiction": ("contradiction", "contradictions"),
    "summary_short": ("short digest", "short digests"),
    "summary_long": ("long digest", "long digests"),
}
_WAITS = {
    "derivation": "until its session is derived",
    "retry": "before it tries again",
    "throttle": "because the model asked for a pause",
    "budget": "because today's budget is spent",
    "held": "for money that other model calls hold",
    "reserved": "for money that message batches hold",
    "price": "because its model has no price",
    "crash": "after its worker died",
    "pause": "because its kind is paused",
    "concurrency": "because its namespace runs as many jobs as it may",
    "batch": "for an answer of the Batches API",
    "delay": "until the requested time",
    "dream": "for its digests and reflections",
    "webhooks": "until other webhooks of its worker answer",
    "version": "for a worker of the release that queued it",
}


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 job``, ``2,000 jobs``."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def level(name: str, number: int = 1) -> str:
    """The word for ``number`` memories of a level. A memory of level ``explicit`` is called a ``fact``."""
    return _NAMES[name][number != 1]


def span(seconds: float) -> str:
    """A length of time in its one or two largest units: ``500 ms``, ``9 s``, ``5 min``, ``2 h 10 min``, ``3 days``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours == 0:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago a moment was: ``just now``, ``5 min ago``, ``3 days ago``.

    A moment in the future, or 30 days or more ago, is shown as its date.
    """
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < -1 or seconds >= 30 * 86_400:
        return f"{moment:%Y-%m-%d}"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def money(usd: float) -> str:
    """US dollars with two decimals, or with six for less than a cent."""
    return f"${usd:.2f}" if usd == 0 or usd >= 0.01 else f"${usd:.6f}"


def scope(text: str) -> str:
    """The values of a job's scope for people. The namespace is left out. A memory is shown as ``m17``."""
    parts: list[str] = []
    for name, value in json.loads(text).items():
        if name == "memory_id":
            parts.insert(0, f"m{value}")
        elif name != "namespace":
            parts.append(str(value))
    return " · ".join(parts) or "all of it"


def wait(waiting: WaitingJob) -> str:
    """Why a job waits, and when the wait ends: ``312 of 512 tokens, due in 9 s``."""
    seconds, detail = waiting.due_in_seconds, waiting.detail or ""
    due = "" if seconds is None else f", due in {span(max(seconds, 1))}"
    if waiting.reason == "ripeness" and detail:
        return f"{detail}{due}"
    why = f"waits {_WAITS.get(waiting.reason, 'for ' + waiting.reason)}"
    return f"{why} ({detail}){due}" if detail else f"{why}{due}"


def memory_counts(counts: Mapping[str, int]) -> str:
    """The memories by level: ``70 messages, 67 facts, 1 reflection``. A level without memories is left out."""
    return ", ".join(f"{n:,} {level(name, n)}" for name, n in counts.items() if n) or "nothing yet"


def observation(found: ObservationStats) -> str:
    """The state of an observed session: ``tail 4,100 tokens, 2 chunks ready, log 900 tokens``."""
    parts = [f"tail {found.tail_tokens:,} tokens"]
    parts += [f"{count(found.chunks, 'chunk')} ready"] if found.chunks else []
    parts += [f"log {found.log_tokens:,} tokens"]
    parts += ["a shorter log ready"] if found.reflection_ready else []
    parts += [f"{work} gave up" for work in ("observing", "reflecting") if getattr(found, work) == "dead"]
    return ", ".join(parts)


def line(text: str) -> str:
    """``text`` on one line. Each run of white space becomes one space, and hidden characters become escapes."""
    return show_hidden(" ".join(text.split()))
