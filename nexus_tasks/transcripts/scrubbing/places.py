"""Scrub secrets that are known by their place: in an address, a header or an option, or after a name.

For example, the value after the name ``password`` is replaced. ``shapes.py`` finds secrets of a known shape in any
place. This module finds the secrets that have no known shape.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder


# --- addresses: postgres://user:password@host -------------------------------------------------------------------------
@cache
def _authority() -> re.Pattern[str]:
    # A password may contain an unescaped @. The password therefore ends at the last @ before the path.
    return re.compile(r"://([^\s/?#'\"<>@:\\]{0,200}):([^\s/?#'\"<>\\]{1,300})@")


@cache
def _databases() -> re.Pattern[str]:
    # In a database address the password may contain a slash. In other addresses a slash begins the path.
    return re.compile(
        r"(?i:(?:postgres(?:ql)?|mysql|mariadb|mongodb|redis|rediss|amqps?|mssql)(?:\+[a-z0-9]{1,20})?)"
        r"://([^\s/?#'\"<>@:\\]{0,200}):([^\s'\"<>@\\]{1,300})@"
    )


@cache
def _user_only() -> re.Pattern[str]:
    return re.compile(r"://([A-Za-z0-9_-]{20,300})@")


def scrub_urls(text: str) -> str:
    """``text`` without the passwords in addresses. A user name is also replaced if it looks like a token."""
    if "://" not in text or "@" not in text:
        return text
    for pattern in (_authority(), _databases()):
        text = pattern.sub(_without_password, text)
    return _user_only().sub(_without_user, text)


def _without_password(match: re.Match[str]) -> str:
    password = match[2]
    # A variable, a template or a mask in place of the password is not secret.
    if MARK in password or password.startswith(("$", "{", "%s", "…", "***")):
        return match[0]
    start = match.start(2) - match.start()
    return f"{match[0][:start]}{placeholder('password')}@"


def _without_user(match: re.Match[str]) -> str:
    user = match[1]
    return f"://{placeholder('token')}@" if any(map(str.isdigit, user)) and any(map(str.isalpha, user)) else match[0]


# --- headers, cookies and options of commands: Authorization, curl -u, --password -------------------------------------
_COOKIE_ATTRIBUTES = ("path", "domain", "expires", "max-age", "samesite", "version", "priority")


@cache
def _credential_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
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
    for kind, pattern in _credential_patterns():
        text = pattern.sub(lambda match, kind=kind: _without_credential(match, kind), text)  # type: ignore[misc]
    return _cookies().sub(_without_cookie_values, text) if "ookie" in lowered else text


def _without_credential(match: re.Match[str], kind: str) -> str:
    if MARK in match[0] or match[1].startswith(("$", "<", "{")):
        return match[0]
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return f"{match[0][:start]}{placeholder(kind)}{match[0][end:]}"


def _without_cookie_values(match: re.Match[str]) -> str:
    start = match.start(1) - match.start()
    return match[0][:start] + ";".join(map(_without_cookie_value, match[1].split(";")))


def _without_cookie_value(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or not value or name.strip().lower() in _COOKIE_ATTRIBUTES or MARK in value:
        return pair
    return f"{name}={placeholder('cookie')}"


# --- assignments in environment files, YAML, JSON (also inside a text), connection strings and code -------------------
_TELLING_WORDS = ("passw", "passphrase", "pwd", "pass", "secret", "token", "key", "credential", "auth")
# Values that are not secret, even after a name such as `password`: types, states, and words in forms.
_PLAIN_WORDS = frozenset(
    """
    str string text bytes password passwd pwd token secret key required optional true false null none
    nil undefined bool boolean int integer number any object hidden default example changeme redacted
    bearer basic empty unset yes no on off enabled disabled self this new old current invalid expired
    missing wrong incorrect correct
    """.split()  # noqa: SIM905
)
# The last part of a name whose value is not the secret itself, such as `token_count` or `password_hint`.
_NOT_ITSELF = re.compile(
    r"(?:name|id|ids|type|count|path|file|dir|url|uri|field|length|len|limit|size|ttl|expiry|expires|expires_?(?:in|at)|arn|"
    r"ref|policy|hint|label|prefix|suffix|regex|pattern|format|budget|usage|s)\Z",
    re.IGNORECASE,
)


@cache
def _assignment() -> re.Pattern[str]:
    """The pattern of an assignment: a word such as ``password``, an optional suffix, a sign such as ``=``, a value."""
    word = (
        r"passw(?:or)?d|passphrase|pwd|(?<=[_.-])pass|secret|token|"
        r"(?:api|access|account|private|secret|encryption|signing|master|auth|shared|license|service|session|storage|"
        r"deploy|admin|webhook)[_-]?key|credential|(?<=_)auth|authtoken"
    )
    return re.compile(
        rf"(?P<word>(?i:{word}))(?P<suffix>s?(?:[_.-][\w.-]{{0,40}}|[A-Z][A-Za-z0-9]{{0,40}}|[0-9]{{1,3}})?)"
        r"(?P<assigned>\\{0,6}[\"']?\]?\s{0,20}(?:=>|:=|==?|:)\s{0,20})"
        r"(?:(?P<quote>\\{0,6}[\"'`])(?P<quoted>[^\"'`\n]{1,2000}?)(?P=quote)|(?P<bare>[^\s\"'`,;&|()\[\]{}<>\\]{1,500}))"
    )


def scrub_assignments(text: str) -> str:
    """``text`` without the values that stand after a name such as ``password``."""
    lowered = text.lower()
    return _assignment().sub(_without_assigned_value, text) if any(word in lowered for word in _TELLING_WORDS) else text


def _without_assigned_value(match: re.Match[str]) -> str:
    which = "quoted" if match["quoted"] is not None else "bare"
    kind = _kind(match["word"], match["suffix"])
    if kind is None or MARK in match[which]:
        return match[0]
    after = match.string[match.end() : match.end() + 1]
    secret = (
        _secret_literal(kind, match["quoted"])
        if which == "quoted"
        else _secret_bare(kind, match["bare"], match["assigned"], after, _is_shouted(match))
    )
    if not secret:
        return match[0]
    start, end = match.start(which) - match.start(), match.end(which) - match.start()
    return f"{match[0][:start]}{placeholder(kind)}{match[0][end:]}"


def _is_shouted(match: re.Match[str]) -> bool:
    """Whether the name is written in capital letters, like the name of an environment variable."""
    return match["word"].isupper()


def _kind(word: str, suffix: str) -> str | None:
    """The kind of secret that has this name. ``None`` for a name of another value, such as ``token_count``."""
    last = re.split(r"[_.-]|(?<=[a-z])(?=[A-Z])", suffix)[-1] if suffix else ""
    if last and _NOT_ITSELF.match(last) and not (last == "s" and word.lower().startswith("credential")):
        return None
    word = word.lower()
    if word.startswith(("passw", "passp", "pwd")) or word == "pass":
        return "password"
    return "token" if "token" in word else "key" if word.endswith("key") else "secret"


def _secret_literal(kind: str, value: str) -> bool:
    """Whether a quoted value (in code, JSON or YAML) is secret."""
    plain = value.strip()
    if _refers(plain) or plain.lower() in _PLAIN_WORDS or len(plain) < 3:
        return False
    if any(map(str.isspace, plain)):
        return False  # a value with a space is probably a sentence about the field
    return kind == "password" or _unlikely_word(plain)


def _secret_bare(kind: str, value: str, assigned: str, after: str, shouted: bool) -> bool:
    """Whether a value without quotes (in an environment file, a connection string, YAML or code) is secret."""
    plain = value.rstrip(".:?!")
    if _refers(plain) or plain.lower() in _PLAIN_WORDS or len(plain) < 3:
        return False
    if plain.isidentifier() and plain.isupper():
        return False  # the value is the name of a constant
    if shouted and assigned == "=":
        return "/" not in plain[:1] and (kind == "password" or not plain.isdigit())
    if after in ("(", "[", "{"):
        return False  # the value begins a call, an index or a type
    expression = all(part.isidentifier() for part in plain.split("."))
    if expression and (after in (",", ")") or assigned.strip() != assigned or "." in plain):
        # In code an identifier here is the name of a variable. In YAML a password may be a single word.
        yaml = kind == "password" and assigned == ": " and after in ("", "\n") and plain.islower() and plain.isalnum()
        return yaml or (_has_digits(plain) and _unlikely_word(plain) and "." not in plain and len(plain) >= 12)
    return kind == "password" or _unlikely_word(plain)


def _refers(value: str) -> bool:
    """Whether a value is not a secret, but a variable, a template, a mask or a path in its place."""
    return value.startswith(
        ("$", "<", "{", "%", "[", "*", "…", "...", "/", "./", "~/", "!", "@", "process.", "os.")
    ) or (set(value) <= set("*x.•-_X"))


def _has_digits(value: str) -> bool:
    return any(map(str.isdigit, value))


def _unlikely_word(value: str) -> bool:
    """Whether a value looks like a generated one.

    That is a value of at least 8 characters with letters and digits, or of at least 20 letters, capital and small.
    """
    if len(value) < 8 or value.isdigit():
        return False
    if _has_digits(value) and any(map(str.isalpha, value)):
        return True
    return len(value) >= 20 and not value.islower() and not value.isupper() and value.isalnum()


def secret_name(name: str, value: Any) -> str | None:
    """The kind of secret in a field of a JSON object, by the field's name and value. ``None`` without a secret."""
    text = str(value)
    match = _assignment().search(f"{name}: 0")
    if match is None or match.end("suffix") < len(name):
        return None
    kind = _kind(match["word"], match["suffix"])
    return kind if kind and MARK not in text and _secret_literal(kind, text) else None
