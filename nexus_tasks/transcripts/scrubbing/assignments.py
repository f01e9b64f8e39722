"""Scrub values by their names, in environment files, YAML, JSON, connection strings and code.

For example, the value after ``password =`` is replaced. The value may be an ordinary word. ``random_values.py`` scrubs
only values that look generated, and needs less around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.names import ID_FIELD, kind_of, names_a_secret, secret_words
from nexus_tasks.transcripts.scrubbing.occurrences import whole_end
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.randomness import is_jumble, is_random

# Values that are not secret, even after a name such as `password`: types, states, and words in forms.
_PLAIN_WORDS = frozenset(
    """
    str string text bytes password passwd pwd token secret key required optional true false null none
    nil undefined bool boolean int integer number any object hidden default example changeme redacted
    bearer basic empty unset yes no on off enabled disabled self this new old current invalid expired
    missing wrong incorrect correct
    """.split()  # noqa: SIM905
)
# A variable, a template or an expression in place of a value: `$NAME`, `${name}`, `%(name)s`, `!Ref name`, `@name@`.
_REFERENCE = lazy(
    r"\$[({]|\$\w{1,60}->|\$[A-Za-z_]+\Z|\$\w{1,60}-\Z|\$[A-Z_][A-Z0-9_]*\Z|\$[a-z_][a-z0-9_]*\Z|%[({]|%[sdr]\Z|%\w{1,60}%\Z|"
    r"!(?:Ref|Sub|GetAtt|Join|vault|secret|env|env_var|include|reference|Import\w*)?\b(?:[A-Za-z_.]*\Z)|![\[{(]|@[A-Za-z_./]+@?\Z"
)


class _Follows(NamedTuple):
    """What may stand before the name of a value and between the name and the value."""

    before: Callable[[], re.Pattern[str]] | None
    after: Callable[[], re.Pattern[str]]
    is_secret: Callable[[re.Match[str], re.Match[str], str], bool]
    hint: str = ""  # stands within _AFTER characters behind every name that the rule matches


_QUOTE = r"\\{0,6}[\"']"
_NAME_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-"
_BEFORE, _AFTER = 90, 300  # characters before and after a name that are read


@cache
def _rules() -> tuple[_Follows, ...]:
    # Only a quoted value may stand on the next line. In YAML the next line has the next name.
    space = r"(?:[ \t]{0,20}|\s{0,20}(?=\\{0,6}[\"'`]))"
    line_break = r"(?:\r?\n|\\{1,4}n)"
    # A type may stand before a quoted value, `||` or `??` before a default.
    typed = r"(?:: ?&?[A-Za-z][\w.<>\[\]]{0,30}\??|[ \t]\*?[a-z]\w{0,30})[ \t]:?="
    quoted = rf"(?:{typed}|\|\|=?|\?\?=?)(?=[ \t]{{0,4}}\\{{0,6}}[\"'`])"
    sign = rf"(?:=>|:=|\?=|==?|: ?[A-Z]\w{{0,30}}\??[ \t]=|{quoted}|:|\uff1a)"
    # What may stand before a value: the signs of YAML's folded texts, anchors and tags, the letter of `b"…"`, or the
    # call of `String::from("…")`.
    opening = (
        rf"(?:[|>][+-]?[0-9]?[ \t]{{0,4}}{line_break}[ \t]{{1,40}}|(?:&\w{{1,30}}|!!\w{{1,10}})[ \t]{{1,4}}|"
        r"[bru](?=[\"'])|(?:[A-Z]\w{0,30}::(?:from|new)|Some|SecretStr)\((?=[\"']))?"
    )
    start = r"(?:\b|(?<=\\[nrt]))"
    return (
        # password = …, "password": "…", export PASSWORD=…
        _Follows(
            None,
            lazy(
                rf"(?P<assigned>\\{{0,6}}[\"']?\]?[ \t]{{0,20}}{sign}{space}){opening}"
                r"(?:(?P<quote>\\{0,6}[\"'`])(?P<quoted>[^\"'`\n]{1,2000}?)(?P=quote)|"
                r"(?P<bare>[^\s\"'`,;&|()\[\]{}<>\\]{1,500}))"
            ),
            _is_assigned,
        ),
        # {"name": "API_TOKEN", "value": "…"}, - name: API_TOKEN\n  value: …, <add key="Password" value="…"/>
        _Follows(
            lazy(
                rf"{start}(?i:(?:parameter)?(?:name|key|id|path))(?:{_QUOTE})?\s{{0,4}}[:=]\s{{0,4}}(?:{_QUOTE})?[\w.:/-]{{0,60}}\Z"
            ),
            lazy(
                rf"(?:{_QUOTE})?[ \t,;]{{0,6}}(?:{line_break}[ \t]{{0,40}})?"
                rf"(?:{_QUOTE})?(?i:(?:parameter)?value)(?:{_QUOTE})?"
                rf"\s{{0,4}}[:=]\s{{0,4}}(?:{_QUOTE})?(?P<value>[^\s\"'<>,}}\\]{{3,500}})"
            ),
            _is_no_reference,
        ),
        # <password>…</password>, <entry key="password">…</entry>
        _Follows(
            lazy(rf"<(?:\w{{1,30}}\s(?:name|key|id)={_QUOTE})?[\w.:-]{{0,40}}\Z"),
            lazy(
                rf"(?:{_QUOTE})?(?:\s[^<>\n]{{0,100}})?>\s{{0,20}}(?:<value>|<!\[CDATA\[)?"
                r"(?P<value>[^\"'<>\n\\]{3,500})>?</"
            ),
            _is_no_reference,
        ),
        # <key>password</key><string>…</string>
        _Follows(
            lazy(r"<key>[\w.:-]{0,40}\Z"),
            lazy(r"</key>(?:\s|\\{1,4}[nrt]){0,40}+<string>(?P<value>[^\"'<>\n\\]{3,500})</"),
            _is_no_reference,
        ),
        # Content-Disposition: form-data; name="password", and the value behind an empty line
        _Follows(
            lazy(rf"\bname={_QUOTE}[\w.:-]{{0,40}}\Z"),
            lazy(rf"{_QUOTE}(?:(?:\\{{1,4}}r)?{line_break}){{2}}(?P<value>[^\s\"'<>\\]{{3,500}})"),
            _is_no_reference,
        ),
        # "db_password": {"sensitive": true, "value": "…"}, variable "password" { default = "…" }
        _Follows(
            None,
            lazy(
                rf"(?:{_QUOTE})?(?:\s{_QUOTE}[\w-]{{1,60}}{_QUOTE})?\s{{0,4}}[:=]?\s{{0,4}}\{{[^{{}}]{{0,200}}?\b(?:value|default|result)(?:{_QUOTE})?\s{{0,4}}[:=]\s{{0,4}}"
                rf"{_QUOTE}(?P<value>[^\s\"'<>\\]{{3,500}})"
            ),
            _is_no_reference,
        ),
        # aws configure set aws_secret_access_key …, SetEnv DB_PASS …, #define WIFI_PASS "…"
        _Follows(
            lazy(
                r"(?:\bset|\bset -\w{1,4}|\bsetx|\bsetenv|^ENV|\nENV|#[ \t]{0,4}define)[ \t]{1,4}[\w./:-]{0,60}\Z",
                re.IGNORECASE,
            ),
            lazy(rf"[ \t]{{1,8}}(?:{_QUOTE})?(?P<value>[^\s\"'<>\\]{{6,500}})"),
            _is_set,
        ),
        # wrangler secret put API_TOKEN <<< "…"
        _Follows(
            None,
            lazy(rf"(?:{_QUOTE})?[ \t]{{1,8}}<<<[ \t]{{0,8}}(?:{_QUOTE})?(?P<value>[^\s\"'<>\\]{{6,500}})"),
            _is_set,
            "<<<",
        ),
        # define('DB_PASSWORD', '…'), setenv("API_KEY", "…")
        _Follows(
            lazy(rf"[(\s]{_QUOTE}[\w.-]{{0,40}}\Z"),
            lazy(rf"{_QUOTE}\s{{0,4}},\s{{0,4}}{_QUOTE}(?P<value>[^\"'\n\\]{{4,500}}){_QUOTE}\s{{0,4}}[,)]"),
            _is_argument,
        ),
        # setApiToken("…"), .with_password('…'), set_password("service", "ann", "…")
        _Follows(
            lazy(r"(?:\b|_)(?i:set|with|use)_?\w{0,40}\Z"),
            lazy(
                rf"\((?:{_QUOTE}[^\"'\n\\]{{0,80}}{_QUOTE},\s?){{0,2}}{_QUOTE}(?P<value>[^\"'\n\\]{{4,500}}){_QUOTE}\s{{0,4}}\)"
            ),
            lambda match, _name, kind: _secret_literal(kind, match["value"]),
            "(",
        ),
        # ["password"]=> string(12) "…", as PHP prints it
        _Follows(
            None,
            lazy(
                rf"{_QUOTE}\](?::\w{{1,20}})?=>(?:\s|\\{{1,4}}n){{1,20}}string\(\d{{1,6}}\) "
                rf"{_QUOTE}(?P<value>[^\"'\n\\]{{3,500}}){_QUOTE}"
            ),
            _is_no_reference,
            "string(",
        ),
        # secret_key = null -> "…": what Terraform changes.
        _Follows(
            None,
            lazy(rf"\s{{1,30}}=\s{{1,30}}[^\s]{{1,200}}[ ]->[ ]{_QUOTE}(?P<value>[^\"'\n\\]{{4,500}}){_QUOTE}"),
            _is_no_reference,
            " -> ",
        ),
        # <input type="password" … value="…">
        _Follows(
            lazy(rf"<input\s[^<>\n]{{0,60}}\btype={_QUOTE}\Z"),
            lazy(rf"{_QUOTE}[^<>\n]{{0,100}}?\bvalue={_QUOTE}(?P<value>[^\"'<>\n\\]{{3,200}}){_QUOTE}"),
            _is_no_reference,
            "alue=",
        ),
        # api_token⏎  … [type=…, input_value='…', as Pydantic prints it
        _Follows(
            None,
            lazy(rf"{line_break}[^\n]{{1,200}}?\binput_value={_QUOTE}(?P<value>[^\"'\n\\]{{4,500}}){_QUOTE}"),
            lambda match, _name, kind: _secret_literal(kind, match["value"]),
            "input_value",
        ),
        # Evaluating: secrets.DEPLOY_TOKEN⏎##[debug]=> '…', as GitHub's runner prints it
        _Follows(
            lazy(r"\bsecrets\.\w{0,60}\Z"),
            lazy(rf"{line_break}[^\n']{{0,60}}##\[debug\]=> '(?P<value>[^'\n\\]{{3,500}})'"),
            _is_no_reference,
            "##[debug]",
        ),
    )


# A value before its name: {"value": "…", "name": "API_TOKEN"}
@cache
def _value_first() -> re.Pattern[str]:
    return re.compile(
        rf"(?i:value)(?:{_QUOTE})?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}(?P<value>[^\s\"'<>\\]{{3,400}}){_QUOTE}\s{{0,4}},\s{{0,40}}"
        rf"{_QUOTE}(?i:name|key){_QUOTE}\s{{0,4}}:\s{{0,4}}{_QUOTE}[\w.:-]{{0,40}}\Z"
    )


def scrub_assignments(text: str) -> str:
    """``text`` without the values that stand after a name such as ``password``."""
    parts, done = list[str](), 0
    for name in secret_words(text):
        kind = kind_of(name["word"], name["suffix"]) if name.start() >= done else None
        span = _value(text, name, kind, done) if kind else None
        if span:
            parts += [text[done : span[0]], placeholder(str(kind))]
            done = whole_end(text, *span)
            changed = _CHANGED().match(text, done)
            if changed:
                parts += [text[done : changed.start(1)], placeholder(str(kind))]
                done = changed.end(1)
    return "".join((*parts, text[done:])) if parts else text


# The new value behind the old one, as Terraform prints a change: password = "…" -> "…"
_CHANGED = lazy(rf"{_QUOTE}[ ]->[ ]{_QUOTE}([^\"'\n\\]{{4,500}}){_QUOTE}")


def _value(text: str, name: re.Match[str], kind: str, earliest: int) -> tuple[int, int] | None:
    """The start and end of the secret value that has this name."""
    before = text[max(earliest, name.start() - _BEFORE) : name.start()]
    for rule in _rules():
        if rule.hint and text.find(rule.hint, name.end(), name.end() + _AFTER) < 0:
            continue
        match = rule.after().match(text, name.end()) if rule.before is None or rule.before().search(before) else None
        if match and MARK not in match[0] and rule.is_secret(match, name, kind):
            group = match.lastgroup or "value"
            return match.span(group)
    start = max(earliest, name.start() - 500)
    if "alue" not in text[start : name.start()] or not before.rstrip(_NAME_SIGNS).endswith(('"', "'")):
        return None
    match = _value_first().search(text[start : name.start()])
    if match and MARK not in match[0] and _is_no_reference(match, name, kind):
        return match.start("value") + start, match.end("value") + start
    return None


def _is_assigned(match: re.Match[str], name: re.Match[str], kind: str) -> bool:
    if (match["bare"] or "").startswith("?") and "${" in match.string[max(0, name.start() - 60) : name.start()]:
        return False  # ${DB_PASSWORD:?the error when it is not set}
    if match["quoted"] is not None:
        return _secret_literal(kind, match["quoted"])
    after = match.string[match.end() : match.end() + 1]
    # A name in capital letters is the name of an environment variable.
    return _secret_bare(kind, match["bare"], match["assigned"], after, name["word"].isupper())


def _is_no_reference(match: re.Match[str], _name: re.Match[str], _kind: str) -> bool:
    value = match["value"].strip()
    if _refers(value) or value.startswith("arn:") or value.lower() in _PLAIN_WORDS:
        return False
    return not any(map(str.isspace, value)) or any(map(str.isdigit, value))


def _is_set(match: re.Match[str], name: re.Match[str], kind: str) -> bool:
    """Whether the word after a name is its value. In "set password reset" it is not."""
    value = match["value"]
    constant = (value.isidentifier() and value.isupper()) or _NUMBER().fullmatch(value)
    return not constant and any(map(str.isdigit, value)) and _is_no_reference(match, name, kind)


_NUMBER = lazy(r"0x[0-9A-Fa-f]{1,8}")


def _is_argument(match: re.Match[str], name: re.Match[str], kind: str) -> bool:
    """Whether the second argument is secret. It is not if both may be names, as in ``("token", "state")``."""
    value = match["value"]
    defined = _DEFINES().search(match.string[max(0, name.start() - 80) : name.start()]) is not None
    named = value.replace("-", "_").replace(".", "_").isidentifier() and not is_random(value)
    return (defined or not named) and _is_no_reference(match, name, kind)


# The call has the name of a setting and its value.
_DEFINES = lazy(
    r"(?:define|getenv|setenv|putenv|environ\.get|\benv|environ\.setdefault|set_?property|set_?password)\([^()\n]{0,50}\Z",
    re.IGNORECASE,
)


def _secret_literal(kind: str, value: str) -> bool:
    """Whether a quoted value (in code, JSON or YAML) is secret."""
    plain = value.strip()
    if _refers(plain) or plain.lower() in _PLAIN_WORDS or len(plain) < 3:
        return False
    if any(map(str.isspace, plain)):  # a value with a space is probably a sentence about the field
        return kind == "password" and _GROUPS().fullmatch(plain) is not None
    return kind == "password" or _unlikely_word(plain)


_GROUPS = lazy(r"(?:[a-z]{4} ){3}[a-z]{4}")  # the form in which Google writes an app password


def _secret_bare(kind: str, value: str, assigned: str, after: str, shouted: bool) -> bool:
    """Whether a value without quotes (in an environment file, a connection string, YAML or code) is secret."""
    plain = value.rstrip(".:?!")
    if _refers(plain) or plain.lower() in _PLAIN_WORDS or len(plain.rstrip("-_")) < 3:
        return False
    if ID_FIELD().match(plain):
        return False  # the name is that of a logger, and a field follows: `token: request_id=…`
    if plain.isidentifier() and plain.isupper() and not is_random(plain):
        return False  # the value is the name of a constant
    if shouted and assigned == "=":
        return "/" not in plain[:1] and (kind == "password" or not plain.isdigit())
    if after in ("(", "[", "{"):
        return False  # the value begins a call, an index or a type
    if kind == "password" and value.endswith("!") and _has_digits(plain):
        return True  # no variable ends with this sign
    expression = all(part.isidentifier() for part in plain.split("."))
    if expression and (after in (",", ")") or assigned.strip() != assigned or "." in plain):
        # In code an identifier here is the name of a variable or a type. In YAML a password may be a single word.
        line = kind == "password" and assigned == ": " and after in ("", "\n") and plain.isalnum()
        yaml = line and (plain.islower() or _has_digits(plain))
        return (
            yaml
            or (kind == "password" and (is_random(plain) or is_jumble(plain)))
            or (_has_digits(plain) and _unlikely_word(plain) and "." not in plain and len(plain) >= 12)
        )
    return kind == "password" or _unlikely_word(plain)


def _refers(value: str) -> bool:
    """Whether a value is not a secret, but a variable, a template, a mask or a path in its place."""
    return (
        value.startswith(("<", "{", "[", "*", "…", "...", "/", "./", "~/", "process.", "os."))
        or _REFERENCE().match(value) is not None
        or set(value) <= set("*x.•-_X")
    )


def _has_digits(value: str) -> bool:
    return any(map(str.isdigit, value))


def _unlikely_word(value: str) -> bool:
    """Whether a value looks like a generated one.

    That is a value of at least 8 characters with letters, and with digits or two different signs, or a jumble of
    capital and small letters.
    """
    if len(value) < 8 or value.isdigit():
        return False
    if _has_digits(value) and any(map(str.isalpha, value)):
        return True
    if len(set(value) & _PASSWORD_SIGNS) >= 2 and any(map(str.isalpha, value)) and "%s" not in value:
        return True
    return is_jumble(value) or (len(value) >= 20 and not value.islower() and not value.isupper() and value.isalnum())


_PASSWORD_SIGNS = frozenset("!@#$%^&*")


def secret_name(name: str, value: Any) -> str | None:
    """The kind of secret in a field of a JSON object, by the field's name and value. ``None`` without a secret."""
    text = str(value)
    if MARK in text:
        return None
    field = f'"{name}":'
    kind = next(
        (kind_of(one["word"], one["suffix"]) for one in secret_words(field) if one.end() == len(field) - 2), None
    )
    if kind and _secret_literal(kind, text):
        return kind
    return names_a_secret(name) if is_random(text) else None
