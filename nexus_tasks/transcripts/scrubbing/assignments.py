"""Values that a name says are secret: environment files, YAML, JSON (also inside a text), connection strings, code."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder

_WORDS = ("passw", "passphrase", "pwd", "pass", "secret", "token", "key", "credential", "auth")
# What stands in a field of such a name and is no secret: types, states, and other words of schemas and forms.
_ORDINARY = frozenset(
    """
    str string text bytes password passwd pwd token secret key required optional true false null none
    nil undefined bool boolean int integer number any object hidden default example changeme redacted
    bearer basic empty unset yes no on off enabled disabled self this new old current invalid expired
    missing wrong incorrect correct
    """.split()  # noqa: SIM905
)
_NOT_ITSELF = re.compile(
    r"(?:name|id|ids|type|count|path|file|dir|url|uri|field|length|len|limit|size|ttl|expiry|expires|expires_?(?:in|at)|arn|"
    r"ref|policy|hint|label|prefix|suffix|regex|pattern|format|budget|usage|s)\Z",
    re.IGNORECASE,
)


@cache
def _assignment() -> re.Pattern[str]:
    """A name that ends in a telling word (with a suffix), how it is assigned, and the value, quoted or bare."""
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
    """``text`` without the values of names that say they are secret."""
    lowered = text.lower()
    return _assignment().sub(_without_value, text) if any(word in lowered for word in _WORDS) else text


def _without_value(match: re.Match[str]) -> str:
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
    """Whether the name is in capitals, as those of environment variables are."""
    return match["word"].isupper()


def _kind(word: str, suffix: str) -> str | None:
    """What kind of secret a name announces; ``None`` for ``token_count`` and the like."""
    last = re.split(r"[_.-]|(?<=[a-z])(?=[A-Z])", suffix)[-1] if suffix else ""
    if last and _NOT_ITSELF.match(last) and not (last == "s" and word.lower().startswith("credential")):
        return None
    word = word.lower()
    if word.startswith(("passw", "passp", "pwd")) or word == "pass":
        return "password"
    return "token" if "token" in word else "key" if word.endswith("key") else "secret"


def _secret_literal(kind: str, value: str) -> bool:
    """A quoted value: code, JSON, YAML."""
    plain = value.strip()
    if _refers(plain) or plain.lower() in _ORDINARY or len(plain) < 3:
        return False
    if any(map(str.isspace, plain)):
        return False  # a sentence, or a message about the field
    return kind == "password" or _unlikely_word(plain)


def _secret_bare(kind: str, value: str, assigned: str, after: str, shouted: bool) -> bool:
    """An unquoted value: environment files, connection strings, YAML; or code, where it is an expression."""
    plain = value.rstrip(".:?!")
    if _refers(plain) or plain.lower() in _ORDINARY or len(plain) < 3:
        return False
    if plain.isidentifier() and plain.isupper():
        return False  # a constant's name
    if shouted and assigned == "=":
        return "/" not in plain[:1] and (kind == "password" or not plain.isdigit())
    if after in ("(", "[", "{"):
        return False  # a call, or the like
    expression = all(part.isidentifier() for part in plain.split("."))
    if expression and (after in (",", ")") or assigned.strip() != assigned or "." in plain):
        # Code passes it on; in YAML, and in prose, a password may still be a word that stands alone.
        yaml = kind == "password" and assigned == ": " and after in ("", "\n") and plain.islower() and plain.isalnum()
        return yaml or (_has_digits(plain) and _unlikely_word(plain) and "." not in plain and len(plain) >= 12)
    return kind == "password" or _unlikely_word(plain)


def _refers(value: str) -> bool:
    """Whether a value only says where the secret is: a variable, a template, a mask, a path."""
    return value.startswith(
        ("$", "<", "{", "%", "[", "*", "…", "...", "/", "./", "~/", "!", "@", "process.", "os.")
    ) or (set(value) <= set("*x.•-_X"))


def _has_digits(value: str) -> bool:
    return any(map(str.isdigit, value))


def _unlikely_word(value: str) -> bool:
    """Whether a value looks generated: letters and digits mixed, or long and of both cases; no call and no sentence."""
    if len(value) < 8 or value.isdigit():
        return False
    if _has_digits(value) and any(map(str.isalpha, value)):
        return True
    return len(value) >= 20 and not value.islower() and not value.isupper() and value.isalnum()


def secret_name(name: str, value: Any) -> str | None:
    """The kind of secret that a field of a JSON object holds, by its name and value; ``None`` when it is none."""
    text = str(value)
    match = _assignment().search(f"{name}: 0")
    if match is None or match.end("suffix") < len(name):
        return None
    kind = _kind(match["word"], match["suffix"])
    return kind if kind and MARK not in text and _secret_literal(kind, text) else None
