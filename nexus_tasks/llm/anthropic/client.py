"""Build the Claude client of a process at its first call, and check whether Anthropic's SDK finds credentials."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nexus_tasks.errors import Misconfigured, Transient
from nexus_tasks.llm.anthropic.errors import job_error
from nexus_tasks.llm.client_holder import ClientHolder
from nexus_tasks.llm.deadline import event_hooks

if TYPE_CHECKING:  # importing the SDK costs more than a second
    import anthropic

    from nexus_tasks.settings import Settings

ResultT = TypeVar("ResultT")

_LONGEST_CONNECT = 10.0  # the most seconds for opening a connection (chosen by hand, not measured)


class ClaudeClient:
    """The process's client for one ``settings`` object (see :class:`~nexus_tasks.llm.client_holder.ClientHolder`)."""

    def __init__(self, settings: Settings) -> None:
        self.holder: ClientHolder[anthropic.Anthropic] = ClientHolder(lambda: _with_credentials(_build(settings)))

    def call(self, ask: Callable[[anthropic.Anthropic], ResultT]) -> ResultT:
        """Call ``ask`` with the client. Errors of the SDK become job errors.

        Raises:
            JobError: see :func:`~nexus_tasks.llm.anthropic.errors.job_error`.
        """
        client = self.holder.get()
        import anthropic

        try:
            return ask(client)
        except anthropic.AnthropicError as error:
            if isinstance(error, anthropic.AuthenticationError):
                # The SDK drops a refused token only when the SDK retries, and the SDK's retries are off.
                self.holder.forget(client)
            raise job_error(error) from None
        except (ValueError, RecursionError) as error:  # the SDK does not translate the errors of reading an answer
            raise Transient(
                "The Claude API (or a gateway before it) answered with something that is no JSON"
                f" ({type(error).__name__})."
            ) from None


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
            http_client=anthropic.DefaultHttpxClient(event_hooks=event_hooks(seconds)),
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
