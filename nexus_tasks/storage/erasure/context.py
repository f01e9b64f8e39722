"""Finding the facts and insights that may have words of an erased message which they do not cite.

A derivation shows the model other messages of the session beside those that a fact cites, so that the fact has names in
place of "he" and "there". ``cascade.py`` deletes such a fact with the message. Its own messages are derived again. A
reflection shows the model other facts beside those that an insight rests on. ``cascade.py`` deletes such an insight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import aliased

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among, not_among, parts
from nexus_tasks.storage.models import Evidence, Memory
from nexus_tasks.text import word_forms

# A message was shown together with messages at most this far away: an extraction reads so many at once, and a
# derivation of 2,000 tokens shows no more, however short they are.
REACH = 2_000
# Messages that are at most this far away were nearly always shown together. Chosen by hand, not measured.
NEAR = 100
_MOST_OF_OTHERS = 5_000_000  # characters of messages farther away that are read for words which they have too
_HELD = 10  # whole messages that are held at a time
LONGEST_READ = 10_000  # characters of a message whose words count; about what a prompt shows of a long message
_AT_ONCE = 200  # messages whose texts are read at a time


def facts_with_words_of(tx: Transaction, erased: Mapping[int, Memory]) -> dict[int, set[str]]:
    """The facts that have content words which, near them, only erased messages have: id → these words.

    The words are those of the fact's text and labels. A word does not count when a source of the fact has it, or
    another message of the session that is not erased and not far away, or the name of the fact's subject.
    (``cascade.py`` looks at the words of erased sources.)

    Args:
        erased: the memories that a caller erases, by id. The caller has locked them.
    """
    found: dict[int, set[str]] = {}
    for said in _clusters(erased.values()):
        facts = _facts_near(tx, said, erased, REACH)
        gone = words_of(tx, said) if facts else set[str]()
        told = _sharing(facts, gone)
        if told:
            told = _sharing(told, gone - _words(_others_near(tx, said, erased)))
        known = _words_of_sources(tx, told)
        told = {fact: unknown for fact, words in told.items() if (unknown := words - known[fact])}
        near = _facts_near(tx, said, erased, NEAR) if told else {}
        if far := {fact: words for fact, words in told.items() if fact not in near}:
            only = _only_erased(tx, said, erased, set[str]().union(*far.values()))
            told = {fact: words for fact, words in told.items() if fact in near} | _sharing(far, only)
        for fact, unknown in told.items():
            found.setdefault(fact, set()).update(unknown)
    return found


def _sharing(texts: Mapping[int, set[str]], words: set[str]) -> dict[int, set[str]]:
    """The texts that have some of the words, and which."""
    return {one: shared for one, own in texts.items() if (shared := own & words)}


def insights_with_words_of(tx: Transaction, gone: Mapping[int, Memory]) -> list[Memory]:
    """Find and lock the insights that have a content word which only the memories ``gone`` have.

    A word does not count when a fact that stays has it, of all facts of the insight's perspective, or the name of the
    subject. The caller has locked the perspectives.
    """
    owners = {one.perspective_id for one in gone.values() if one.level == "explicit" and one.perspective_id}
    if not owners:
        return []
    words: set[str] | None = None
    found: list[int] = []
    for owner in sorted(owners):
        mine = Memory.perspective_id == owner, not_among(Memory.id, gone)
        insights = select(Memory.id, Memory.content, Memory.author).where(*mine, Memory.level == "derived")
        told = {}
        for insight, content, subject in tx.execute(insights).all():
            if words is None:
                words = words_of(tx, [one for one in gone.values() if one.level in ("raw", "explicit")])
            told[insight] = words & word_forms(content) - word_forms(subject or "")
        unknown = set[str]().union(*told.values())
        facts = select(Memory.content).where(*mine, Memory.level == "explicit").order_by(Memory.id.desc())
        if unknown:  # the reading ends with the fact that has the last of the words
            with tx.execute(facts.execution_options(yield_per=1_000)) as rows:
                for (content,) in rows:
                    unknown.difference_update(word_forms(content))
                    if not unknown:
                        break
        found += [insight for insight, own in told.items() if own & unknown]
    query = select(Memory).where(among(Memory.id, found)).order_by(Memory.id)
    return list(tx.scalars(query.with_for_update())) if found else []


def _clusters(erased: Iterable[Memory]) -> Iterator[Sequence[Memory]]:
    """The erased messages of each session, divided where more than ``NEAR`` messages lie in between."""
    messages = [one for one in erased if one.level == "raw" and one.session_id is not None and one.seq is not None]
    cluster: list[Memory] = []
    for one in sorted(messages, key=lambda message: (message.session_id or 0, message.seq or 0)):
        if cluster and (one.session_id != cluster[-1].session_id or (one.seq or 0) - (cluster[-1].seq or 0) > NEAR):
            yield cluster
            cluster = []
        cluster.append(one)
    if cluster:
        yield cluster


def words_of(tx: Transaction, memories: Collection[Memory]) -> set[str]:
    """The content words of memories and of their authors' names."""
    return _words(_texts(tx, memories))


def _texts(tx: Transaction, memories: Collection[Memory]) -> Iterator[tuple[str | None, str]]:
    """The authors and texts of memories, cut. Few are held at a time: a session may have gigabytes."""
    query = select(Memory.author, func.left(Memory.content, LONGEST_READ))
    for part in parts([one.id for one in memories], _AT_ONCE):
        yield from tx.execute(query.where(among(Memory.id, part)))


def _are_near(message: type[Memory], said: Sequence[Memory], reach: int) -> ColumnElement[bool]:
    """The SQL condition for messages of the session of ``said`` that are at most ``reach`` messages away."""
    first, last = said[0], said[-1]
    return (
        (message.namespace_id == first.namespace_id)
        & (message.session_id == first.session_id)
        & (message.level == "raw")
        & message.seq.between((first.seq or 0) - reach, (last.seq or 0) + reach)
    )


def _facts_near(tx: Transaction, said: Sequence[Memory], erased: Collection[int], reach: int) -> dict[int, set[str]]:
    """The facts that cite a message near an erased one, and a message that is not erased: id → content words."""
    source, kept = aliased(Memory), aliased(Evidence)
    cites = (
        select(Evidence.memory_id)
        .join(source, source.id == Evidence.source_id)
        .where(Evidence.role == "derived_from", _are_near(source, said, reach))
    )
    query = select(Memory.id, Memory.content, Memory.labels, Memory.author).where(
        Memory.id.in_(cites),
        Memory.level == "explicit",
        select(kept.memory_id)
        .where(kept.memory_id == Memory.id, kept.role == "derived_from", not_among(kept.source_id, erased))
        .exists(),
    )
    found = {}
    for fact, content, labels, subject in tx.execute(query):
        found[fact] = word_forms(" ".join((content, *labels))) - word_forms(subject or "")
    return found


def _others_near(tx: Transaction, said: Sequence[Memory], erased: Collection[int]) -> Iterable[tuple[str | None, str]]:
    query = select(Memory.author, func.left(Memory.content, LONGEST_READ))
    rows = tx.execute(query.where(_are_near(Memory, said, NEAR), not_among(Memory.id, erased)))
    return [(author, content) for author, content in rows]


def _only_erased(tx: Transaction, said: Sequence[Memory], erased: Collection[int], words: set[str]) -> set[str]:
    """Those of ``words`` that no other message has which was shown together with an erased one.

    The reading ends with the message that has the last of the words, or when much was read. What is left of the words
    then counts, and messages may be derived again for nothing.
    """
    query = select(Memory.author, func.left(Memory.content, LONGEST_READ)).order_by(Memory.id)
    others = query.where(_are_near(Memory, said, REACH), not_among(Memory.id, erased))
    left, read = set(words), 0
    with tx.execute(others.execution_options(yield_per=_AT_ONCE)) as rows:
        for author, content in rows:
            left -= _words([(author, content)])
            read += len(content)
            if not left or read > _MOST_OF_OTHERS:
                break
    return left


def _words_of_sources(tx: Transaction, wanted: Mapping[int, set[str]]) -> dict[int, set[str]]:
    """Those of the wanted words of each fact that a message has which the fact cites: fact id → words.

    A message is read once, although a hundred facts may cite it, and few are held at a time.
    """
    found: dict[int, set[str]] = {fact: set() for fact in wanted}
    if not wanted:
        return found
    citing = defaultdict[int, list[int]](list)
    edges = select(Evidence.source_id, Evidence.memory_id).where(
        among(Evidence.memory_id, list(wanted)), Evidence.role == "derived_from"
    )
    for source, fact in tx.execute(edges):
        citing[source].append(fact)
    texts = select(Memory.id, Memory.author, Memory.content)
    for part in parts(list(citing), _HELD):
        for source, author, content in tx.execute(texts.where(among(Memory.id, part))):
            said = _words([(author, content)])
            for fact in citing[source]:
                found[fact] |= wanted[fact] & said
    return found


def _words(said: Iterable[tuple[str | None, str]]) -> set[str]:
    return {word for author, content in said for word in word_forms(f"{author or ''} {content}")}
