"""Choose the memories of a context that fit a query: facts, and the messages that say more than the shown facts.

A fact and its message say much the same, so showing both costs tokens twice. When one fact tells a whole message, the
fact is shown. A message that says more is shown, and its facts are left out when it has most of their words.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition.context.token_budget import Section
from nexus_tasks.cognition.echo import told_by, without_echo
from nexus_tasks.cognition.retrieval import Ranking, ranking
from nexus_tasks.cognition.retrieval.fusion import Ranked, is_hashed
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import content_words

LEVELS = ("explicit", "raw", "derived", "contradiction")
# One memory must have at least this part of the query's words, where rare words weigh more. In namespaces of 400 to
# 2,000 messages the best memory has at least 0.35 for all of LoCoMo's and RealMem's questions that name no person, and
# less than 0.32 for 48 of 51 nonsense questions.
FLOOR = 0.33
# The cosine similarity from which MiniLM finds a memory near, in a namespace of NEAR_MEMORIES. In one of e times as
# many, NEAR_GROWTH is added, because the best of more memories is nearer by chance. Of 51 nonsense questions, 95 % have
# less than 0.33 to the best text of a LoCoMo conversation (the bound there is 0.35), and 84 to 93 % less than the bound
# of 0.39 in a persona of RealMem, where some are no nonsense. The best message for a question of LoCoMo has at least
# 0.35. Other models are not measured.
NEAR, NEAR_MEMORIES, NEAR_GROWTH = 0.32, 500, 0.03
# The first FREE rows of a session keep their scores. Each later row loses SPREAD (in standard deviations) more than the
# row before it. Contexts of 2,000 tokens have 0.77 of RealMem's sessions, and had 0.73 without this rule. With two free
# rows, contexts of 500 tokens had 0.757 of LoCoMo's evidence instead of 0.762.
SPREAD, FREE = 0.25, 4
SAME = 0.8  # a text that shares this part of its content words with a shown text is not shown too


@dataclass(kw_only=True)
class Fitting:
    """The memories that fit a query, best first."""

    lines: Sequence[ContextRow]  # facts and messages
    contradictions: Sequence[ContextRow]
    reflections: Sequence[ContextRow]
    rows: Mapping[int, ContextRow]  # also the facts that hold instead of what a message says
    sources: Mapping[int, Sequence[int]]  # id of a fact → ids of its messages
    told_by: Mapping[int, Sequence[int]]  # id of a message → ids of its facts that fit the query, best first
    heirs: Mapping[int, int]  # id of a message → id of the fact that holds instead of what it says


def find(
    tx: Transaction,
    embedder: Embedder,
    wanted: Filter,
    query: str,
    *,
    limit: int,
    least: Mapping[str, float],
    longest: int,
) -> Fitting:
    """Search for the memories that fit ``query``.

    Args:
        least: level → the lowest confidence of a shown memory.
        longest: the most bytes of a text that is read. A longer text is not shown, only what tells the same.
    """
    # In a large namespace, half by words and half by vectors. Turns around the messages found, and the messages of
    # facts, come in addition. At 100,000 memories, contexts of 2,000 tokens had as much of the evidence (0.662 and
    # 0.655) in two thirds of the time. Among the 600 turns of a conversation they had less (0.866 and 0.878).
    found = ranking(
        tx, embedder, replace(wanted, levels=LEVELS), query, limit, collapsed=False, pool=math.ceil(limit / 2)
    )
    ranked = _above_floor(found, embedder)
    rows = context_rows.by_id(tx, wanted.namespace_id, [one.id for one in ranked], longest=longest)
    best = [rows[one.id]._replace(score=one.score) for one in ranked if one.id in rows]
    best = [row for row in best if row.pinned or row.confidence >= least.get(row.level, 0)]
    best = spread(_without_echoes(tx, wanted.namespace_id, best), {one.id: one.sessions for one in ranked})
    asked = frozenset(content_words(query))
    touching = [row for row in best if row.level in ("derived", "contradiction") and _touches(asked, row)]
    messages = sorted(row.id for row in best if row.level == "raw")
    heirs = context_rows.replaced_by(tx, wanted, messages)
    facts = [row.id for row in best if row.level == "explicit"]
    sources = context_rows.sources(tx, wanted.namespace_id, [*facts, *heirs.values()])
    told_by = defaultdict[int, list[int]](list)
    for fact in facts:
        for message in sources.get(fact, ()):
            told_by[message].append(fact)
    more = sorted(set(heirs.values()) - rows.keys())
    return Fitting(
        lines=[row for row in best if row.level in ("explicit", "raw")],
        contradictions=[row for row in touching if row.level == "contradiction"],
        reflections=[row for row in touching if row.level == "derived"],
        rows={**rows, **context_rows.by_id(tx, wanted.namespace_id, more, longest=longest)},
        sources=sources,
        told_by=told_by,
        heirs=heirs,
    )


def _above_floor(found: Ranking, embedder: Embedder) -> list[Ranked]:
    """The ranked memories, or none when no memory fits the query.

    A memory fits when the query names its author or subject, when it has enough of the query's words, or when a model
    of meaning finds it near. ("overflow" alone is no answer to "Haskell monad transformer stack overflow".) Hashed
    vectors find near wordings, not meaning. For models that were not measured, every memory is near. In a namespace of
    fewer than 500 memories one word is enough. When one memory fits, the others may be about it, so all stay.
    """
    meant = _near(embedder.name, found.memories)
    near = any(one.named or (one.vector is not None and one.vector >= meant) for one in found.best)
    return found.best if near or found.covered >= FLOOR else []


def _near(model: str, memories: int) -> float:
    """The cosine similarity from which ``model`` finds a memory of a namespace near."""
    if is_hashed(model):
        return math.inf
    if "minilm" not in model.lower():
        return -1.0
    return NEAR + NEAR_GROWTH * math.log(max(memories / NEAR_MEMORIES, 1))


def _without_echoes(tx: Transaction, namespace_id: int, rows: Sequence[ContextRow]) -> list[ContextRow]:
    """``rows``, without the messages that only repeat what memory told, and without the echoes in the others."""
    told = told_by(tx, namespace_id, ((row.role or "user", row.content) for row in rows if row.level == "raw"))
    kept = (
        (row, without_echo(row.content, row.role or "user", told) if row.level == "raw" else row.content)
        for row in rows
    )
    return [row if said == row.content else row._replace(content=said) for row, said in kept if said or row.unread]


def spread(rows: Sequence[ContextRow], sessions: Mapping[int, Sequence[int]]) -> list[ContextRow]:
    """The rows in the order in which they are shown. After the first :data:`FREE` rows of a session, each loses more.

    So a context tells of more sessions, and not ten times of the best one. A fact with sources in several sessions
    counts as a row of the session that has the fewest rows before it.
    """
    told = Counter[int]()
    scores = []
    for row in rows:
        own = sessions.get(row.id, ())
        before = min((told[one] for one in own), default=0)
        scores.append(row.score - SPREAD * max(before + 1 - FREE, 0))
        told.update(own)
    order = sorted(range(len(rows)), key=lambda place: (-scores[place], place))
    return [rows[place] for place in order]


def _touches(asked: frozenset[str], row: ContextRow) -> bool:
    """Whether a conclusion has a word of the query. Its subject's name does not count: all its conclusions have it."""
    return not asked.isdisjoint(set(content_words(row.content)) - set(content_words(row.subject or "")))


def fill(fitting: Fitting, facts: Section, messages: Section) -> None:
    """Fill the two sections with the lines, best first.

    Each section has half of the tokens that are left. After that, each takes what the other one did not need.
    """
    filling = _Filling(fitting, facts, messages)
    half, rest = facts.block.left / 2, list[ContextRow]()
    for row in fitting.lines:
        if not filling.add(row, half):
            rest.append(row)
    for row in rest:
        filling.add(row, facts.block.max_tokens)


class _Filling:
    """Adds facts and messages to their sections, and leaves out what the shown lines tell already."""

    def __init__(self, fitting: Fitting, facts: Section, messages: Section) -> None:
        self.fitting, self.facts, self.messages = fitting, facts, messages
        self.shown: dict[int, frozenset[str]] = {}  # id → content words of a shown line
        self.words: dict[int, frozenset[str]] = {}  # id → content words of a line, because each may be tried twice
        self.shortest = self._shortest()

    def _shortest(self) -> dict[int, float]:
        """The characters of the shortest text that could be shown for each line: its own, its facts' or its heir's."""
        fitting = self.fitting
        own = {i: math.inf if row.unread else len(" ".join(row.content.split())) for i, row in fitting.rows.items()}
        instead = {i: min(own[fact] for fact in facts) for i, facts in fitting.told_by.items() if facts}
        return {
            row.id: min(own[row.id], instead.get(row.id, math.inf), own.get(fitting.heirs.get(row.id, 0), math.inf))
            for row in fitting.lines
        }

    def add(self, row: ContextRow, allowance: float) -> bool:
        """Add a fact or a message. Returns ``False`` when it does not fit into ``allowance``."""
        # First, because most lines come when the block is nearly full, and the words of a message take longer.
        if self.shortest[row.id] >= 4 * max(self.facts.room(allowance), self.messages.room(allowance)):
            return False
        if row.level == "explicit":
            return not self.facts.is_too_long(row, allowance) and self._fact(row, allowance)
        return self._message(row, allowance)

    def _fact(self, row: ContextRow, allowance: float) -> bool:
        words = self._words(row)
        if self._is_told(words, self.fitting.sources.get(row.id, ())):
            return True
        added = self.facts.add(row, allowance)
        if added:
            self.shown[row.id] = words
        return added

    def _message(self, row: ContextRow, allowance: float) -> bool:
        facts, heir = self.fitting.told_by.get(row.id, ()), self.fitting.rows.get(self.fitting.heirs.get(row.id, 0))
        if row.unread and heir is not None and self._fact(heir, allowance):
            return True
        if row.unread or (not facts and heir is None and self.messages.is_too_long(row, allowance)):
            return False
        words = self._words(row)
        if self._is_told(words, facts):
            return True
        if heir is not None:
            # What holds now comes before what held earlier. Without room for both, only what holds now is shown.
            if not self._fact(heir, allowance):
                return False
            told = [heir.id, *self.fitting.sources.get(heir.id, ())]
            row = row._replace(later=f" (later: [m{next((i for i in told if i in self.shown), heir.id)}])")
        elif fact := next((one for one in facts if _covers(self._words(self.fitting.rows[one]), words)), None):
            return self._fact(self.fitting.rows[fact], allowance)  # one fact tells the whole message
        added = self.messages.add(row, allowance)
        if added:
            self.shown[row.id] = words
        return added

    def _words(self, row: ContextRow) -> frozenset[str]:
        if row.id not in self.words:
            self.words[row.id] = frozenset(content_words(f"{row.subject or ''} {row.content}"))
        return self.words[row.id]

    def _is_told(self, words: frozenset[str], near: Sequence[int]) -> bool:
        """Whether the shown lines among ``near`` tell a text with these words."""
        return _covers(frozenset[str]().union(*(self.shown[i] for i in near if i in self.shown)), words)


def _covers(told: frozenset[str], words: frozenset[str]) -> bool:
    return len(words & told) >= SAME * len(words) > 0
