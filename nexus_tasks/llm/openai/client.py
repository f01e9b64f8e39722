"""Build the client of OpenAI's SDK at the first call of a process, and check whether there are credentials.

The address comes from ``NEXUS_OPENAI_BASE_URL``, else from the SDK's variables: ``OPENAI_BASE_URL``, or
``AZURE_OPENAI_ENDPOINT``, or else it is OpenAI's own. The keys are the SDK's variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from nexus_tasks.errors import ConfigurationError, Misconfigured, Transient
from nexus_tasks.llm.client_holder import ClientHolder
from nexus_tasks.llm.deadline import event_hooks
from nexus_tasks.llm.openai.errors import REMEDY, job_error
from nexus_tasks.llm.server_errors import redact

if TYPE_CHECKING:  # importing the SDK costs about a second
    import openai

    from nexus_tasks.settings import Settings

ResultT = TypeVar("ResultT")

_LONGEST_CONNECT = 10.0  # the most seconds for opening a connection (chosen by hand, not measured)
_NO_KEY = "none"  # the SDK wants a key, and a local server ignores it


class OpenAIClient:
    """The process's client for one ``settings`` object (see :class:`~nexus_tasks.llm.client_holder.ClientHolder`)."""

    def __init__(self, settings: Settings) -> None:
        self.holder: ClientHolder[openai.OpenAI] = ClientHolder(lambda: _build(settings))

    def call(self, ask: Callable[[openai.OpenAI], ResultT]) -> ResultT:
        """Call ``ask`` with the client. Errors of the SDK become job errors.

        Raises:
            JobError: see :func:`~nexus_tasks.llm.openai.errors.job_error`.
        """
        client = self.holder.get()
        import openai

        try:
            return ask(client)
        except openai.OpenAIError as error:
            if isinstance(error, openai.AuthenticationError):
                self.holder.forget(client)
            raise job_error(error) from None
        except (ValueError, RecursionError) as error:  # the SDK does not translate the errors of reading a reply
            raise Transient(
                "The model server (or a gateway before it) answered with something that is no JSON"
                f" ({type(error).__name__})."
            ) from None


def require_sdk() -> None:
    """Check that OpenAI's SDK is installed, without importing it.

    Raises:
        ConfigurationError: it is not installed.
    """
    if find_spec("openai") is None:
        raise ConfigurationError(
            "The provider `openai` needs OpenAI's SDK, which is not installed.",
            remedy="Install it with `pip install 'nexus-tasks[openai]'`, or choose another provider in NEXUS_MODEL and"
            " NEXUS_MODEL_*.",
        )


def own_address(settings: Settings) -> str | None:
    """The address that a setting or ``OPENAI_BASE_URL`` names, or ``None``."""
    return settings.openai_base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or None


def is_azure(settings: Settings) -> bool:
    """Whether the SDK's client for Azure is used: ``AZURE_OPENAI_ENDPOINT`` is set, and no other address."""
    return own_address(settings) is None and bool(os.environ.get("AZURE_OPENAI_ENDPOINT"))


def credentials_found(settings: Settings) -> bool:
    """Whether a key is set. A server at an address of one's own may need none."""
    if own_address(settings):
        return True
    names = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN") if is_azure(settings) else ("OPENAI_API_KEY",)
    return any(os.environ.get(name) for name in names)


def _build(settings: Settings) -> openai.OpenAI:
    if not credentials_found(settings):
        raise Misconfigured(
            "No API key for the provider `openai` was found.",
            remedy="Set OPENAI_API_KEY (or AZURE_OPENAI_API_KEY with AZURE_OPENAI_ENDPOINT), or set"
            " NEXUS_OPENAI_BASE_URL to a server that needs none; then run `nexus jobs resume`.",
        )
    import httpx2  # the SDK's own HTTP library
    import openai

    seconds = settings.model_timeout
    options: dict[str, Any] = {
        "max_retries": 0,  # the job's retry policy decides about retries
        "timeout": openai.Timeout(seconds, connect=min(seconds, _LONGEST_CONNECT)),
        "http_client": openai.DefaultHttpxClient(event_hooks=event_hooks(seconds)),
    }
    try:
        if is_azure(settings):
            return openai.AzureOpenAI(**options)
        key = os.environ.get("OPENAI_API_KEY") or _NO_KEY
        return openai.OpenAI(base_url=own_address(settings), api_key=key, **options)
    except openai.OpenAIError as error:
        raise job_error(error) from None
    except httpx2.InvalidURL as error:
        raise Misconfigured(
            f"The address of the model server is malformed ({type(error).__name__}).", remedy=REMEDY
        ) from None
    except ValueError as error:  # Azure's version of the API is missing
        raise Misconfigured(f"The client of the model server cannot be made: {redact(str(error))}") from None
