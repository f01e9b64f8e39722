"""Which embedder a process uses."""

from __future__ import annotations

from functools import lru_cache

from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.embeddings.hashing import HashingEmbedder
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings

_EMBEDDERS = {"hashing": HashingEmbedder}


def embedder(settings: Settings) -> Embedder:
    """The embedder that ``settings.embedder`` names, one per name and process.

    Raises:
        ConfigurationError: there is none of that name.
    """
    return _embedder(settings.embedder)


@lru_cache(maxsize=8)
def _embedder(name: str) -> Embedder:
    if name not in _EMBEDDERS:
        known = ", ".join(sorted(_EMBEDDERS))
        raise ConfigurationError(
            f"There is no embedder named {name!r}; there is: {known}.", remedy=f"Set NEXUS_EMBEDDER to one of: {known}."
        )
    return _EMBEDDERS[name]()
