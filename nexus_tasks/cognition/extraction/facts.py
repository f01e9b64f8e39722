"""The fact extractor of the job extract_session: build the question to the model, and check the facts in its answer.

The prompt is ``prompts/facts.md``. (``prompts/derive.md`` is the prompt of another job, see ``cognition/derive.py``.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import func, select

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.derive import MIN_CONFIDENCE
from nexus_tasks.cognition.echo import is_echo
from nexus_tasks.cognition.extraction.batch import ExtractionBatch
from nexus_tasks.cognition.extraction.topics import one_line
from nexus_tasks.cognition.standing import standing_of
from nexus_tasks.event_time import event_time, zone
from nexus_tasks.llm.answers import SessionFacts, SessionFactsMaterial
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.facts import FactDraft
from nexus_tasks.storage.models import Memory
from nexus_tasks.types import standing_rank

CATEGORIES = ("preference", "project", "pattern", "decision", "constraint")
# Names that models use for the categories. A name that is not in this table is looked up again without its suffix such
# as "fact", then without its prefix such as "user", and then without the suffix and the prefix.
_ALIASES = {
    **{name: name for name in CATEGORIES},
    **dict.fromkeys(("preferences", "like", "likes", "style"), "preference"),
    **dict.fromkeys(("projects", "context", "work"), "project"),
    **dict.fromkeys(("patterns", "habit", "habits", "workflow", "behavior", "behaviour", "practice"), "pattern"),
    **dict.fromkeys(("decisions", "choice", "choices"), "decision"),
    **dict.fromkeys(("constraints", "requirement", "requirements", "rule", "rules", "limit", "limits"), "constraint"),
}
_BEFORE = re.compile(r"^(?:users?|project|technical|coding|code|session)")
_BEHIND = re.compile(r"(?:facts?|info|item)$")
LONGEST = 500  # the most characters of a fact (chosen by hand, not measured)


def user_of(tx: Transaction, session_id: int) -> str | None:
    """The author with the most messages of role ``user`` in a session, or ``None`` when there is no such message.

    When several authors have the same number of messages, the author of the earliest message is chosen.
    """
    said = (
        select(Memory.author)
        .where(Memory.session_id == session_id, Memory.level == "raw", Memory.role == "user")
        .group_by(Memory.author)
        .order_by(func.count().desc(), func.min(Memory.seq))
    )
    return tx.scalar(said.limit(1))


def build_request(session_key: str, batch: ExtractionBatch, user: str) -> ModelRequest[SessionFacts]:
    """The model request for a batch."""
    return ModelRequest(
        purpose="facts",
        instructions=prompts.instructions("facts"),
        transcript=prompts.transcript(batch.lines),
        question=prompts.names(session=session_key, user=user),
        answer=SessionFacts,
        material=SessionFactsMaterial(lines=batch.lines, user=user),
        shared=False,
    )


def category_of(given: str) -> str | None:
    """The category that ``given`` means, or ``None`` for an unknown name. ``user_preference`` means ``preference``."""
    word = re.sub(r"[^a-z]", "", given.casefold())
    forms = (word, _BEHIND.sub("", word), _BEFORE.sub("", word), _BEFORE.sub("", _BEHIND.sub("", word)))
    return next((_ALIASES[form] for form in forms if form in _ALIASES), None)


def drafts(answer: SessionFacts, batch: ExtractionBatch, user: str, made_by: str) -> tuple[list[FactDraft], int]:
    """The valid facts, and the number of rejected facts.

    A fact is rejected in these cases:

    - Its category is unknown, or its confidence is outside 0 to 10.
    - Its confidence is below 7. No context would show such a fact, and a derivation drops it too.
    - Its content is empty or an echo.
    - It has no sources, or one of its sources is not a message of the batch.
    - Only an assistant or a tool says it (see ``standing.py``).
    """
    lines = {line.id: line for line in batch.lines}
    kept = list[FactDraft]()
    for fact in answer.facts:
        category, content = category_of(fact.category), one_line(fact.content, LONGEST)
        sources = sorted(set(fact.sources))
        sure = 10 * MIN_CONFIDENCE <= fact.confidence <= 10
        if category is None or not sure or not content or is_echo(content):
            continue
        if not sources or not all(source in lines for source in sources):
            continue
        said = [lines[source] for source in sources]
        standing = standing_of(user, said, {user})
        if standing is None:
            continue
        first = min(said, key=lambda line: line.occurred_at)
        kept.append(
            FactDraft(
                subject=user,
                content=content,
                category=category,
                confidence=fact.confidence / 10,
                labels=(),
                sources=tuple(sources),
                valid_from=first.occurred_at,
                session_id=batch.session_id,
                made_by=made_by,
                standing=standing_rank(standing),
                event=event_time(content, first.occurred_at, zone(first.time_zone)),
                time_zone=first.time_zone,
            )
        )
    return kept, len(answer.facts) - len(kept)


def contents(kept: Sequence[FactDraft]) -> list[str]:
    """The texts of the facts."""
    return [draft.content for draft in kept]
