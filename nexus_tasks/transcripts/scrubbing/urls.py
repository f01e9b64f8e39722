"""Passwords in addresses: ``postgres://user:password@host``. The user and the host stay."""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder


@cache
def _authority() -> re.Pattern[str]:
    # An unescaped @ in a password: up to the last one before the path.
    return re.compile(r"://([^\s/?#'\"<>@:\\]{0,200}):([^\s/?#'\"<>\\]{1,300})@")


@cache
def _databases() -> re.Pattern[str]:
    # What people paste has passwords with a slash in it, too; elsewhere that would be a path.
    return re.compile(
        r"(?i:(?:postgres(?:ql)?|mysql|mariadb|mongodb|redis|rediss|amqps?|mssql)(?:\+[a-z0-9]{1,20})?)"
        r"://([^\s/?#'\"<>@:\\]{0,200}):([^\s'\"<>@\\]{1,300})@"
    )


@cache
def _user_only() -> re.Pattern[str]:
    return re.compile(r"://([A-Za-z0-9_-]{20,300})@")


def scrub_urls(text: str) -> str:
    """``text`` without passwords in addresses."""
    if "://" not in text or "@" not in text:
        return text
    for pattern in (_authority(), _databases()):
        text = pattern.sub(_without_password, text)
    return _user_only().sub(_without_user, text)


def _without_password(match: re.Match[str]) -> str:
    password = match[2]
    # A variable's name is no secret, and worth reading.
    if MARK in password or password.startswith(("$", "{", "%s", "…", "***")):
        return match[0]
    start = match.start(2) - match.start()
    return f"{match[0][:start]}{placeholder('password')}@"


def _without_user(match: re.Match[str]) -> str:
    user = match[1]
    return f"://{placeholder('token')}@" if any(map(str.isdigit, user)) and any(map(str.isalpha, user)) else match[0]
