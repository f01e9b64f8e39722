"""Render a context block as messages for a model or as JSON. The token bound holds in each form."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import replace

from nexus_tasks.cognition.context.token_budget import line_tokens
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import ContextBlock, ContextFormat, ContextSection


def render_as(block: ContextBlock, form: ContextFormat) -> ContextBlock:
    """The block in the form ``form``.

    ``anthropic`` and ``openai`` set the block's ``messages``, with which a request to Anthropic's Messages API or to
    OpenAI's Chat Completions API can begin. ``json`` replaces the block's ``text`` by JSON. ``text`` returns the block
    unchanged.
    """
    if form == "openai":
        # Not a message of the system: memories are data, never instructions.
        return replace(block, messages=({"role": "user", "content": block.text},) if block.text else ())
    if form == "anthropic":
        content = [{"type": "text", "text": block.text}] if block.text else []
        return replace(block, messages=({"role": "user", "content": content},) if content else ())
    return _as_json(block) if form == "json" else block


def _as_json(block: ContextBlock) -> ContextBlock:
    """The block as a JSON object without the last lines that do not fit. If no JSON fits, the text is ``{}``."""
    cited = sum(len(section.ids) for section in block.sections)
    # A binary search for the number of lines is possible, because the text grows with the number of lines.
    most = bisect_right(range(cited + 1), block.max_tokens, key=lambda n: estimate_tokens(_json(_first(block, n)))) - 1
    if most < 0:
        return replace(block, text="{}", tokens=1, sections=(), citations={})
    kept = _first(block, most)
    text = _json(kept)
    return replace(kept, text=text, tokens=estimate_tokens(text))


def _first(block: ContextBlock, cited: int) -> ContextBlock:
    """The block with only its first ``cited`` cited lines."""
    lines, sections, at = block.text.splitlines(), list[ContextSection](), 0
    kept: list[str] = []
    for section in block.sections:
        ids = section.ids[:cited]
        if ids:
            chosen = lines[at : at + 1 + len(ids)]
            kept += chosen
            sections.append(replace(section, ids=ids, tokens=sum(map(line_tokens, chosen))))
        at += 1 + len(section.ids)
        cited -= len(ids)
    citations = {f"m{i}": block.citations[f"m{i}"] for section in sections for i in section.ids}
    return replace(block, text="\n".join(kept), sections=tuple(sections), citations=citations)


def _json(block: ContextBlock) -> str:
    sections = [{"name": section.name, "ids": section.ids} for section in block.sections]
    body = {"namespace": block.namespace, "sections": sections, "lines": block.text.splitlines()}
    return json.dumps(body, ensure_ascii=False)
