"""What the providers' error modules share: texts without secrets, and the header ``Retry-After``."""

from __future__ import annotations

import email.utils
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from nexus_tasks.errors import AnswerTimeout, JobError, Misconfigured, Refused, Transient

# Seconds to wait after the status 429 (too many requests). Chosen by hand, not measured.
RETRY_AFTER_DEFAULT = 5.0  # when no header is readable
RETRY_AFTER_BOUNDS = (0.5, 3600.0)  # the least and the greatest wait that a header can set

_LONGEST_DETAIL = 300  # the most characters of the server's text in an error
_LONGEST_READ = 4_000  # the most characters of that text that are searched for secrets; the rest is left out
_SECRET_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN",
    "OPENAI_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "AZURE_OPENAI_AD_TOKEN",
)
_SECRETS = re.compile(
    r"sk-ant-[\w-]+"  # API keys and OAuth tokens of Anthropic
    r"|\bsk-[\w-]{12,}"  # API keys of OpenAI
    r"|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"  # JSON web tokens
    r"|(?<=//)[^/@\s]+(?=@)"  # user:password of a URL
    r"|(?i:(?<=bearer )\S+)"
)

_WORD = re.compile(r"[A-Za-z0-9._:-]{1,100}")

# What helps after the page of a firewall that refuses one request.
PAGE_REMEDY = (
    "Let the firewall or gateway pass the request. Then run the dead letter again with `nexus jobs retry JOB`, or all"
    " such letters with `nexus jobs retry --error Refused`. After a command or a call, try again."
)


def too_late(error: Exception, said: str) -> Transient:
    """The job error for the SDK's timeout ``error``: only a server that has the request may charge for an answer."""
    import httpx2

    unsent = (httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.WriteTimeout)
    return Transient(said) if isinstance(error.__cause__, unsent) else AnswerTimeout(said)


@contextmanager
def telling_pages_apart(probe: Callable[[], object]) -> Iterator[None]:
    """Ask whether a firewall whose page has ended the block's call refuses this call alone, or every call.

    A firewall may object to one message's words. Such a page must not pause the kind of the job for every namespace.

    Args:
        probe: a call of the same server that has no words of a message.

    Raises:
        Misconfigured: the firewall refuses the probe too.
        Transient: the probe got no answer.
    """
    try:
        yield
    except Refused as page:
        if page.remedy == PAGE_REMEDY:
            try:
                probe()
            except Refused:
                raise Misconfigured(
                    "A firewall or gateway before the model server refuses every request.",
                    remedy="Let it pass requests to the model server, then run `nexus jobs resume`.",
                ).quoting(page.quoted) from None
            except Transient:
                raise
            except JobError:  # the server itself has answered
                pass
        raise


def redact(text: str) -> str:
    """``text`` on one line of at most 300 characters, with ``***`` in place of secrets.

    These texts are secrets: the values of the SDKs' key and token variables, and any text that looks like a key, a
    token, or a password in a URL.
    """
    for name in _SECRET_VARIABLES:
        value = os.environ.get(name, "").strip()
        if value:
            text = text.replace(value, "***")
    line = " ".join(_SECRETS.sub("***", text[:_LONGEST_READ]).split())
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 1] + "…"


def as_type(value: object) -> str:
    """A server's error type or request id. Empty when it is no word of at most 100 letters, digits and ``._:-``."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) and redact(value) == value else ""


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks to wait. The result is at least 0.5 s and at most 3600 s.

    The value comes from the header ``retry-after-ms``, or else from ``retry-after``, which has seconds or an HTTP date.
    Without a readable value the result is 5 s (:data:`RETRY_AFTER_DEFAULT`). Without the lower bound, a value of 0
    would cause a busy loop. Without the upper bound, a wrong date could stop the jobs for days.
    """
    seconds = _number(headers.get("retry-after-ms"), scale=1000)
    if seconds is None:
        seconds = _number(headers.get("retry-after"))
    if seconds is None:
        seconds = _until(headers.get("retry-after") or "")
    low, high = RETRY_AFTER_BOUNDS
    return min(max(seconds, low), high)


def _until(date: str) -> float:
    """Seconds until an HTTP date; the default for a text that is no date of a calendar."""
    try:
        read = email.utils.parsedate_tz(date)
        return email.utils.mktime_tz(read) - time.time() if read else RETRY_AFTER_DEFAULT
    except (ValueError, OverflowError, TypeError):
        return RETRY_AFTER_DEFAULT


def _number(value: str | None, scale: float = 1) -> float | None:
    try:
        number = float(value or "") / scale
    except ValueError:
        return None
    return number if math.isfinite(number) else None
