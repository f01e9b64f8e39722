"""Turn the errors of OpenAI's SDK into job errors. A job error's type decides what happens to the job.

Servers differ in their texts and codes. This module knows those of OpenAI, Azure, vLLM, Ollama, llama.cpp and LM
Studio. The texts of the job errors contain no secret, and
nothing of what the server says except its status, error type and request id: its words may quote a prompt. They are in
``quoted``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nexus_tasks.errors import (
    JobError,
    Misconfigured,
    OverBudget,
    Permanent,
    Refused,
    Throttled,
    TooLarge,
    Transient,
)
from nexus_tasks.llm.server_errors import PAGE_REMEDY, as_type, redact, retry_after, too_late

if TYPE_CHECKING:
    import openai

REMEDY = (
    "Check NEXUS_OPENAI_BASE_URL, OPENAI_API_KEY, NEXUS_OPENAI_MODEL and NEXUS_MODEL_*, then run `nexus jobs resume`."
)
_TOO_LONG = re.compile(r"context[ _](?:length|window|size|limit)|prompt is too long|too many tokens", re.IGNORECASE)
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FILTERED = frozenset({"content_filter", "content_policy_violation"})


def job_error(error: openai.OpenAIError) -> JobError:
    """The job error for ``error``. Raise it ``from None``, because the text of the SDK's error may contain secrets."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return _status_error(error)
    if isinstance(error, openai.APITimeoutError):
        return too_late(error, "The model server did not answer in time.")
    if isinstance(error, openai.APIConnectionError):
        return _connection_error(error)
    if isinstance(error, openai.APIError):
        return Transient(f"The model server answered with something unexpected ({type(error).__name__}).")
    return Misconfigured(f"The client of the model server cannot be used: {redact(str(error))}", remedy=REMEDY)


def _status_error(error: openai.APIStatusError) -> JobError:
    reason = _reason(error)
    return _without_words(error, reason).quoting(redact(reason))


def _without_words(error: openai.APIStatusError, reason: str) -> JobError:
    status, code = error.status_code, str(error.code or "")
    said = f"{status} {as_type(error.type or error.code)}".strip()
    if error.request_id:
        said += f" (request {as_type(error.request_id)})"
    if status == 402 or code in _SPENT or as_type(error.type) in _SPENT:
        return OverBudget(
            f"The account at the model server has no credit or reached its limit: {said}.",
            remedy="Check the account's credit and limits. The jobs wait, and look again every hour.",
        )
    if status == 429:
        return Throttled(
            f"The model server asked to be called later: {said}.", retry_after=retry_after(error.response.headers)
        )
    if status == 403 and _is_gateways(error.body):
        return Refused(
            f"A firewall or gateway before the model server refused this request: {said}.", remedy=PAGE_REMEDY
        )
    if code in _FILTERED or _is_flagged(error.body):
        return Refused(f"The model server refused the prompt: {said}.")
    if status in (401, 403):
        return Misconfigured(f"The model server refused the credentials: {said}.", remedy=REMEDY)
    if status == 404:
        return Misconfigured(
            f"The model server does not know the model, or the address is wrong: {said}.", remedy=REMEDY
        )
    if status == 413 or (status < 500 and (code == "context_length_exceeded" or _TOO_LONG.search(reason))):
        return TooLarge(f"The request is larger than the model takes: {said}.")
    if status in (408, 409, 425, 499) or status >= 500:
        return Transient(f"The model server failed temporarily: {said}.")
    return Permanent(f"The model server rejected the request: {said}.")


def _is_gateways(body: object) -> bool:
    """Whether a 403 is the page of a firewall, or the JSON of a gateway (Azure API Management, Amazon API Gateway)."""
    if isinstance(body, dict):
        return "statusCode" in body or body == {"message": "Forbidden"}
    return isinstance(body, str) and bool(body.strip())  # the servers themselves answer with JSON


def _is_flagged(body: object) -> bool:
    """Whether OpenRouter says with a 403 that a moderation has flagged the prompt."""
    about = body.get("metadata") if isinstance(body, dict) else None
    return isinstance(about, dict) and "flagged_input" in about


def _reason(error: openai.APIStatusError) -> str:
    """The server's own sentence, when the body has one. The SDK's message would repeat the whole body."""
    body = error.body
    if isinstance(body, dict):
        told = body.get("message") or body.get("detail") or body.get("error")
        return told if isinstance(told, str) else ""
    return body if isinstance(body, str) else ""


def _connection_error(error: openai.APIConnectionError) -> JobError:
    """The job error for a failed connection: ``Misconfigured`` for a malformed address or key, else ``Transient``.

    The job error shows the class of the cause, but not its text, because the text may contain the key.
    """
    import httpx2  # the SDK's own HTTP library

    cause = error.__cause__
    if isinstance(cause, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        return Misconfigured(
            f"The address of the model server or the key is malformed ({type(cause).__name__}).", remedy=REMEDY
        )
    return Transient(f"The connection to the model server failed ({type(cause or error).__name__}).")
