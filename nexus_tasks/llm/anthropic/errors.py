"""Turn the SDK's errors into job errors. A job error's type decides what happens to the job.

The section "What an error means" of ``docs/jobs.md`` lists the types. This module maps Claude's HTTP status and error
codes to these types. The texts of the job errors contain no secret, and
nothing of what the server says except its status, error type and request id: its words may quote a prompt. They are in
``quoted``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nexus_tasks.errors import JobError, Misconfigured, OverBudget, Permanent, Refused, Throttled, TooLarge, Transient
from nexus_tasks.llm.server_errors import PAGE_REMEDY, as_type, redact, retry_after, too_late

if TYPE_CHECKING:
    import anthropic

# Matches Claude's text for a prompt that is longer than the model's context. The status is 400 in this case. The status
# 413 means that the request has too many bytes.
_TOO_LONG = re.compile(r"prompt is too long|exceeds? (?:the )?context (?:limit|window)", re.IGNORECASE)
_MODEL = re.compile(r"model: [A-Za-z0-9._:/@-]{1,100}")  # the whole text of the status 404
# When a spend limit is reached, Claude answers 429 with one of these codes. A short wait does not help in this case.
_SPENT = frozenset({"enforced_spend_limit_reached", "contract_spend_limit_reached"})
# When Claude answers 400 with one of these codes, the fault is in the account, not in the request.
_ACCOUNT = frozenset({"organization_on_hold", "cmek_key_disabled", "cmek_key_network_blocked"})


def job_error(error: anthropic.AnthropicError) -> JobError:
    """The job error for ``error``. Raise it ``from None``, because the text of the SDK's error may contain secrets."""
    import anthropic
    from anthropic.lib.credentials import WorkloadIdentityError

    if isinstance(error, anthropic.APIStatusError):
        return _status_error(error)
    if isinstance(error, anthropic.APITimeoutError):
        return too_late(error, "The Claude API did not answer in time.")
    if isinstance(error, anthropic.APIConnectionError):
        return _connection_error(error)
    if isinstance(error, WorkloadIdentityError):
        return _exchange_error(error)
    if isinstance(error, anthropic.APIError):
        return Transient(f"The Claude API answered with something unexpected ({type(error).__name__}).")
    return Misconfigured(f"The credentials for Claude cannot be used: {redact(str(error))}")


def _status_error(error: anthropic.APIStatusError) -> JobError:
    reason = str(error.api_message or "")
    page = error.body.get("message") if isinstance(error.body, dict) else error.body  # of a gateway
    return _without_words(error, reason).quoting(redact(reason or (page if isinstance(page, str) else "")))


def _without_words(error: anthropic.APIStatusError, reason: str) -> JobError:
    status, code = error.status_code, error.error_code
    named = _MODEL.fullmatch(reason)
    said = f"{status} {named[0] if named else as_type(error.type)}".strip()
    told = error.body.get("request_id") if isinstance(error.body, dict) else None  # a gateway may drop the header
    if request := as_type(error.request_id or told):
        said += f" (request {request})"
    if status == 402 or code in _SPENT or error.type == "billing_error":
        return OverBudget(
            f"The Claude account has no credit or reached its limit: {said}.",
            remedy="Check credit and spend limits in the Claude Console. The jobs wait, and look again every hour.",
        )
    if status == 429:
        return Throttled(f"Claude asked to be called later: {said}.", retry_after=retry_after(error.response.headers))
    if status == 403 and _is_gateways(error.body):
        return Refused(f"A firewall or gateway before the Claude API refused this request: {said}.", remedy=PAGE_REMEDY)
    if status in (401, 403) or code in _ACCOUNT:
        return Misconfigured(f"Claude refused the credentials or the account: {said}.")
    if status == 404:
        return Misconfigured(f"Claude does not know the model, or the address is wrong: {said}.")
    if status == 413 or (status == 400 and _TOO_LONG.search(reason)):
        return TooLarge(f"The request is larger than the model takes: {said}.")
    if status in (408, 409, 499) or status >= 500:
        return Transient(f"The Claude API failed temporarily: {said}.")
    return Permanent(f"Claude rejected the request: {said}.")


def _is_gateways(body: object) -> bool:
    """Whether a 403 is the page or the JSON of a firewall or gateway. Claude's own JSON has ``error``."""
    return "error" not in body if isinstance(body, dict) else isinstance(body, str) and bool(body.strip())


def _connection_error(error: anthropic.APIConnectionError) -> JobError:
    """The job error for a failed connection: ``Misconfigured`` for a malformed address or key, else ``Transient``.

    The job error shows the class of the cause, but not its text. When the key ends in a line break, the text contains
    the key.
    """
    import httpx2  # the SDK's own HTTP library

    cause = error.__cause__
    if isinstance(cause, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        return Misconfigured(
            f"The address of the Claude API or the key is malformed ({type(cause).__name__}).",
            remedy="Check NEXUS_ANTHROPIC_BASE_URL, ANTHROPIC_BASE_URL and the key for stray characters, "
            "then run `nexus jobs resume`.",
        )
    return Transient(f"The connection to the Claude API failed ({type(cause or error).__name__}).")


def _exchange_error(error: Exception) -> JobError:
    """The job error for a failed token exchange (profile or federation).

    The error is ``Transient`` for the status 429, for a status of 500 or more, and for a missing connection. Any other
    error is ``Misconfigured``.
    """
    status = getattr(error, "status_code", None)
    said = redact(str(error))
    if status == 429 or (status or 0) >= 500 or "Failed to reach token endpoint" in said:
        return Transient(f"The token exchange for Claude failed: {said}")
    return Misconfigured(f"The token exchange for Claude was refused: {said}")
