"""An observed session as a block for a prompt: the log, then what was said since, word for word.

The block's beginning is the log, which changes only when a generation is made; behind it messages are only added. A
prompt cache that holds the beginning is good until then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nexus_tasks.cognition.observing import render
from nexus_tasks.cognition.observing.reading import View
from nexus_tasks.settings import Settings
from nexus_tasks.storage.models import Memory
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import ContextBlock, ContextSection, to_utc

OPENING, CLOSING = "<observation-log>", "</observation-log>"
RECENT = "## Recent messages"
BESIDES = 600  # tokens: the task, the suggested response, headings and tags
_STEPS = 12  # how often a block in JSON is laid out anew until its punctuation fits, too


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What of a view is shown: the end of its log and its newest messages."""

    view: View
    log: str
    tail: tuple[Memory, ...]
    left_out: int  # messages
    log_left_out: bool = False


def bound(settings: Settings) -> int:
    """Tokens that a whole observed session stays under, as long as its observation keeps up."""
    return settings.observation_block_after_tokens + settings.reflection_block_after_tokens + BESIDES


def laid_out(
    view: View, namespace: str, settings: Settings, *, max_tokens: int | None, form: str, waited: bool
) -> ContextBlock:
    """The view as a block. With ``max_tokens`` the oldest that does not fit is left out, and ``notes`` says so."""
    most = max_tokens if max_tokens is not None else max(bound(settings), 1)
    notes = _notes(view, waited=waited)
    if max_tokens is None:
        cut = Cut(view=view, log=view.log, tail=view.tail, left_out=0)
        text = _text(cut, form, namespace)
        if estimate_tokens(text) > most:
            notes.append(f"It is longer than the {most:,} tokens that an observed session should stay under.")
    else:
        cut, text = _fitting(view, max_tokens, form, namespace)
        if cut.left_out or cut.log_left_out:
            older = "the log's older notes" if cut.log_left_out else ""
            messages = f"{cut.left_out:,} older messages" if cut.left_out else ""
            said = " and ".join(part for part in (older, messages) if part)
            notes.append(f"Left out, for they do not fit into {most:,} tokens: {said}.")
    block = ContextBlock(
        namespace=namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=most,
        sections=_sections(cut),
        citations={f"m{one.id}": {"id": one.id, "external_id": one.external_id} for one in _shown(cut.tail)},
        notes=tuple(notes),
    )
    return replace(block, messages=_messages(cut)) if form == "anthropic" else block


def _notes(view: View, *, waited: bool) -> list[str]:
    if not view.observed:
        return ["Observation is off for this session: turn it on with `nexus namespaces set NS --observe`."]
    if view.gave_up:
        return ["Observation gave up here: see `nexus jobs list --status dead`."]
    if waited and (view.observe_now or view.reflect_now):
        return ["Observation is behind; this is longer than it should be. See `nexus status`."]
    return []


def _shown(tail: Sequence[Memory]) -> list[Memory]:
    return [message for message in tail if render.said(message)]


def _head(cut: Cut) -> str:
    view = cut.view
    said = [
        cut.log,
        f"Current task: {view.current_task}" if view.current_task else "",
        f"Suggested response: {view.suggested_response}" if view.suggested_response else "",
    ]
    body = "\n".join(part for part in said if part)
    return f"{OPENING}\n{body}\n{CLOSING}" if body else ""


def _recent(cut: Cut) -> str:
    lines = [render.line(message) for message in _shown(cut.tail)]
    return "\n".join((RECENT, *lines)) if lines else ""


def _plain(cut: Cut) -> str:
    return "\n".join(part for part in (_head(cut), _recent(cut)) if part)


def _text(cut: Cut, form: str, namespace: str) -> str:
    return _json(cut, namespace) if form == "json" else _plain(cut)


def _json(cut: Cut, namespace: str) -> str:
    view = cut.view
    body = {
        "namespace": namespace,
        "session": view.session_key,
        "observations": cut.log,
        "current_task": view.current_task or None,
        "suggested_response": view.suggested_response or None,
        "observed_through": view.observed_through,
        "messages": [
            {
                "id": message.id,
                "citation": f"[m{message.id}]",
                "at": f"{to_utc(message.occurred_at):%Y-%m-%dT%H:%M:%SZ}",
                "author": message.author,
                "role": message.role,
                "content": render.said(message),
            }
            for message in _shown(cut.tail)
        ],
    }
    return json.dumps(body, ensure_ascii=False)


def _messages(cut: Cut) -> tuple[dict[str, Any], ...]:
    """One turn of two blocks; the log's is marked for the cache, because it stays while messages are added."""
    head, recent = _head(cut), _recent(cut)
    content: list[dict[str, Any]] = []
    if head:
        content.append({"type": "text", "text": head, "cache_control": {"type": "ephemeral"}})
    if recent:
        content.append({"type": "text", "text": recent})
    return ({"role": "user", "content": content},) if content else ()


def _sections(cut: Cut) -> tuple[ContextSection, ...]:
    shown = _shown(cut.tail)
    sections = []
    if head := _head(cut):
        sections.append(ContextSection(name="observations", tokens=estimate_tokens(head + "\n"), ids=()))
    if shown:
        ids = tuple(message.id for message in shown)
        sections.append(ContextSection(name="recent messages", tokens=estimate_tokens(_recent(cut)), ids=ids))
    return tuple(sections)


# --- under a bound ----------------------------------------------------------------------------------------------------
def _fitting(view: View, most: int, form: str, namespace: str) -> tuple[Cut, str]:
    """The most of a view that fits. The rendered form may need more room than the plain one: then less goes in."""
    room = float(most)
    for _ in range(_STEPS):
        cut = _cut(view, int(room))
        text = _text(cut, form, namespace)
        used = estimate_tokens(text)
        if used <= most:
            return cut, text
        room *= 0.97 * most / used
    nothing = Cut(view=replace(view, current_task="", suggested_response=""), log="", tail=(), left_out=len(view.tail))
    return nothing, "{}" if form == "json" else ""


def _cut(view: View, most: int) -> Cut:
    """The newest messages and the log's end within ``most`` tokens; each may have half, and what the other leaves."""
    whole = Cut(view=view, log=view.log, tail=view.tail, left_out=0)
    if estimate_tokens(_plain(whole)) <= most:
        return whole
    tail_tokens = view.tail_tokens + estimate_tokens(RECENT + "\n")
    head_tokens = estimate_tokens(_head(whole) + "\n")
    for_tail = max(most // 2, most - head_tokens)
    kept: list[Memory] = []
    used = estimate_tokens(RECENT + "\n")
    for message in reversed(view.tail):
        used += render.weight(message)
        if used > for_tail:
            break
        kept.insert(0, message)
    kept_tokens = tail_tokens if len(kept) == len(view.tail) else sum(map(render.weight, kept))
    tags = estimate_tokens(f"{OPENING}\n{CLOSING}\n") + head_tokens - estimate_tokens(view.log) + 2
    log = _end(view.log, most - kept_tokens - tags - estimate_tokens(RECENT + "\n"))
    shown = view if log else replace(view, current_task="", suggested_response="")
    left_out = len(_shown(view.tail)) - len(_shown(kept))
    return Cut(view=shown, log=log, tail=tuple(kept), left_out=left_out, log_left_out=log != view.log)


def _end(log: str, tokens: int) -> str:
    """The last whole lines of ``log`` within ``tokens``."""
    if len(log) <= 4 * tokens:
        return log
    if tokens <= 0:
        return ""
    start = log.find("\n", len(log) - 4 * tokens - 1)
    return log[start + 1 :] if start >= 0 else ""
