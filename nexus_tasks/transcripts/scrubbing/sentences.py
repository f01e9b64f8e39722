"""Scrub passwords that a sentence tells: "my password is …"."""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.names import ABROAD, ID_FIELD
from nexus_tasks.transcripts.scrubbing.occurrences import Words, occurrences
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder

# The beginnings of the words that tell of a password.
_STARTS = Words((
    "pass", "pwd", "pw:", "pw ", "pin ", "pin:", "cred", "login", "log in", "sign in", "mnemonic", "seed",
    "recovery", "backup", "wallet", "secret", "api", "access", "auth", "private", "license", "token", "bot ", "admin ",
    "client ", "shared ",
    *ABROAD,
))  # fmt: skip
_NOUN = rf"pass(?:word|wort|code|phrase|wd)?|pwd|pw|pin(?: code| number)?|master password|{'|'.join(ABROAD)}"
_LONGEST_ABROAD = max(map(len, ABROAD))
# Words that follow "password is" and are not the password, or that stand for a password.
_NO_PASSWORD = frozenset(
    """
    the a an not no now also still just always never too very so that this it what which who in on at to for from by
    of and or but if when where how my your his her our their its required optional needed stored hashed encrypted
    wrong incorrect correct right invalid valid expired weak strong short long safe secure secret unknown missing
    empty blank null none set reset changed same different new old here there ok okay good bad bound used known
    because only already probably something anything nothing everything case sensitive important kept written
    visible hidden plain plaintext up out off being going gone lost done fine easy hard simple complex terrible
    awful great yours mine theirs ours all any one two three four five six seven eight nine ten rejected accepted
    returned sent shown asked given taken passed read checked verified compared generated created updated deleted
    under over like about as more less least most even actually really apparently supposed stupid default true false
    entered saved typed displayed provided supplied specified typically usually generally basically simply literally
    mandatory private public irrelevant strange identical stale confidential broken below above unset nonsense unclear
    absent present alphanumeric ancient forgotten inside outside between again elsewhere together perfect silly dumb
    trivial random numeric equal similar common unknown foreign other temporary permanent initial original final current
    previous next last first second third recent late early full enough fake real legit dead alive active inactive
    available sufficient clear crap garbage trash bogus rubbish whatever someone somewhere everywhere nowhere
    plain-text text history overkill overdue static dynamic global local internal external
    """.split()  # noqa: SIM905
)
_PARTICIPLE = lazy(r"(?:ed|ing|ly|able|ible|less|ful|ous|ive|ical|que)\Z")
# German writes nouns with a capital, so "mein Passwort ist abgelaufen" tells no password. These nouns are none either.
_NO_PASSWORD_IN_GERMAN = frozenset(
    [
        "Pflicht",
        "Geschichte",
        "Unsinn",
        "Quatsch",
        "Mist",
        "Schrott",
        "Standard",
        "Vergangenheit",
        "Geheimnis",
        "Vorschrift",
        "Teil",
        "Schuld",
    ]
)


_WHOSE = lazy(
    r"(?:\b|(?<=\\[nrt]))(?:my|our|your|his|her|their|its|the|new|admin|root|wifi|wi-fi|db|database|user|login|temporary|"
    r"mein|unser|dein|euer|das)\s+(?:[\w'’-]{1,20}\s+){0,3}(?:\w{1,20}-)?\Z",
    re.IGNORECASE,
)
_OPEN = r"(?P<open>\\{0,4}[\"'“‘`*]{0,3})"


@cache
def _told() -> re.Pattern[str]:
    """ "password for the router is X", "password: X", "password to X", "PIN is 1234"."""
    return re.compile(
        rf"(?P<noun>{_NOUN})\b(?:\s++(?:for|of|on|at|to)\s++[\w .@'’/-]{{1,40}}?)?"
        r"(?P<verb>\s++(?:is|was|ist|war|lautet|es|est|é|è|это|will\s++be|should\s++be|has\s++been\s++set\s++to|is\s++set\s++to|to|=)(?:\s*+:)?"
        r"|\s*+[:=]|\?(?:\s|\\n){1,4}+(?:it['’]?s|it\s+is|that['’]?s|that\s+is))\s++"
        rf"(?:(?:now|still|just|currently|set\s++to)\s++)?{_OPEN}(?P<value>\S{{3,80}})",
        re.IGNORECASE,
    )


@cache
def _told_abroad() -> re.Pattern[str]:
    """ "la contraseña del wifi es X", "le mot de passe, c'est X", "пароль — X"."""
    return re.compile(
        rf"(?:passwor[dt]|{'|'.join(ABROAD)})\b"
        r"(?:\s++(?:del|de\s++la|de|du|des|da|do|für|fuer|vom|von|zum|от|для|к)\s++[\w .@'’/-]{1,40}?)?"
        r"(?:,?\s++(?:es|est|c['’]est|é|è|ist|lautet|war|jest|to|är|это|такой)"
        r"(?:\s++(?:ahora|maintenant|jetzt|nun|теперь))?(?:\s*+:)?|\s++[—–-]|\s*+:)\s++"
        r"(?P<open>[\"'“„«‘`*]{0,3})\s?(?P<value>\S{5,80})",
        re.IGNORECASE,
    )


@cache
def _told_east() -> re.Pattern[str]:
    """ "パスワードはXです", "密码是X", "비밀번호는 X": the value ends before the next letter of the sentence."""
    return re.compile(
        r"(?:パスワード|密码|密碼|비밀번호)\s?(?:は|が|是|为|為|는|은)\s?[:：]?\s?[「『“\"'`]{0,2}(?P<value>[!-~]{5,80})"
    )


@cache
def _told_key() -> re.Pattern[str]:
    """ "secret is X", "API key for the shop: X"."""
    return re.compile(
        r"(?:(?:client |shared )?secret(?: key| token)?|token|"
        r"(?:api|access|auth|private|license|bot|admin)[ _-]?(?:token|key))"
        r"\b(?:\s++(?:for|of|on|to)\s++[\w .@'’/-]{1,40}?)?(?:\s++(?:is|was)(?:\s*+:)?|\s*+:)\s++"
        rf"{_OPEN}(?P<value>[\w+/=.~!@#$%^&*-]{{10,80}})",
        re.IGNORECASE,
    )


@cache
def _adjacent() -> re.Pattern[str]:
    """ "password X", "the passphrase X"; the value has a digit."""
    return re.compile(
        rf"(?:password|passwd|passphrase|passcode|pwd)[^\S\t]++{_OPEN}(?P<value>(?=[^\s]{{0,60}}[0-9])\S{{6,80}})",
        re.IGNORECASE,
    )


@cache
def _grouped() -> re.Pattern[str]:
    """ "app password is abcd efgh ijkl mnop": four or six groups of four, as Google and WordPress write them."""
    return re.compile(
        r"passwords?(?:\s+(?:is|was)|\s*+[:=])\s+[\"'`]?(?P<value>(?:[A-Za-z0-9]{4} ){3}"
        r"(?:[A-Za-z0-9]{4} [A-Za-z0-9]{4} )?[A-Za-z0-9]{4})(?![A-Za-z0-9]| [A-Za-z])",
        re.IGNORECASE,
    )


@cache
def _as_password() -> re.Pattern[str]:
    """ "use X as the", "X is my", before the word "password"."""
    return re.compile(
        rf"(?<!\S){_OPEN}(?P<value>[^\s\"'“‘`]{{5,80}})[\"'”’`]{{0,3}}\s+(?:as|is)\s+"
        r"(?:the|my|our|your|a|its|her|his|their)\s+(?:[\w-]{1,20}\s+){0,2}\Z",
        re.IGNORECASE,
    )


@cache
def _pair() -> re.Pattern[str]:
    """ "credentials are admin:X", "log in with admin / X", "log in as ann with X"."""
    return re.compile(
        r"(?:log\s?in|sign\s?in)\s+as\s+[\w.@+-]{2,60}\s+(?:with|using|and)\s+(?P<with>(?=[^\s]{0,60}[0-9])[^\s/:]{6,80})|"
        r"(?:credentials?|creds|log\s?in|sign\s?in)\b[^\n:/]{0,40}?[\s:\"'`(]{1,3}(?!(?:sha\d{1,3}|md5|blake\d\w?):)[\w.@+-]{2,60}\s?[:/]\s?"
        r"(?P<value>(?=[^\s]{0,60}[0-9])[^\s/:]{6,80})",
        re.IGNORECASE,
    )


@cache
def _phrase() -> re.Pattern[str]:
    """The words from which a wallet is restored: 12 to 24 short words."""
    return re.compile(
        r"(?:mnemonic|(?:seed|recovery|backup|wallet)[ _-](?:phrase|words))[\"']?\s{0,3}"
        r"(?:is|are|was|[:=])\s{0,3}[\"'`]?(?P<value>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})\b",
        re.IGNORECASE,
    )


def scrub_sentences(text: str) -> str:
    """``text`` without the passwords that its sentences tell."""
    parts, done = list[str](), 0
    for at in occurrences(text, _STARTS):
        # Japanese and Chinese have no space before a word, and all of its letters stand behind U+3000.
        begins = not text[at - 1 : at].isalnum() or text[at] >= "\u3000"
        found = _password_at(text, at, done) if at >= done and begins else None
        if found:
            start, end, kind = found
            parts += [text[done:start], placeholder(kind)]
            done = end
    return "".join((*parts, text[done:])) if parts else text


def _password_at(text: str, at: int, earliest: int) -> tuple[int, int, str] | None:
    """The start, end and kind of a password that the sentence tells which has one of :data:`_STARTS` at ``at``."""
    if (text[at] in "pP" and text[at + 1] not in "rR") or text[at : at + _LONGEST_ABROAD].lower().startswith(ABROAD):
        told = _told().match(text, at)
        if told and _is_told(told, text[max(earliest, at - 80) : at]):
            return _span(told, "password")
        for abroad in (_told_abroad().match(text, at), _told_east().match(text, at)):
            if abroad and looks_like_a_password(_bare(abroad["value"].rstrip("»”“"))):
                return _span(abroad, "password")
        grouped = _grouped().match(text, at)
        if grouped:
            return *grouped.span("value"), "password"
        beside = _adjacent().match(text, at)
        if beside and looks_like_a_password(_bare(beside["value"])):
            return _span(beside, "password")
        before = _as_password().search(text[max(earliest, at - 140) : at])
        if before and looks_like_a_password(_bare(before["value"])):
            start, end, kind = _span(before, "password")
            moved = max(earliest, at - 140)
            return start + moved, end + moved, kind
        return None
    key = _told_key().match(text, at)
    if key and not ID_FIELD().match(key["value"]) and _is_key(_bare(key["value"])):
        return _span(key, "secret")
    pair = _pair().match(text, at)
    group = "with" if pair and pair["with"] else "value"
    if pair and looks_like_a_password(_bare(pair[group])):
        return _span(pair, "password", group)
    phrase = _phrase().match(text, at)
    return (*phrase.span("value"), "seed phrase") if phrase else None


def _span(match: re.Match[str], kind: str, group: str = "value") -> tuple[int, int, str]:
    start = match.start(group)
    return start, start + len(_bare(match[group])), kind


def _bare(value: str) -> str:
    """``value`` without the sentence's punctuation and quotes behind it."""
    value = value.partition('\\"')[0].partition('","')[0].partition("&quot;")[0].rstrip("\"'”’`*»“")
    return value.rstrip(".,;:?)。").rstrip("\"'”’`*»“")


def _is_told(match: re.Match[str], before: str) -> bool:
    value = _bare(match["value"])
    if MARK in match[0] or "[" in value:
        return False
    if match["noun"].lower().startswith(("pin", "passcode")):
        return value.isdigit() and 4 <= len(value) <= 8
    return looks_like_a_password(value) or (
        value.isalpha() and _is_last_word(match, value, _WHOSE().search(before) is not None)
    )


def _is_last_word(match: re.Match[str], value: str, owned: bool) -> bool:
    """Whether the ordinary word ``value`` is the password: it is quoted, or it ends the sentence about a password."""
    verb = match["verb"].strip().partition(" ")[0].lower()
    if len(value) < 4 or verb in (":", "=") or not owned or match["noun"].lower() == "pass":
        return False
    if verb in ("ist", "war", "lautet"):
        said = value in _NO_PASSWORD_IN_GERMAN or not value[0].isupper()
    else:
        said = value.lower() in _NO_PASSWORD or bool(_PARTICIPLE().search(value.lower()))
    if said:
        return False
    if verb == "to":
        return bool(match["open"])
    rest = match.string[match.start("value") + len(value) : match.end() + 2]
    return bool(match["open"]) or not rest.strip(" .,;!\"'”’`*") or rest[:1] in ".,;!"


def _is_key(value: str) -> bool:
    """Whether a short ``value`` looks generated: at least 3 digits and 3 letters in one word without separators."""
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    longest = max(map(len, re.split(r"[^A-Za-z0-9]", value)))
    return digits >= 3 and letters >= 3 and longest >= 8 and digits + letters >= 10


_VERSION = lazy(r"v\d{1,4}(?:\.\d{1,4}){1,3}")


def looks_like_a_password(value: str) -> bool:
    """Whether ``value`` has letters and digits or signs, as passwords have, and is no code, path, number or time."""
    if (
        len(value) < 5
        or MARK in value
        or value.startswith(("${", "$(", "<", "{", "[", "(", "/", "http", "#", "--", "~", "%("))
    ):
        return False
    if any(sign in value for sign in ("(", "[", "{", "<", "=", "\\", "://", "->", "…", "...")) or set(value) <= set(
        "*x.•-_X"
    ):
        return False
    if (value[0] == "$" and value[1:].isidentifier()) or _VERSION().fullmatch(value):
        return False
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    signs = any(one in "!@#$%^&*+~?" for one in value[:-1]) or value[-1] in "@#$%^&*"
    return letters and (digits or signs)
