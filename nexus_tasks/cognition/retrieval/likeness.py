"""How much sessions are like the sessions that answer a question best.

People come back to a matter in several sessions. A session that answers a question says which matter it is about, and
another session of the same matter may answer too, although it has few of the question's words.

    likeness of a session = Σ over the best sessions: share · cosine(its digest, the best session's digest)

- The best sessions are the :data:`BEST` with the greatest scores. Their shares add up to 1, and a session whose score
  is 1 lower has a share 1/e as large.
- Before the cosines, the mean of all compared digests is subtracted from each. What all sessions of a namespace have in
  common says nothing.
- A session is always like itself. So that this does not decide, it counts as the session that is most like it.
- A session without a digest has the likeness 0, which is about the mean.

No vector is made for this: a search compares the vectors of digests anyway, so each stored digest has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nexus_tasks.embeddings.base import Vectors

# A function of sessions' ids. It returns the vectors of the digests of those that have one.
DigestVectors: TypeAlias = Callable[[Sequence[int]], Mapping[int, Vectors]]

BEST = 8
# So many sessions are compared. A search finds up to 200, and the other ones are far behind.
MOST_COMPARED = 30


def likeness(scores: Mapping[int, float], digest_vectors: DigestVectors) -> dict[int, float]:
    """The likeness of sessions to the best of them: id of a session → −1 to 1. Sessions without a digest are left out.

    Args:
        scores: how well each session answers the question, by the session's id. One unit is a standard deviation.
    """
    best_first = sorted(scores, key=lambda session: (-scores[session], session))[:MOST_COMPARED]
    vectors = digest_vectors(best_first)
    compared = [session for session in best_first if session in vectors]
    if len(compared) < 3:
        return {}  # two digests are always opposite to each other, seen from their mean
    digests = np.array([vectors[session] for session in compared], np.float64)
    digests -= digests.mean(axis=0)
    digests /= np.maximum(np.linalg.norm(digests, axis=1, keepdims=True), 1e-9)
    best = np.array([scores[session] for session in compared[:BEST]])
    shares = np.exp(best - best.max())
    cosines = digests @ digests[:BEST].T
    _leave_out_itself(cosines)
    found = cosines @ (shares / shares.sum())
    return dict(zip(compared, found.tolist(), strict=True))


def _leave_out_itself(cosines: npt.NDArray[np.float64]) -> None:
    """Put the greatest cosine of another session in place of a session's cosine to itself."""
    np.fill_diagonal(cosines, -np.inf)
    np.fill_diagonal(cosines, cosines.max(axis=0))
