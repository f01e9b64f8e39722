"""Choose the embedder by the setting ``NEXUS_EMBEDDER``."""

from __future__ import annotations

from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings

KNOWN = ("hashing", "minilm", "openai-compatible", "sentence-transformers")


def embedder(settings: Settings, *, patience: float | None = None) -> Embedder:
    """The embedder that ``settings.embedder`` names. This function loads no model and calls no server.

    Args:
        settings: the settings.
        patience: the longest wait for an embedder's server, seconds. Default: that of the embedder.

    Raises:
        ConfigurationError: no embedder has this name, or a setting that the embedder needs is missing.
    """
    name, model, url = settings.embedder, settings.embedder_model, settings.embedder_url
    if name == "hashing":
        from nexus_tasks.embeddings.hashing import HashingEmbedder

        return HashingEmbedder()
    if name == "minilm":
        from nexus_tasks.embeddings.minilm import MiniLMEmbedder

        return MiniLMEmbedder(model)
    if name == "sentence-transformers":
        from nexus_tasks.embeddings.sentence_transformers import DEFAULT_MODEL, SentenceTransformerEmbedder

        return SentenceTransformerEmbedder(model or DEFAULT_MODEL)
    if name == "openai-compatible":
        if not (model and url):
            raise ConfigurationError(
                "The openai-compatible embedder needs an address and a model.",
                remedy="Set NEXUS_EMBEDDER_URL (such as http://localhost:11434/v1) and NEXUS_EMBEDDER_MODEL.",
            )
        from nexus_tasks.embeddings.openai_compatible import TIMEOUT, OpenAICompatibleEmbedder

        key = settings.embedder_key.get_secret_value() if settings.embedder_key else ""
        return OpenAICompatibleEmbedder(url, model, key, timeout=patience or TIMEOUT)
    known = ", ".join(KNOWN)
    raise ConfigurationError(
        f"There is no embedder named {name!r}; there is: {known}.", remedy=f"Set NEXUS_EMBEDDER to one of: {known}."
    )
