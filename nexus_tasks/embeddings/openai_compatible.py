"""The embedder for servers with OpenAI's HTTP API ``POST …/embeddings``: OpenAI, Voyage, Ollama, TEI, vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.embeddings.unit import unit
from nexus_tasks.errors import (
    ConfigurationError,
    JobError,
    Misconfigured,
    OverBudget,
    Permanent,
    Throttled,
    Transient,
)

# The most texts of a request. OpenAI accepts 2,048 texts, and Voyage accepts 1,000 texts. TEI accepts 32 to 512 texts,
# depending on a setting of the server.
AT_ONCE = 128
# A longer text is cut to this many characters, which are about 6,000 tokens. Common models accept 8,192 tokens.
LONGEST = 24_000
# These values are in seconds. They are chosen by hand, not measured.
TIMEOUT = 30.0
RETRY_AFTER_DEFAULT, RETRY_AFTER_LONGEST = 5.0, 3_600.0
_PROBE = "probe"  # a text that no firewall objects to
_REMEDY = "Check NEXUS_EMBEDDER_URL, NEXUS_EMBEDDER_KEY and NEXUS_EMBEDDER_MODEL, then run `nexus doctor`."


class OpenAICompatibleEmbedder:
    """An embedder that sends requests to ``url``. Threads may share the object.

    Args:
        url: the server's address, with or without ``/embeddings`` at the end.
        model: the model's name in the requests.
        key: the API key. Without a key, no authorization header is sent.
        timeout: the longest wait for an answer, seconds.
    """

    def __init__(self, url: str, model: str, key: str = "", *, timeout: float = TIMEOUT) -> None:
        self.name = f"openai-compatible/{model}"
        self._url = url.rstrip("/").removesuffix("/embeddings") + "/embeddings"
        self._model, self._key, self._timeout = model, key, timeout

    @cached_property
    def _client(self) -> Any:
        try:
            import httpx2
        except ImportError:
            raise ConfigurationError(
                "The openai-compatible embedder needs an HTTP client.",
                remedy="Install it with `pip install 'nexus-tasks[openai]'`.",
            ) from None
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx2.Client(headers=headers, timeout=self._timeout)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, ``float32[len(texts), dimensions]``, in the order of ``texts``.

        A text of more than 24,000 characters is cut to 24,000 characters.

        Raises:
            ConfigurationError: the HTTP client is not installed.
            Transient: the server does not answer, has an error, or answers with something other than vectors.
            Throttled: the server asks to be called again later.
            Misconfigured: the address is malformed, or the server refuses the key, the address or the model.
            OverBudget: the account has no credit.
            Permanent: the server, or a firewall before it, refuses these texts.
        """
        # Servers refuse an empty text, and many servers refuse white space alone. A "." replaces such a text.
        asked = [text[:LONGEST] if text.strip() else "." for text in texts]
        parts = [self._ask(asked[i : i + AT_ONCE]) for i in range(0, len(asked), AT_ONCE)]
        return unit(np.concatenate(parts)) if parts else np.zeros((0, 0), np.float32)

    def _ask(self, texts: Sequence[str]) -> Vectors:
        client = self._client  # first, because it names the extra when the HTTP client is missing
        import httpx2

        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        try:
            response = client.post(self._url, json=body)
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError) as error:
            raise Misconfigured(
                f"The embedder's address is malformed ({type(error).__name__}).", remedy=_REMEDY
            ) from None
        except httpx2.HTTPError as error:  # Only the error's class is shown, because its text may contain a password.
            raise Transient(f"The embedder does not answer ({type(error).__name__}).") from None
        if response.status_code == 403 and list(texts) != [_PROBE]:
            # A firewall may object to the words of one text. If it refuses every request, this call raises the error.
            self._ask([_PROBE])
            raise Permanent("A firewall or gateway before the embedder refused these texts (403).")
        if response.status_code != 200:
            raise _refusal(response.status_code, response.headers)
        try:
            rows = np.array(list(_in_order(response.json(), len(texts))), np.float32)
            if rows.ndim != 2 or not np.isfinite(rows).all():
                raise ValueError
            return rows
        except (ValueError, TypeError, KeyError):
            raise Transient("The embedder answered with something that is not a list of vectors.") from None


def _in_order(answer: Mapping[str, Any], wanted: int) -> Iterator[Sequence[float]]:
    """The vectors in the order of the texts, by the ``index`` of each, because the answer may have another order."""
    placed = {int(item["index"]): item["embedding"] for item in answer["data"]}
    if sorted(placed) != list(range(wanted)):
        raise ValueError
    return (placed[i] for i in range(wanted))


def _refusal(status: int, headers: Mapping[str, str]) -> JobError:
    # The error does not show the answer's body, because servers repeat the users' texts in the body.
    if status == 429:
        return Throttled("The embedder asked to be called later.", retry_after=_retry_after(headers))
    if status == 402:
        return OverBudget("The embedder's account has no credit.", remedy="Add credit. Jobs add the vectors later.")
    if status in (401, 403, 404):
        return Misconfigured(f"The embedder refused the key, the address or the model ({status}).", remedy=_REMEDY)
    if status in (408, 409, 425) or status >= 500:
        return Transient(f"The embedder failed temporarily ({status}).")
    return Permanent(f"The embedder refused the texts ({status}).")


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after") or RETRY_AFTER_DEFAULT)
    except ValueError:
        seconds = RETRY_AFTER_DEFAULT
    return min(max(seconds, 0.5), RETRY_AFTER_LONGEST)
