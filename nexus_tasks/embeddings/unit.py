"""Scale vectors to length 1, so that they can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nexus_tasks.embeddings.base import Vectors


def unit(rows: NDArray[Any]) -> Vectors:
    """``rows`` scaled to length 1, ``float32[n, dimensions]``.

    A row of zeros becomes the first unit vector (1, 0, 0, …). This function also makes that change in ``rows``. A zero
    vector must not be stored, because it has the cosine distance NaN. Postgres sorts NaN last. An HNSW index leaves a
    zero vector out.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows[norms[:, 0] == 0, 0] = 1.0
    return (rows / np.where(norms == 0, 1.0, norms)).astype(np.float32)
