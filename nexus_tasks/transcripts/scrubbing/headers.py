"""Credentials in headers and on command lines: ``Authorization``, cookies, ``curl -u``, ``--password``."""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder

_ATTRIBUTES = ("path", "domain", "expires", "max-age", "samesite", "version", "priority")


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    quote = r"\\{0,4}[\"']?"
    rules = (
        (
            "authorization",
            rf"(?i:(?:proxy-)?authorization){quote}\s{{0,4}}[:=]\s{{0,4}}{quote}"
            r"(?i:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s{1,4})?"
            r"(?!(?i:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s)([^\s\"',;\\]{6,})",
        ),
        ("bearer token", r"(?i:bearer)\s{1,4}(?=[A-Za-z._~+/-]{0,200}[0-9])([A-Za-z0-9._~+/-]{16,}={0,2})"),
        ("basic credentials", r"\bBasic\s{1,4}(?=[A-Za-z0-9+/]{0,200}[0-9A-Z=])([A-Za-z0-9+/]{12,}={1,2})"),
        (
            "password",
            rf"(?:\bcurl\b[^\n|;]{{0,300}}?\s(?:-u|--user)\s{{0,3}}){quote}[^\s:\"'\\]{{1,100}}:([^\s\"'\\]{{1,200}})",
        ),
        ("password", r"\bsshpass\s{1,4}-p\s{0,3}\\{0,4}[\"']?([^\s\"'\\]{1,200})"),
        ("password", r"\bmysql(?:dump|admin)?\b[^\n|;]{0,200}?\s-p([^\s\"'\\-][^\s\"'\\]{2,200})"),
        (
            "password",
            r"(?<=\s)--(?:[a-z]{1,20}-)?(?:password|passwd|passphrase|pass)[= ]"
            r"\\{0,4}[\"']?([^\s\"'\\$<-][^\s\"'\\]{3,200})",
        ),
        (
            "token",
            r"(?<=\s)--(?:[a-z]{1,20}-){0,3}(?:token|secret|api-key|access-key|secret-key)[= ]\\{0,4}[\"']?"
            r"(?=[^\s]{0,200}[0-9])([^\s\"'\\$<-][^\s\"'\\]{7,200})",
        ),
        ("password", r"\blogin\s{1,8}\S{1,100}\s{1,8}password\s{1,8}(\S{1,200})"),
        (
            "signature",
            r"[?&](?:sig|signature|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)=([A-Za-z0-9%+/=_-]{20,})",
        ),
    )
    return tuple((kind, re.compile(pattern)) for kind, pattern in rules)


@cache
def _cookies() -> re.Pattern[str]:
    return re.compile(
        r"(?i:\b(?:set-)?cookie)\\{0,4}[\"']?\s{0,4}:\s{0,4}\\{0,4}[\"']?([\w.!$-]{1,100}=[^\n\"'\\]{1,8000})"
    )


_HINTS = ("uthorization", "earer", "basic", "curl", "sshpass", "mysql", "--", "login", "sig", "ookie")


def scrub_headers(text: str) -> str:
    """``text`` without credentials in headers, cookies and command-line options."""
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return text
    for kind, pattern in _patterns():
        text = pattern.sub(lambda match, kind=kind: _without(match, kind), text)  # type: ignore[misc]
    return _cookies().sub(_without_values, text) if "ookie" in lowered else text


def _without(match: re.Match[str], kind: str) -> str:
    if MARK in match[0] or match[1].startswith(("$", "<", "{")):
        return match[0]
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return f"{match[0][:start]}{placeholder(kind)}{match[0][end:]}"


def _without_values(match: re.Match[str]) -> str:
    start = match.start(1) - match.start()
    return match[0][:start] + ";".join(map(_without_value, match[1].split(";")))


def _without_value(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or not value or name.strip().lower() in _ATTRIBUTES or MARK in value:
        return pair
    return f"{name}={placeholder('cookie')}"
