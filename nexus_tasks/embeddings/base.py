"""The interface of an embedder: texts in, unit vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors. ``name`` identifies the model: vectors of different names are never compared."""

    name: str

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), dimensions]``, in the order of ``texts``; an empty array for no texts.

        Raises:
            JobError: an embedder over the network did not answer, or refused.
            ConfigurationError: the embedder's library is not installed.
        """
        ...
