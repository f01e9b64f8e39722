"""Who may be believed: the standing of a fact, which is the lowest standing of the messages that it rests on together.

| standing | whose words |
| --- | --- |
| `self` | the person's own, about themselves |
| `other` | another person's |
| `assistant` | an assistant's |
| `tool` | the output of a tool |
| `import` | text that nobody in the conversation said: messages of the role `system` |

What an assistant or a tool says about a person is no source of its own. It may be a mistake, or a text on a web page
that tells the agent what to remember. So a fact about a person needs the words of a person, and a fact about an
assistant needs the words of a person or of an assistant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from nexus_tasks.types import Standing, standing_rank


class Source(Protocol):
    """A message that a fact rests on."""

    @property
    def author(self) -> str:
        """The author's name."""
        ...

    @property
    def role(self) -> str:
        """``user``, ``assistant``, ``tool`` or ``system``."""
        ...


def standing_of(subject: str, sources: Iterable[Source], people: Collection[str]) -> Standing | None:
    """The standing of a fact about ``subject``, or ``None`` when its sources may not make such a fact.

    Args:
        people: the authors who speak as people, with the role ``user``.
    """
    found = [_of_source(subject, source) for source in sources]
    needed: Standing = "other" if subject in people else "assistant"
    if not found or max(map(standing_rank, found)) < standing_rank(needed):
        return None
    return min(found, key=standing_rank)


def work_of(content: str, sources: Iterable[Source]) -> str | None:
    """The assistant whose work ``content`` tells, when an assistant alone is its source: "The assistant promised …"."""
    authors = {source.author if source.role == "assistant" else "" for source in sources}
    author = authors.pop() if len(authors) == 1 else ""
    named = author and content.casefold().startswith((author.casefold(), "the assistant", "assistant"))
    return author if named else None


def _of_source(subject: str, source: Source) -> Standing:
    if source.role == "user":
        return "self" if source.author == subject else "other"
    by_role: dict[str, Standing] = {"assistant": "assistant", "tool": "tool"}
    return by_role.get(source.role, "import")
