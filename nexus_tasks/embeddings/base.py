"""The interface of an embedder, which turns texts into vectors of length 1 (unit vectors).

``choose.py`` picks the embedder that the settings name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # numpy takes 0.07 s to import, and most commands embed nothing
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]
else:
    Vectors = Any


class Embedder(Protocol):
    """An embedder turns texts into vectors. Only vectors of embedders with the same ``name`` are compared."""

    name: str

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), dimensions]``, in the order of ``texts``. No texts give an empty array.

        Raises:
            JobError: the embedder's server did not answer or refused the request, or the model cannot be loaded.
            ConfigurationError: the embedder's library is not installed.
        """
        ...
