"""Secrets are replaced before the first write to disk, by a placeholder that says what kind each was.

Every rule costs time linear in the text. What looks like a secret and is none costs a word; what is one and is missed
costs more: so known shapes are replaced wherever they are, unknown ones only where a name says that they are secret.
"""

from __future__ import annotations

from typing import Any

from nexus_tasks.transcripts.scrubbing.assignments import scrub_assignments, secret_name
from nexus_tasks.transcripts.scrubbing.headers import scrub_headers
from nexus_tasks.transcripts.scrubbing.placeholder import placeholder
from nexus_tasks.transcripts.scrubbing.private_keys import scrub_private_keys
from nexus_tasks.transcripts.scrubbing.tokens import scrub_tokens
from nexus_tasks.transcripts.scrubbing.urls import scrub_urls
from nexus_tasks.transcripts.scrubbing.wrapped import scrub_wrapped

__all__ = ["scrub", "scrub_value"]

_DEEPEST = 100  # levels of nesting; what lies deeper is left out


def scrub(text: str) -> str:
    """``text`` with its secrets replaced. Scrubbing again changes nothing."""
    return scrub_wrapped(_scrub(text), _scrub)


def _scrub(text: str) -> str:
    for rule in (scrub_private_keys, scrub_urls, scrub_tokens, scrub_headers, scrub_assignments):
        text = rule(text)
    return text


def scrub_value(value: Any, depth: int = 0) -> Any:
    """A JSON value with the secrets in its texts, keys included, replaced."""
    if isinstance(value, str):
        return scrub(value)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        return {scrub(str(key)): _field(str(key), item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub_value(item, depth + 1) for item in value]
    return value


def _field(key: str, value: Any, depth: int) -> Any:
    kind = secret_name(key, value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    return placeholder(kind) if kind else scrub_value(value, depth + 1)
