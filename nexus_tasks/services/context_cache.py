"""Keeping each project's context ready in a file: the hook has no time to ask a database."""

from __future__ import annotations

import logging

from sqlalchemy import func, select

from nexus_tasks.cognition.context import ContextRequest, assemble
from nexus_tasks.cognition.extraction import markdown
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import namespaces, topics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Topic
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import check_namespace

log = logging.getLogger(__name__)

_HEADING = "What nexus remembers about this project from earlier sessions. Each line cites the memory it rests on."
_TOPICS = "## Topics (each is read with `nexus topics show FILENAME`)"
_MOST_NAMESPACES = 200  # of an embedded database, the newest of which have a file before anybody asks
_written: dict[tuple[str, str], tuple[int | None, ...]] = {}  # what there was when a file was last written


def refresh(*also: str) -> int:
    """Write anew the context of every namespace that a hook has asked for and that has changed; returns how many.

    In an embedded database every namespace is a project of this user: they have a file before the first session.

    Args:
        also: namespaces to write in any case.

    Raises:
        StorageUnavailable: Postgres does not answer.
    """
    here = runtime()
    home, written = str(here.settings.home), 0
    asked = context_file.asked_for(home)
    if not asked and not also and not here.settings.embedded:
        return 0
    with here.database.transaction() as tx:
        if here.settings.embedded:
            asked |= dict.fromkeys([one.name for one in namespaces.every(tx)][-_MOST_NAMESPACES:], 0.0)
        for name in dict.fromkeys((*also, *asked)):
            written += _refresh(tx, home, name)
    return written


def _refresh(tx: Transaction, home: str, name: str) -> bool:
    try:
        known = namespaces.find(tx, check_namespace(name))
    except InvalidInput:
        return False  # a file of somebody else's
    if known is None:
        return False
    newest = select(func.coalesce(func.max(Memory.id), 0), func.count(Memory.valid_to))
    written = select(func.count(Topic.id), func.coalesce(func.sum(Topic.revision), 0), func.max(Topic.id))
    standing = (
        *tx.execute(newest.where(Memory.namespace_id == known.id)).one(),
        *tx.execute(written.where(Topic.namespace_id == known.id)).one(),
    )
    if _written.get((home, name)) == standing:
        return False
    budget = runtime().settings.hook_context_tokens
    ask = ContextRequest(
        namespace=name,
        namespace_id=known.id,
        session_key=None,
        query=None,
        observer=None,
        subject=None,
        max_tokens=max(budget - len(_HEADING) // 4 - 2, 1),
    )
    text = assemble(tx, runtime().embedder, ask).text.strip()
    text = f"{_HEADING}\n\n{text}" if text else ""
    index = markdown.index(topics.every(tx, known.id)).strip()
    with_index = f"{text}\n\n{_TOPICS}\n{index}".strip()
    if index and len(with_index) <= 4 * budget:
        text = with_index
    try:
        context_file.put(home, name, text)
    except OSError as error:
        log.warning("The context of %s could not be kept ready: %s", name, error.strerror)
        return False
    _written[home, name] = standing
    return True
