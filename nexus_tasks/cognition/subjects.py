"""Find the subject that a model's answer means, when the answer spells the subject's name in another way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nexus_tasks.llm.answers import PromptLine
from nexus_tasks.text import STOP_WORDS, words

# Phrases with which an author says by which name they are called: "call me Mel", "my name is Melanie".
_CALLED = re.compile(
    r"\b(?:call me|my name is|my name['’]s|i go by|people call me|friends call me|my nickname is)\s+"
    r"[\"'“‘]?(?P<name>[^\W\d_]{2,40})",
    re.IGNORECASE,
)
_READ = 2_000  # characters of a message in which such a phrase is looked for (chosen by hand, not measured)


class Subjects:
    """The subjects about whom facts are wanted, and the other names by which a conversation knows them.

    Example: ``Subjects(["Smith, John", "ann"], lines).find("John Smith")`` is ``"Smith, John"``.
    """

    def __init__(self, wanted: Sequence[str], lines: Iterable[PromptLine] = ()) -> None:
        self._exact = frozenset(wanted)
        self._by_fold = _unique((subject.casefold(), subject) for subject in wanted)
        self._words = {subject: frozenset(words(subject)) for subject in wanted}
        self._by_words = _unique((own, subject) for subject, own in self._words.items() if own)
        self._nicknames = _unique(
            (match["name"].casefold(), line.author)
            for line in lines
            if line.author in self._exact
            for match in _CALLED.finditer(line.content[:_READ])
        )

    def find(self, named: str) -> str | None:
        """The subject that ``named`` means, or ``None`` when it means none of them, or more than one.

        The name may differ in case, in the order of its words ("John Smith" for "Smith, John"), in missing words
        ("John" for "John Smith") and in one additional word ("Dr. Smith" for "Smith"). It may be a nickname that the
        subject has said ("Call me Jo").
        """
        named = named.strip()
        if named in self._exact:
            return named
        asked = frozenset(words(named))
        found = self._by_fold.get(named.casefold()) or self._by_words.get(asked)
        if found or not asked:
            return found
        if named.casefold() in self._nicknames:
            return self._nicknames[named.casefold()]
        near = [subject for subject, own in self._words.items() if asked < own or _is_longer(asked, own)]
        return near[0] if len(near) == 1 else None


def _is_longer(asked: frozenset[str], own: frozenset[str]) -> bool:
    """Whether ``asked`` is a name and one word more: "Ann Lee" for "ann", but not "Ann and Bob" or "friends of Ann"."""
    added = asked - own
    return bool(own) and own < asked and len(added) == 1 and not added & STOP_WORDS


def _unique(pairs: Iterable[tuple[object, str]]) -> dict[object, str]:
    """The pairs as a mapping, without the keys that stand for more than one subject."""
    found: dict[object, set[str]] = {}
    for key, subject in pairs:
        found.setdefault(key, set()).add(subject)
    return {key: subjects.pop() for key, subjects in found.items() if len(subjects) == 1}
