"""Scale vectors to length 1, so that their dot product is their cosine similarity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nexus_tasks.embeddings.base import Vectors


def unit(rows: NDArray[Any]) -> Vectors:
    """``rows`` scaled to length 1, ``float32[n, dimensions]``.

    A row of zeros becomes the first unit vector (1, 0, 0, …), also in the array ``rows`` itself. A vector of zeros must
    not be stored, because searches would not find it: its cosine distance is NaN, which Postgres sorts last, and an
    HNSW index leaves the vector out.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows[norms[:, 0] == 0, 0] = 1.0
    return (rows / np.where(norms == 0, 1.0, norms)).astype(np.float32)
