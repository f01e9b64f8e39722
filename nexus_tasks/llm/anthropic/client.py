"""Build the Claude client of a process at its first call, and check whether Anthropic's SDK finds credentials."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from nexus_tasks.errors import Misconfigured
from nexus_tasks.llm.anthropic.errors import job_error

if TYPE_CHECKING:  # importing the SDK costs more than a second
    import anthropic

    from nexus_tasks.settings import Settings

ResultT = TypeVar("ResultT")

_LONGEST_CONNECT = 10.0  # the most seconds for opening a connection (chosen by hand, not measured)


class ClientHolder:
    """Builds and keeps the process's client for one ``settings`` object.

    Threads may share the holder. After a fork, the child process builds a client of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._inherited: list[anthropic.Anthropic] = []
        self._start_afresh()
        _holders.add(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._client: anthropic.Anthropic | None = None

    def after_fork(self) -> None:
        """Replace the client and the lock in a forked child, because a thread of the parent may have held the lock."""
        if self._client is not None:
            # This reference keeps the parent's client from garbage collection, which would take the lock of the
            # client's connection pool. A thread of the parent may have held that lock at the fork, so the child would
            # wait for ever.
            self._inherited.append(self._client)
        self._start_afresh()

    def get(self) -> anthropic.Anthropic:
        """The client, built at the first call.

        Raises:
            Misconfigured: the SDK finds no credentials, or cannot use the credentials.
        """
        client = self._client
        if client is not None:
            return client
        with self._lock:
            if self._client is None:
                self._client = _with_credentials(_build(self._settings))
            return self._client

    def call(self, ask: Callable[[anthropic.Anthropic], ResultT]) -> ResultT:
        """Call ``ask`` with the client. Errors of the SDK become job errors.

        Raises:
            JobError: see :func:`~nexus_tasks.llm.anthropic.errors.job_error`.
        """
        client = self.get()
        import anthropic

        try:
            return ask(client)
        except anthropic.AnthropicError as error:
            if isinstance(error, anthropic.AuthenticationError):
                self.forget(client)
            raise job_error(error) from None

    def forget(self, client: anthropic.Anthropic) -> None:
        """Drop ``client`` after the API refused its credentials (401), so that the next call reads them again.

        The SDK drops a refused token only when the SDK retries, and the SDK's retries are off. ``client`` is not
        closed, because other threads may be using ``client``.
        """
        with self._lock:
            if self._client is client:
                self._client = None


_holders: WeakSet[ClientHolder] = WeakSet()


def _after_fork() -> None:
    for holder in list(_holders):
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _build(settings: Settings) -> anthropic.Anthropic:
    import anthropic
    import httpx2  # the SDK's own HTTP library

    seconds = settings.model_timeout
    try:
        return anthropic.Anthropic(
            # With None, the SDK uses ANTHROPIC_BASE_URL. If that variable is not set, the SDK uses the profile's URL.
            base_url=settings.anthropic_base_url or None,
            max_retries=0,  # the job's retry policy decides about retries
            # The timeout must not be the SDK's default, because with the default the SDK limits max_tokens.
            timeout=anthropic.Timeout(seconds, connect=min(seconds, _LONGEST_CONNECT)),
        )
    except anthropic.AnthropicError as error:
        raise job_error(error) from None
    except httpx2.InvalidURL as error:
        raise Misconfigured(
            f"The address of the Claude API is malformed: {error}.",
            remedy="Correct NEXUS_ANTHROPIC_BASE_URL or ANTHROPIC_BASE_URL.",
        ) from None


def _with_credentials(client: anthropic.Anthropic) -> anthropic.Anthropic:
    # Without this check, the first call would raise a TypeError of the SDK in place of a job error.
    if not _has_credentials(client):
        raise Misconfigured(
            "No credentials for Claude were found.",
            remedy="Set ANTHROPIC_API_KEY (or another source the Anthropic SDK knows), then run `nexus jobs resume`; "
            "or set NEXUS_MODEL=offline.",
        )
    return client


def _has_credentials(client: anthropic.Anthropic) -> bool:
    if client.credentials is not None:  # With a profile or federation, the SDK fetches a token at the first call.
        return True
    # The headers come from a key, a token, or ANTHROPIC_CUSTOM_HEADERS.
    return any(name.lower() in ("authorization", "x-api-key") for name in client.default_headers)


def credentials_found() -> bool:
    """Whether the SDK finds credentials: a key or token in the environment, a profile, or federation.

    This function makes no network call. Only ``AnthropicModel.probe`` can tell whether the credentials are valid.

    Raises:
        Misconfigured: a profile is selected explicitly, and the SDK cannot read the profile.
    """
    if os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN"):
        return True
    if _nothing_configured():
        return False
    import anthropic

    try:
        client = anthropic.Anthropic()
    except anthropic.AnthropicError as error:
        raise job_error(error) from None
    with client:
        return _has_credentials(client)


def _nothing_configured() -> bool:
    """Whether no variable of the SDK is set and the SDK's folder does not exist.

    On a machine without credentials, this check avoids the import of the SDK, which takes 1 s. The docstring of
    ``anthropic.Anthropic`` lists the variables and the folder. On Windows the result is always ``False``, because the
    SDK uses a different folder there.
    """
    if os.name != "posix" or any(name.startswith("ANTHROPIC_") and value for name, value in os.environ.items()):
        return False
    return not (Path.home() / ".config" / "anthropic").exists()
