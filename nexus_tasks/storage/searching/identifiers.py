"""Finding the memories that contain a whole identifier of the question: a path, a name in code, a ticket.

The index contains the parts of an identifier as words: ``session_pool`` gives ``session`` and ``pool``. A message about
a session and a pool has both words too. This module tells which memories contain the parts side by side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction

MOST, SHORTEST, LONGEST = 8, 4, 200  # identifiers of a question; characters of an identifier without its signs
# What more memories than this have is a common word, such as "WhatsApp", and no identifier. Chosen by hand.
MOST_HAVING = 10
READ = 20_000  # characters of a memory in which the identifiers are looked for

_SIGNS = "_./\\:#=-"  # "session_pool", "session-pool" and "sessionPool" are one identifier
_TOKEN = re.compile(r"[^\s,;()<>\"'`]+")
_INSIDE = re.compile(r"[^\W_][_./\\:#=-]+[^\W_]|[a-z0-9][A-Z]")
# Compounds of everyday prose: "follow-up", "day-by-day", "and/or", "20-minute". In a question of at most three words
# such a compound is an identifier nevertheless, because "session-pool" looks like one.
_PROSE = re.compile(r"(?:[A-Z]?[a-z]+|\d+)(?:[-/][A-Z]?[a-z]+)+")
FEW_WORDS = 3
_WITHOUT_SIGNS = str.maketrans("", "", _SIGNS)
_HAVING = text(
    "SELECT id FROM memories AS m WHERE id = ANY (CAST(:ids AS bigint[])) AND EXISTS ("
    " SELECT FROM unnest(CAST(:identifiers AS text[])) AS one"
    f" WHERE strpos(translate(lower(left(m.content, {READ})), :signs, ''), one) > 0)"
)


def identifiers_of(question: str) -> list[str]:
    """The identifiers of a question, in lower case and without their signs. At most eight are found.

    An identifier is a word with a sign or a capital inside: ``src/db/session_pool.py``, ``PROJ-4821``, ``cancelOrder``.
    It has a letter, so a date or a time of day is none. In a question of more than three words, compounds of prose such
    as ``follow-up`` are none either.
    """
    tokens = [token.strip("?!*.:") for token in _TOKEN.findall(question)]
    few = len(tokens) <= FEW_WORDS
    joined = (
        token.translate(_WITHOUT_SIGNS).lower()
        for token in tokens
        if _INSIDE.search(token) and any(map(str.isalpha, token)) and (few or not _PROSE.fullmatch(token))
    )
    return list(dict.fromkeys(one for one in joined if SHORTEST <= len(one) <= LONGEST))[:MOST]


def having(tx: Transaction, memory_ids: Sequence[int], identifiers: Sequence[str]) -> frozenset[int]:
    """The memories among ``memory_ids`` that have one of these identifiers in their first 20,000 characters.

    When more than ten have one, the result is empty.
    """
    if not identifiers:
        return frozenset()
    found = tx.scalars(_HAVING, {"ids": list(memory_ids), "identifiers": list(identifiers), "signs": _SIGNS}).all()
    return frozenset(found if len(found) <= MOST_HAVING else ())
