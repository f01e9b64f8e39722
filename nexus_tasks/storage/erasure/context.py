"""Finding the facts and insights that may have words of an erased message which they do not cite.

A derivation shows the model other messages of the session beside those that a fact cites, so that the fact has names in
place of "he" and "there". ``cascade.py`` deletes such a fact with the message. Its own messages are derived again. A
reflection shows the model other facts beside those that an insight rests on. ``cascade.py`` deletes such an insight.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import TypeVar

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import aliased

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among, not_among, parts
from nexus_tasks.storage.models import Evidence, Memory
from nexus_tasks.storage.shown import REACH, SHOWN
from nexus_tasks.text import word_forms

# Messages that are at most this far away were nearly always shown together. Chosen by hand, not measured.
NEAR = 100
# Characters of a session's messages farther away that are read for words which they have too.
_MOST_OF_OTHERS = 10_000_000
_AT_ONCE = 10  # texts that are fetched at a time
# Postgres ends a transaction that is idle for 8 s. The words of a long text in Russian, for example, take 0.2 s on a
# free processor, and much longer when other threads need it. So a statement is sent at least this often, in seconds.
_AWAKE_EVERY = 1.0
_ALIVE = text("SELECT 1")
_FACTS_AT_ONCE = 200
_IDS_AT_ONCE = 200  # of a statement
RowT = TypeVar("RowT")


def facts_with_words_of(tx: Transaction, erased: Mapping[int, Memory]) -> dict[int, set[str]]:
    """The facts that have content words which, near them, only erased messages have: id → these words.

    The words are those of the fact's text and labels. A word does not count when a source of the fact has it, or
    another message of the session that is not erased and not far away, or the name of the fact's subject.
    (``cascade.py`` looks at the words of erased sources.)

    How often a text is read does not depend on how many of the erased messages are near it.

    Args:
        erased: the memories that a caller erases, by id. The caller has locked them.
    """
    found: dict[int, set[str]] = defaultdict(set)
    for _, session in groupby(_clusters(erased.values()), key=lambda said: said[0].session_id):
        clusters = list(session)
        told, near = _sharing(tx, clusters, erased)
        wanted = defaultdict[int, set[str]](set)
        for (fact, _), words in told.items():
            wanted[fact] |= words
        known = _words_of_sources(tx, wanted)
        far = [set[str]() for _ in clusters]
        for (fact, number), words in told.items():
            words.difference_update(known[fact])
            if (fact, number) not in near:
                far[number] |= words
        only = _only_erased(tx, clusters, erased, far)
        for (fact, number), words in told.items():
            if unknown := words if (fact, number) in near else words & only[number]:
                found[fact] |= unknown
    return dict(found)


def _sharing(
    tx: Transaction, clusters: Sequence[Sequence[Memory]], erased: Collection[int]
) -> tuple[dict[tuple[int, int], set[str]], set[tuple[int, int]]]:
    """The facts that share words with the erased messages of a cluster which no message near these has.

    Returns:
        (fact id, number of the cluster) → the words, and those of the pairs in which a source of the fact is near.
    """
    told, near = dict[tuple[int, int], set[str]](), set[tuple[int, int]]()
    gone = dict[int, set[str]]()
    for fact, seqs, own in _facts_near(tx, clusters, erased):
        close = {number for seq in seqs for number in _around(clusters, seq, NEAR)}
        for number in {number for seq in seqs for number in _around(clusters, seq, REACH)}:
            if number not in gone:
                said = clusters[number]
                others = _are_near(Memory, [said], NEAR) & not_among(Memory.id, erased)
                gone[number] = words_of(tx, said) - _words(_texts_where(tx, others))
            if shared := own & gone[number]:
                told[fact, number] = shared
                if number in close:
                    near.add((fact, number))
    return told, near


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
        with tx.execute(insights.execution_options(yield_per=_FACTS_AT_ONCE)) as rows:
            for insight, content, subject in awake(tx, rows):
                if words is None:
                    words = words_of(tx, [one for one in gone.values() if one.level in ("raw", "explicit")])
                told[insight] = words & word_forms(content) - word_forms(subject or "")
        unknown = set[str]().union(*told.values())
        facts = select(Memory.content).where(*mine, Memory.level == "explicit").order_by(Memory.id.desc())
        if unknown:  # the reading ends with the fact that has the last of the words
            with tx.execute(facts.execution_options(yield_per=_FACTS_AT_ONCE)) as told_by:
                for (content,) in awake(tx, told_by):
                    unknown.difference_update(word_forms(content))
                    if not unknown:
                        break
        found += [insight for insight, own in told.items() if own & unknown]
    query = select(Memory).where(among(Memory.id, found)).order_by(Memory.id)
    return list(tx.scalars(query.with_for_update())) if found else []


def _clusters(erased: Iterable[Memory]) -> Iterator[Sequence[Memory]]:
    """The erased messages of each session in order, divided where more than ``NEAR`` messages lie in between."""
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
    for part in parts([one.id for one in memories], _IDS_AT_ONCE):
        yield from _texts_where(tx, among(Memory.id, part))


def _texts_where(tx: Transaction, which: ColumnElement[bool]) -> Iterator[tuple[str | None, str]]:
    """The authors and texts of memories, cut. Few are held at a time: a session may have gigabytes."""
    query = select(Memory.author, SHOWN).where(which)
    with tx.execute(query.execution_options(yield_per=_AT_ONCE)) as rows:
        yield from ((author, content) for author, content in awake(tx, rows))


def awake(tx: Transaction, rows: Iterable[RowT]) -> Iterator[RowT]:
    """The ``rows``. The transaction is not idle for long, although the caller works with each row."""
    last = monotonic()
    for row in rows:
        yield row
        if monotonic() - last >= _AWAKE_EVERY:
            tx.execute(_ALIVE)
            last = monotonic()


def _around(clusters: Sequence[Sequence[Memory]], seq: int, reach: int) -> range:
    """The numbers of the clusters of a session that are at most ``reach`` messages away from a message."""
    first = bisect_left(clusters, seq - reach, key=lambda said: said[-1].seq or 0)
    return range(first, bisect_right(clusters, seq + reach, key=lambda said: said[0].seq or 0))


def _are_near(message: type[Memory], clusters: Sequence[Sequence[Memory]], reach: int) -> ColumnElement[bool]:
    """The SQL condition for messages of the session from ``reach`` before the clusters to ``reach`` after them."""
    first, last = clusters[0][0], clusters[-1][-1]
    return (
        (message.namespace_id == first.namespace_id)
        & (message.session_id == first.session_id)
        & (message.level == "raw")
        & message.seq.between((first.seq or 0) - reach, (last.seq or 0) + reach)
    )


def _facts_near(
    tx: Transaction, clusters: Sequence[Sequence[Memory]], erased: Collection[int]
) -> Iterator[tuple[int, list[int], set[str]]]:
    """The facts that cite a message near an erased one, and a message that is not erased.

    Returns:
        the id, the places of the messages near in their session, and the content words.
    """
    source, kept = aliased(Memory), aliased(Evidence)
    cited = (
        select(Evidence.memory_id, func.array_agg(source.seq).label("seqs"))
        .join(source, source.id == Evidence.source_id)
        .where(Evidence.role == "derived_from", _are_near(source, clusters, REACH))
        .group_by(Evidence.memory_id)
        .subquery()
    )
    query = (
        select(Memory.id, cited.c.seqs, Memory.content, Memory.labels, Memory.author)
        .join(cited, cited.c.memory_id == Memory.id)
        .where(
            Memory.level == "explicit",
            select(kept.memory_id)
            .where(kept.memory_id == Memory.id, kept.role == "derived_from", not_among(kept.source_id, erased))
            .exists(),
        )
    )
    with tx.execute(query.execution_options(yield_per=_FACTS_AT_ONCE)) as rows:
        for fact, seqs, content, labels, subject in awake(tx, rows):
            if any(_around(clusters, seq, REACH) for seq in seqs):
                yield fact, seqs, word_forms(" ".join((content, *labels))) - word_forms(subject or "")


def _only_erased(
    tx: Transaction, clusters: Sequence[Sequence[Memory]], erased: Collection[int], words: Sequence[set[str]]
) -> list[set[str]]:
    """Of the ``words`` of each cluster those that no other message has which was shown together with an erased one.

    The reading ends with the message that has the last of the words, or when much was read. What is left of the words
    then counts, and messages may be derived again for nothing.
    """
    left = [set(one) for one in words]
    asking = [cluster for cluster, one in zip(clusters, left, strict=True) if one]
    if not asking:
        return left
    query = select(Memory.seq, Memory.author, SHOWN).order_by(Memory.seq)
    others, read = query.where(_are_near(Memory, asking, REACH), not_among(Memory.id, erased)), 0
    with tx.execute(others.execution_options(yield_per=_AT_ONCE)) as rows:
        for seq, author, content in awake(tx, rows):
            if numbers := [number for number in _around(clusters, seq or 0, REACH) if left[number]]:
                said = _words([(author, content)])
                for number in numbers:
                    left[number] -= said
                read += len(content)
                if read > _MOST_OF_OTHERS or not any(left):
                    break
    return left


def _words_of_sources(tx: Transaction, wanted: Mapping[int, set[str]]) -> dict[int, set[str]]:
    """Those of the wanted words of each fact that a message has which the fact cites: fact id → words.

    A message is read once, although a hundred facts may cite it, and one is held at a time.
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
    texts = select(Memory.id, Memory.author, Memory.content).execution_options(yield_per=1)
    for part in parts(list(citing), _IDS_AT_ONCE):
        with tx.execute(texts.where(among(Memory.id, part))) as rows:
            for source, author, content in rows:
                said = _words([(author, content)])
                for fact in citing[source]:
                    found[fact] |= wanted[fact] & said
    return found


def _words(said: Iterable[tuple[str | None, str]]) -> set[str]:
    return {word for author, content in said for word in word_forms(f"{author or ''} {content}")}
