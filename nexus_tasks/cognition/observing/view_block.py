"""Render an observed session as a block for a prompt: the log, then the messages after the log, word for word.

With a query, the memories that fit it stand between the two.

Within one generation, the log does not change, and new messages come after the log. So the provider can cache the
prompt up to the end of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from nexus_tasks.cognition.observing import message_text
from nexus_tasks.cognition.observing.session_view import SessionView
from nexus_tasks.llm import observation_log
from nexus_tasks.settings import Settings
from nexus_tasks.storage.models import Memory
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import CitedMemory, ContextBlock, ContextSection, to_utc

OPENING, CLOSING = "<observation-log>", "</observation-log>"
RECENT = "## Recent messages"
BESIDES = (
    620  # tokens: 500 for the task and the suggested response (see LONGEST_TASK), 120 for headings, times and tags
)
MOST_MEMORIES = 2_000  # tokens of the memories that fit a query
_STEPS = 12  # the most attempts to make a block small enough (chosen by hand, not measured)


@dataclass(frozen=True, kw_only=True)
class ShownView:
    """The part of a view that is shown: the end of the view's log, and the newest messages."""

    view: SessionView
    log: str
    tail: tuple[Memory, ...]
    left_out: int  # the number of messages that are not shown
    log_left_out: bool = False
    memories: ContextBlock | None = None  # what fits the reader's query


def default_bound(settings: Settings) -> int:
    """The bound, in tokens, when the caller gives none. A block is longer only when the observation jobs are behind."""
    return settings.observation_block_after_tokens + settings.reflection_block_after_tokens + BESIDES


# Returns the memories that fit a query. Arguments: the bound in tokens, and the ids of messages to leave out.
FindMemories = Callable[[int, frozenset[int]], ContextBlock]


def lay_out(
    view: SessionView,
    namespace: str,
    settings: Settings,
    *,
    max_tokens: int | None,
    form: str,
    waited: bool,
    find: FindMemories | None = None,
) -> ContextBlock:
    """Render the view as a block.

    Args:
        max_tokens: the block's bound in tokens. The oldest part that does not fit is left out, and the block's
            ``notes`` say so.
        form: ``text``, ``anthropic``, ``openai`` or ``json``.
        waited: whether the reader waited for an observation. If observation is still behind, ``notes`` say so.
        find: finds the memories that fit the reader's query. They have at most 2,000 tokens, and at most a quarter of
            ``max_tokens``. Messages that the block shows anyway are not among them.
    """
    most = max_tokens if max_tokens is not None else max(default_bound(settings), 1)
    notes = _notes(view, waited=waited)
    memories = _memories(view, namespace, max_tokens, form, find) if find else None
    if max_tokens is None:
        shown_view = ShownView(view=view, log=view.log, tail=view.tail, left_out=view.unread, memories=memories)
        text = _text(shown_view, form, namespace)
        if estimate_tokens(text) > most:
            notes.append(f"This block is longer than {most:,} tokens, the bound for an observed session.")
        if view.unread:
            notes.append(f"Left out, because no block has so many messages: {view.unread:,} older messages.")
    else:
        shown_view, text = _fitting(view, max_tokens, form, namespace, memories)
        if shown_view.left_out or shown_view.log_left_out:
            older = "the log's older notes" if shown_view.log_left_out else ""
            messages = f"{shown_view.left_out:,} older messages" if shown_view.left_out else ""
            said = " and ".join(part for part in (older, messages) if part)
            notes.append(f"Left out, because the block is limited to {most:,} tokens: {said}.")
    block = ContextBlock(
        namespace=namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=most,
        sections=_sections(shown_view),
        citations=_citations(shown_view),
        notes=tuple(notes),
    )
    if form == "openai":
        return replace(block, messages=({"role": "user", "content": text},) if text else ())
    return replace(block, messages=_messages(shown_view)) if form == "anthropic" else block


def _memories(
    view: SessionView, namespace: str, max_tokens: int | None, form: str, find: FindMemories
) -> ContextBlock | None:
    if max_tokens is None:
        share, tail = MOST_MEMORIES, view.tail
    else:
        share = min(MOST_MEMORIES, max_tokens // 4)
        tail = _fitting(view, max_tokens - share, form, namespace)[0].tail
    found = find(max(share, 1), frozenset(message.id for message in tail))
    return found if found.text else None


def _notes(view: SessionView, *, waited: bool) -> list[str]:
    if not view.observed:
        return ["Observation is off for this session: turn it on with `nexus namespaces set NS --observe`."]
    if view.gave_up:
        return ["The observation of this session gave up: see `nexus jobs list --status dead`."]
    if waited and (view.observe_now or view.reflect_now):
        return ["Observation is behind, so this block is longer than it should be. See `nexus status`."]
    return []


def _citations(shown_view: ShownView) -> dict[str, CitedMemory]:
    said = [CitedMemory(id=one.id, external_id=one.external_id) for one in _shown(shown_view.tail)]
    found = shown_view.memories.citations if shown_view.memories else {}
    return {**{f"m{one.id}": one for one in (*_noted(shown_view), *said)}, **found}


def _noted(shown_view: ShownView) -> list[CitedMemory]:
    """The messages that the shown part of the log cites, in the order of the conversation."""
    cited = shown_view.view.cited
    return [cited[seq] for seq in sorted(observation_log.sources(shown_view.log)) if seq in cited]


def _log(shown_view: ShownView) -> str:
    """The log with the citations of its notes."""
    return observation_log.cited(shown_view.log, {seq: one.id for seq, one in shown_view.view.cited.items()})


def _shown(tail: Sequence[Memory]) -> list[Memory]:
    return [message for message in tail if message_text.text_of(message)]


def _head(shown_view: ShownView) -> str:
    view = shown_view.view
    said = [
        _log(shown_view),
        _dated("Current task", view.current_task, view.current_task_at),
        _dated("Suggested response", view.suggested_response, view.suggested_response_at),
    ]
    body = "\n".join(part for part in said if part)
    return f"{OPENING}\n{body}\n{CLOSING}" if body else ""


def _dated(name: str, text: str, when: datetime | None) -> str:
    """A line such as "Current task (as of 2026-03-01 09:00): Plan the journey."."""
    age = f" (as of {to_utc(when):%Y-%m-%d %H:%M})" if when else ""
    return f"{name}{age}: {text}" if text else ""


def _recent(shown_view: ShownView) -> str:
    lines = [message_text.cited_line(message) for message in _shown(shown_view.tail)]
    found = shown_view.memories.text if shown_view.memories else ""
    return "\n".join(part for part in (found, *((RECENT, *lines) if lines else ())) if part)


def _plain(shown_view: ShownView) -> str:
    return "\n".join(part for part in (_head(shown_view), _recent(shown_view)) if part)


def _text(shown_view: ShownView, form: str, namespace: str) -> str:
    return _json(shown_view, namespace) if form == "json" else _plain(shown_view)


def _json(shown_view: ShownView, namespace: str) -> str:
    view = shown_view.view
    body = {
        "namespace": namespace,
        "session": view.session_key,
        "observations": _log(shown_view),
        "current_task": view.current_task or None,
        "suggested_response": view.suggested_response or None,
        "current_task_at": _time(view.current_task_at if view.current_task else None),
        "suggested_response_at": _time(view.suggested_response_at if view.suggested_response else None),
        "observed_through": view.observed_through,
        "memories": shown_view.memories.text if shown_view.memories else None,
        "messages": [
            {
                "id": message.id,
                "citation": f"[m{message.id}]",
                "at": _time(message.occurred_at),
                "author": message.author,
                "role": message.role,
                "content": message_text.text_of(message),
            }
            for message in _shown(shown_view.tail)
        ],
    }
    return json.dumps(body, ensure_ascii=False)


def _time(when: datetime | None) -> str | None:
    return f"{to_utc(when).replace(tzinfo=None).isoformat(timespec='seconds')}Z" if when else None


def _messages(shown_view: ShownView) -> tuple[dict[str, Any], ...]:
    """One user message of two blocks: the log, and the recent messages. A cache marker ends the log's block."""
    head, recent = _head(shown_view), _recent(shown_view)
    content: list[dict[str, Any]] = []
    if head:
        content.append({"type": "text", "text": head, "cache_control": {"type": "ephemeral"}})
    if recent:
        content.append({"type": "text", "text": recent})
    return ({"role": "user", "content": content},) if content else ()


def _sections(shown_view: ShownView) -> tuple[ContextSection, ...]:
    shown = _shown(shown_view.tail)
    sections = []
    if head := _head(shown_view):
        ids = tuple(one.id for one in _noted(shown_view))
        sections.append(ContextSection(name="observations", tokens=estimate_tokens(head + "\n"), ids=ids))
    if shown_view.memories:
        sections += shown_view.memories.sections
    if shown:
        ids = tuple(message.id for message in shown)
        text = _recent(replace(shown_view, memories=None))
        sections.append(ContextSection(name="recent messages", tokens=estimate_tokens(text), ids=ids))
    return tuple(sections)


# --- under a bound ----------------------------------------------------------------------------------------------------
def _fitting(
    view: SessionView, most: int, form: str, namespace: str, memories: ContextBlock | None = None
) -> tuple[ShownView, str]:
    """A part of a view that fits, and its rendered text of at most ``most`` tokens.

    The function tries smaller and smaller parts. A part needs more tokens as JSON than as text, so a smaller part fits
    as JSON.
    """
    room = float(most)
    besides = memories.tokens + 1 if memories else 0
    for _ in range(_STEPS):
        shown_view = replace(_shown_within(view, max(int(room) - besides, 0)), memories=memories)
        text = _text(shown_view, form, namespace)
        used = estimate_tokens(text)
        if used <= most:
            return shown_view, text
        room *= 0.97 * most / used
    empty = ShownView(
        view=replace(view, current_task="", suggested_response=""),
        log="",
        tail=(),
        left_out=len(view.tail) + view.unread,
    )
    return empty, "{}" if form == "json" else ""


def _shown_within(view: SessionView, most: int) -> ShownView:
    """The newest messages and the log's end, within ``most`` tokens.

    The messages may use one half of the tokens, and the log the other half. When the messages need less than their
    half, the log may use the rest, and the other way round.
    """
    whole = ShownView(view=view, log=view.log, tail=view.tail, left_out=view.unread)
    if estimate_tokens(_plain(whole)) <= most:
        return whole
    tail_tokens = sum(map(message_text.tokens_of, view.tail)) + estimate_tokens(RECENT + "\n")
    head_tokens = estimate_tokens(_head(whole) + "\n")
    for_tail = max(most // 2, most - head_tokens)
    kept: list[Memory] = []
    used = estimate_tokens(RECENT + "\n")
    for message in reversed(view.tail):
        used += message_text.tokens_of(message)
        if used > for_tail:
            break
        kept.insert(0, message)
    kept_tokens = tail_tokens if len(kept) == len(view.tail) else sum(map(message_text.tokens_of, kept))
    tags = estimate_tokens(f"{OPENING}\n{CLOSING}\n") + head_tokens - estimate_tokens(view.log) + 2
    log = observation_log.last_lines(view.log, most - kept_tokens - tags - estimate_tokens(RECENT + "\n"))
    shown = view if log else replace(view, current_task="", suggested_response="")
    left_out = len(_shown(view.tail)) - len(_shown(kept)) + view.unread
    return ShownView(view=shown, log=log, tail=tuple(kept), left_out=left_out, log_left_out=log != view.log)
