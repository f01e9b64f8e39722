"""The offline extraction: turn statements and rules of users into lines of topics, and facts of the session's user."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nexus_tasks.llm.answers import (
    KnownTopic,
    PromptLine,
    SessionFact,
    SessionFacts,
    SessionFactsMaterial,
    TopicFile,
    TopicFiles,
    TopicsMaterial,
)
from nexus_tasks.llm.offline.rules import is_of_the_moment, is_rule
from nexus_tasks.llm.offline.statements import is_statement, spoken, strength
from nexus_tasks.text import fold, shorten
from nexus_tasks.types import TopicType, to_utc

LONGEST = 300  # the most characters of a statement (chosen by hand, not measured)
# The first pattern that matches a sentence decides the sentence's category.
_CATEGORIES = tuple(
    (category, re.compile(rf"\b(?:{words})\b", re.IGNORECASE))
    for category, words in (
        ("constraint", r"must(?: not)?|never|deadline|not allowed|forbidden|has to|have to|allergic|at most|only"),
        ("decision", r"decided|agreed|we(?: will|['’]ll)|chose|settled on|going with|instead of|no longer"),
        ("preference", r"prefer\w*|favou?rite|love|like|hate|enjoy|rather|please use"),
        ("pattern", r"always|usually|every|whenever|each time|normally"),
        ("project", r"project|deploy\w*|release\w*|shop|service|server|team|repository|version|we|our"),
    )
)
RULE = "rule"  # the category of a sentence that tells the agent how to work; as a fact it is a preference
_TOPICS: dict[str, tuple[str, str, str, TopicType]] = {
    RULE: ("feedback.md", "Feedback", "How the user wants the work done", "feedback"),
    "constraint": ("feedback.md", "Feedback", "How the user wants the work done", "feedback"),
    "decision": ("decisions.md", "Decisions", "What was decided, and when", "project"),
    "project": ("project.md", "Project", "What is known of the project", "project"),
    "user": ("user.md", "User", "Who the user is, and what they like", "user"),
}


_AS_FACT = {RULE: "preference"}


def topics(material: TopicsMaterial) -> TopicFiles:
    """Topic files with a dated line for each statement. A statement's category decides the file."""
    known = {one.filename: one for one in material.known}
    added: dict[str, list[str]] = {}
    for line, sentence in _statements(material.lines):
        category = _category(sentence)
        place = category if category in _TOPICS else "user"
        filename = _TOPICS[place][0]
        added.setdefault(filename, []).append(f"- {sentence} ({line.author}, {to_utc(line.occurred_at):%Y-%m-%d})")
    return TopicFiles(topics=[_topic(filename, lines, known) for filename, lines in sorted(added.items())])


def _topic(filename: str, lines: list[str], known: dict[str, KnownTopic]) -> TopicFile:
    _, name, description, kind = next(one for one in _TOPICS.values() if one[0] == filename)
    there = known.get(filename)
    if there:
        name, description = there.name, there.description
        before = there.content.splitlines()
        lines = [*(before if there.whole else ()), *(line for line in lines if line not in before)]
    fields = {"filename": filename, "name": name, "description": description, "content": "\n".join(lines)}
    return TopicFile(type=kind, **fields)


def facts(material: SessionFactsMaterial) -> SessionFacts:
    """The statements of the session's user as facts. A statement that no category fits is left out.

    The confidence of a fact is 7 of 10, plus 0.5 for each kind of marker (see statements.strength).
    """
    mine = tuple(line for line in material.lines if line.author == material.user)
    found = [
        SessionFact(
            category=_AS_FACT.get(category, category),
            confidence=7 + strength(sentence) * 0.5,
            content=sentence,
            sources=[line.id],
        )
        for line, sentence in _statements(mine)
        if (category := _category(sentence))
    ]
    return SessionFacts(facts=found)


def _statements(lines: tuple[PromptLine, ...]) -> Iterator[tuple[PromptLine, str]]:
    seen: set[str] = set()
    for line in lines:
        pieces = spoken(line.content) if line.role == "user" else []
        for piece in pieces:
            sentence = shorten(" ".join(piece.split()), LONGEST)
            if is_of_the_moment(sentence):
                continue
            heard = is_rule(sentence) or is_statement(sentence, alone=len(pieces) == 1)
            if heard and fold(sentence) not in seen:
                seen.add(fold(sentence))
                yield line, sentence


def _category(sentence: str) -> str:
    if is_rule(sentence):
        return RULE
    return next((category for category, pattern in _CATEGORIES if pattern.search(sentence)), "")
