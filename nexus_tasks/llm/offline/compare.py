"""Compare two facts about one subject: find a duplicate, a reinforcement or a contradiction.

Two facts with the same words are duplicates, also when a phrase has moved from the end to the beginning. Two facts that
share at least 80 % of their words reinforce each other. Two facts that share at least 30 % of their
words contradict each other when only one of the two negates a shared word. But people seldom negate an outdated fact.
Instead, they state the new fact. So further rules find changed values, replaced things and changed attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nexus_tasks.llm.offline.attributes import attribute_conflict
from nexus_tasks.llm.offline.reading import Reading, read_fact
from nexus_tasks.llm.offline.statements import is_vague
from nexus_tasks.text import jaccard, marked_words
from nexus_tasks.types.unicode_form import nfc

# The least share of common words of two facts that reinforce each other, of two facts that contradict each other by a
# negation, and of two facts about one matter whose value has changed. Chosen by hand, not measured.
REINFORCES, CONTRADICTS, SAME_MATTER = 0.80, 0.30, 0.60


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The relation between two facts, and the reason for the relation in one line."""

    kind: Literal["duplicate", "reinforces", "contradicts"]
    rationale: str


def compare(left: str, right: str) -> Verdict | None:
    """The relation between two facts about one subject, or ``None`` when the facts are not related.

    The order of the two facts does not matter.
    """
    left, right = nfc(left), nfc(right)
    one, other = read_fact(left), read_fact(right)
    if one.key == other.key:
        return Verdict(kind="duplicate", rationale="the same content words in the same order")
    if _is_rotation(marked_words(left), marked_words(right)) and not _differs(one, other):
        return Verdict(kind="duplicate", rationale="the same content words, begun at another place")
    why = (
        _denial(one, other)
        or _changed_value(one, other)
        or _replacement(one, other)
        or _replacement(other, one)
        or attribute_conflict(left, right)
    )
    if why:
        return Verdict(kind="contradicts", rationale=why)
    shared, overlap = one.everything & other.everything, jaccard(one.everything, other.everything)
    if overlap >= REINFORCES and not _differs(one, other):
        return Verdict(kind="reinforces", rationale=f"{overlap:.0%} of the words are shared: {_listed(shared)}")
    return None


def _is_rotation(left: list[str], right: list[str]) -> bool:
    """Whether ``right`` begins at another word of ``left`` and goes around: "On Fridays I swim", "I swim on Fridays".

    Words in any other order do not count, because "Ann called Bob" and "Bob called Ann" are two facts. Words such as
    "before" count too: "I eat before I swim" and "I swim before I eat" are two facts, "Before I swim I eat" is none.
    """
    starts = (i for i, word in enumerate(left) if right and word == right[0])
    return len(left) == len(right) and any(left[i:] + left[:i] == right for i in starts)


def _differs(one: Reading, other: Reading) -> bool:
    """Whether two similar sentences differ in a value, a negation, the time or the persons."""
    return one.slots != other.slots or one.markers != other.markers or bool(one.denied ^ other.denied)


def _denial(one: Reading, other: Reading) -> str:
    shared = one.everything & other.everything
    if jaccard(one.everything, other.everything) < CONTRADICTS or bool(one.denied & shared) == bool(
        other.denied & shared
    ):
        return ""
    denying, said = (one, other) if one.denied & shared else (other, one)
    denied = {word for word in shared & denying.denied if not is_vague(word)}
    if not denied or said.past:
        return ""  # A past event does not contradict a present denial.
    if not denying.everything - denying.content <= said.everything:
        return ""  # The denial is narrower ("not on Fridays") than the statement.
    return f"one denies what the other says: {_listed(denied)}"


def _changed_value(one: Reading, other: Reading) -> str:
    kinds = [kind for kind in one.slots if kind in other.slots]
    if len(kinds) != 1 or one.slots[kinds[0]] & other.slots[kinds[0]]:
        return ""
    kind = kinds[0]
    moved = kind in one.target or kind in other.target
    if kind == "number" and not moved and one.numbers > 1 and other.numbers > 1:
        return ""  # "Thing 1 is on shelf 1" and "thing 2 is on shelf 2": the first number says which thing it is.
    if not moved and not one.updated and not other.updated and (one.past or other.past):
        return ""  # These are two events, not one thing that changed.
    shared, smaller = one.content & other.content, min(len(one.content), len(other.content))
    # "The standup moved to 10:30" is short, so it shares few of all words with a longer fact about the standup. When
    # something was moved, only the words of the shorter fact count.
    alike = len(shared) / smaller if moved and smaller else jaccard(one.content, other.content)
    if alike < SAME_MATTER:
        return ""
    values = " and ".join("/".join(sorted(reading.slots[kind])) for reading in (one, other))
    return f"the {kind} of the same matter differs: {values}"


def _replacement(change: Reading, other: Reading) -> str:
    gone = change.replaced
    if not gone or not gone <= other.everything - other.denied or change.everything <= other.everything:
        return ""
    if not change.content & (other.content - gone) and not (change.switched and other.habit):
        return ""  # The facts have only the replaced word in common, so they are about different matters.
    return f"one replaces what the other says: {_listed(gone)}"


def _listed(words: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(words)[:6])
