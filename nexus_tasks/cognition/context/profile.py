"""Choose a person's profile: the memories about someone that stay true, and that an agent should know at any time.

The profile is made from the facts that hold now and the conclusions of reflections. Pinned memories come first. Single
events and opinions are left out unless they are pinned. The choice and the order depend only on the memories, not on
the clock. So a profile changes only when one of its memories changes, or when a new memory takes the place of a weaker
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nexus_tasks.cognition.context.token_budget import BudgetedBlock, Section
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import content_words, estimate_tokens
from nexus_tasks.types import ContextBlock

TITLE = "Profile"
MOST_TOKENS = 500
SHARE = 0.25  # of the tokens of a context that begins with a profile
# The categories of a profile, in the order in which they are shown, each with its weight. Chosen by hand, not measured.
# What a person must not have comes first, because forgetting it does the most harm. ``None`` is the category of a
# reflection's conclusion.
_WEIGHTS: dict[str | None, float] = {
    "constraint": 0.5,
    "relationship": 0.4,
    "fact": 0.3,
    "preference": 0.3,
    "pattern": 0.2,
    None: 0.2,
    "project": 0.1,
    "decision": 0.1,
    "plan": 0.1,
}
_ORDER = {category: place for place, category in enumerate(_WEIGHTS)}
_CANDIDATES = 300
_LEAST_CONFIDENCE = 0.70
_REINFORCEMENT, _MOST_REINFORCED = 0.1, 5  # the weight of each repetition, and the repetitions that count


def make_profile(tx: Transaction, wanted: Filter, namespace: str, max_tokens: int) -> ContextBlock:
    """The profile of the filter's subject, at most ``max_tokens`` tokens. Without memories it is empty."""
    block = BudgetedBlock(max_tokens=max_tokens)
    fill(tx, wanted, section(block), max_tokens)
    text = "\n".join(block.lines())
    return ContextBlock(
        namespace=namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=max_tokens,
        sections=block.shown(),
        citations=block.citations(),
    )


def section(block: BudgetedBlock) -> Section:
    """Add the profile's section to a block. Its lines have no date, because they hold at any time."""
    return block.section(TITLE, lambda row: f"{row.subject}: {row.content}")


def fill(
    tx: Transaction,
    wanted: Filter,
    into: Section,
    allowance: float,
    leave_out: Callable[[ContextRow], bool] | None = None,
) -> None:
    """Fill a section with the profile of the filter's subject.

    Args:
        allowance: tokens that the section may use.
        leave_out: memories for which this function returns ``True`` are left out.
    """
    wanted = replace(wanted, levels=("explicit", "derived"))
    categories = [name for name in _WEIGHTS if name]
    longest = context_rows.longest_text(into.block.max_tokens)
    found = context_rows.strongest(tx, wanted, categories, _LEAST_CONFIDENCE, _CANDIDATES, longest=longest)
    told = list[frozenset[str]]()
    for row in sorted(found, key=lambda row: (not row.pinned, -_weight(row), row.id)):
        words = frozenset(content_words(row.content))
        # A memory all of whose words a chosen one has is not told too. "Tuesday" and "Thursday" stay two memories.
        if leave_out is not None and leave_out(row):
            continue
        if not any(words <= other for other in told) and into.add(row, allowance):
            told.append(words)
    into.sort(lambda row: (not row.pinned, _ORDER.get(row.category, len(_ORDER)), row.occurred_at.timestamp(), row.id))


def _weight(row: ContextRow) -> float:
    return row.confidence + _WEIGHTS.get(row.category, 0) + _REINFORCEMENT * min(row.times_reinforced, _MOST_REINFORCED)
