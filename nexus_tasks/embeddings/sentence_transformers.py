"""The embedder for a model on this machine, through the library `sentence-transformers`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.embeddings.unit import unit
from nexus_tasks.errors import ConfigurationError, Misconfigured

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
AT_ONCE = 32  # texts per step of the model: the library's default


class SentenceTransformerEmbedder:
    """An embedder that runs a model in this process. The model is loaded once per process, at the first call.

    Args:
        model: the model's name on the Hugging Face hub, or the full path of a folder with the model.
    """

    def __init__(self, model: str = DEFAULT_MODEL) -> None:
        self.name = f"sentence-transformers/{model.rstrip('/').rpartition('/')[2]}"
        self._source = model
        self._lock = threading.Lock()  # Two threads must not use the model at the same time.

    @cached_property
    def _model(self) -> Any:
        # The library would take a folder of this name for the model. The current folder may be an untrusted project's.
        if not Path(self._source).is_absolute() and Path(self._source).exists():
            raise Misconfigured(
                f"The current folder has a folder {self._source!r}, which is not used as the embedding model.",
                remedy="Set NEXUS_EMBEDDER_MODEL to the full path of that folder, or start in another folder.",
            )
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ConfigurationError(
                "The embedder sentence-transformers is not installed.",
                remedy="Install it with `pip install 'nexus-tasks[sentence-transformers]'`.",
            ) from None
        try:
            return SentenceTransformer(self._source, device="cpu")
        except (OSError, ValueError) as error:
            raise Misconfigured(
                f"The embedding model {self._source!r} cannot be loaded ({type(error).__name__}).",
                remedy="Set NEXUS_EMBEDDER_MODEL to the name of a model or to the folder of a model.",
            ) from error

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), dimensions]``, in the order of ``texts``.

        The model reads only the beginning of a text that is longer than the model's input.

        Raises:
            ConfigurationError: the library is not installed.
            Misconfigured: the model cannot be loaded.
        """
        if not texts:
            return np.zeros((0, 0), np.float32)
        with self._lock:
            rows = self._model.encode(list(texts), batch_size=AT_ONCE, convert_to_numpy=True, show_progress_bar=False)
        return unit(np.array(rows, np.float32))
