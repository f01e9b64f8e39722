"""Scrub passwords that a sentence tells: "my password is …"."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.names import ABROAD, ID_FIELD
from nexus_tasks.transcripts.scrubbing.occurrences import Words, occurrences
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.randomness import is_jumble, is_random

# "Key" and "token" in other languages, and "credentials".
_KEYS_ABROAD = (
    "schlüssel", "clé", "jeton", "clave", "chave", "chiave", "sleutel", "klucz", "ключ", "токен", "キー", "トークン",
    "密钥", "密鑰", "令牌", "키", "토큰", "anahtar", "nyckel",
)  # fmt: skip
_PAIRS_ABROAD = ("zugangsdaten", "identifiants", "credenciales", "credenziali", "credenciais")
_VERBS_ABROAD = (" es ", "est ", " é ", " è ", " to ", " är ", " ist ", " lautet ")  # "is" in other languages
# The beginnings of the words that tell of a password.
_STARTS = Words((
    "pass", "pwd", "pin ", "pin:", "cred", "login", "log in", "sign in", "mnemonic", "seed",
    "recovery", "backup", "wallet", "secret", "api", "access", "auth", "private", "license", "token", "bot ", "admin ",
    "client ", "shared ", "signing ", "master ", "encryption ", "webhook ", "service ", "session ", "refresh ",
    "deploy", "pw", *_KEYS_ABROAD, *_PAIRS_ABROAD,
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


_KEY = (
    r"(?:(?:client |shared |signing |webhook |session )?secret(?: key| token)?|token|credentials?|"
    r"(?:api|access|auth|private|license|bot|admin|signing|master|encryption|service|svc|refresh|deploy|webhook|session)"
    r"[ _-]?(?:token|key))"
)
_KEY_NAME = lazy(rf"{_KEY}\b", re.IGNORECASE)


@cache
def _told() -> re.Pattern[str]:
    """ "password for the router is X", "password: X", "password to X", "PIN is 1234"."""
    return re.compile(
        rf"(?P<noun>{_NOUN})\b\*{{0,3}}(?:\s?[(\[][\w .@'’-]{{1,30}}[)\]])?"
        r"(?:\s++(?:for|of|on|at|to)\s++[\w .@'’/-]{1,40}?)?"
        r"(?P<verb>\s++(?:is|was|ist|war|lautet|es|est|é|è|это|will\s++be|should\s++be|has\s++been\s++set\s++to|is\s++set\s++to|to|from|with\s++the\s++value|=)(?:\s*+:)?"
        r"|\s*+[:=](?=\*{0,3}\s)|\?(?:\s|\\n){1,4}+\w{1,20}:|\s++\((?:it['’]?s|it\s+is|that\s+is|now)|\?(?:\s|\\n){1,4}+(?:it['’]?s|it\s+is|that['’]?s|that\s+is))\*{0,3}\s++"
        rf"(?:(?:now|still|just|currently|set\s++to)\s++)?{_OPEN}(?P<value>\S{{3,80}})",
        re.IGNORECASE,
    )


@cache
def _pointed() -> re.Pattern[str]:
    """ "password → X", and a row of a table without a header: "| password | X |"."""
    return re.compile(rf"(?:{_NOUN})\b\*{{0,3}}\s*+(?:→|->|=>|\|)\s*+{_OPEN}(?P<value>[^\s|]{{5,80}})", re.IGNORECASE)


@cache
def _told_abroad() -> re.Pattern[str]:
    """ "la contraseña del wifi es X", "le mot de passe, c'est X", "пароль — X", "passordet er X"."""
    return re.compile(
        rf"(?:passwor[dt]|{'|'.join(ABROAD)})[^\W\d]{{0,3}}"
        r"(?:\s++(?:del|de\s++la|de|du|des|da|do|für|fuer|vom|von|van|zum|til|till|на|от|для|к)\s++[\w .@'’/-]{1,40}?)?"
        r"(?:,?\s++(?:es|est|este|c['’]est|é|è|is|ist|heißt|heisst|lautet|war|jest|to|är|er|on|je|је|это|такой|היא|هي|là)"
        r"(?:\s++(?:ahora|maintenant|jetzt|nun|теперь))?(?:\s*+:)?|\s++[—–-]|\s*+:)\s++"
        r"(?P<open>[\"'“„«‘`*]{0,3})\s?(?P<value>\S{5,80})",
        re.IGNORECASE,
    )


@cache
def _told_east() -> re.Pattern[str]:
    """ "パスワードはXです", "密码是X", "비밀번호는 X": the value ends before the next letter of the sentence."""
    return re.compile(
        r"(?:パスワード|密码|密碼|비밀번호)\s?(?:(?:は|が|是|为|為|는|은)\s?[:：]?|[:：])\s?[「『“\"'`]{0,2}(?P<value>[!-~]{5,80})"
    )


@cache
def _told_key() -> re.Pattern[str]:
    """ "secret is X", "API key for the shop: X", "the client secret X"."""
    return re.compile(
        rf"{_KEY}(?:`|\b)(?:\s++(?:for|of|on|to)\s++[\w .@'’/-]{{1,40}}?)?"
        r"(?P<verb>\s++(?:is|was|=|from|to|with\s++the\s++value|is\s++set\s++to)(?:\s*+:)?|\s*+[:=]|"
        r"\s++\((?:it['’]?s|it\s+is|that\s+is)|\?(?:\s|\\n){1,4}+(?:it['’]?s|it\s+is|that['’]?s|that\s+is)|)\s++"
        rf"{_OPEN}(?P<value>[\w+/=.~!@#$%^&*-]{{10,80}})",
        re.IGNORECASE,
    )


@cache
def _told_key_abroad() -> re.Pattern[str]:
    """ "Der API-Schlüssel ist X", "el token de acceso es X", "APIキー：X"."""
    return re.compile(
        rf"(?:token|secret|{'|'.join(_KEYS_ABROAD)})[^\W\d]{{0,3}}"
        r"(?:(?:\s++(?:de\s|di\s|da\s|do\s|d['’]|per\s|für\s|для\s)?[^\W\d]{2,12}){0,3}"
        r"(?:,?\s++(?:es|est|c['’]est|é|è|ist|is|lautet|jest|to|är|это|—|–|-)(?:\s*+[:：])?|\s?[:：])\s*+|\s?(?:は|が|是|为|為|는|은)\s?)"
        r"[\"'“„«‘`*「『]{0,3}(?P<value>[!-~]{10,80})",
        re.IGNORECASE,
    )


@cache
def _adjacent() -> re.Pattern[str]:
    """ "password X", "the passphrase X", "мой пароль X", "şifrem X"; the value has a digit."""
    return re.compile(
        rf"(?:password|passwd|passphrase|passcode|pwd|pw|(?:{'|'.join(ABROAD)})[^\W\d]{{0,3}})[^\S\t]++{_OPEN}(?P<value>(?=[^\s]{{0,60}}[0-9])\S{{6,80}})",
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
        rf"(?<!\S){_OPEN}(?P<value>[^\s\"'“‘`]{{5,80}})[\"'”’`]{{0,3}}\s+(?:as|is|for)\s+"
        r"(?:the|my|our|your|a|its|her|his|their)\s+(?:[\w-]{1,20}\s+){0,2}\Z|"
        rf"(?<!\S){_OPEN.replace('open', 'opened')}(?P<alone>[^\s\"'“‘`]{{5,80}})"
        rf"[\"'”’`]{{0,3}}\s+(?:als|comme|como|come|som|jako|как)\s+\Z",
        re.IGNORECASE,
    )


@cache
def _pair() -> re.Pattern[str]:
    """ "credentials are admin:X", "log in with admin / X", "log in as ann with X"."""
    return re.compile(
        r"(?:log\s?in|sign\s?in)\s+as\s+[\w.@+-]{2,60}\s+(?:with|using|and)\s+(?P<with>(?=[^\s]{0,60}[0-9])[^\s/:]{6,80})|"
        r"(?:credentials?|creds|log\s?in|sign\s?in|"
        rf"{'|'.join(_PAIRS_ABROAD)})\b"
        r"[^\n:/]{0,40}?[\s:\"'`(]{1,3}(?!(?:sha\d{1,3}|md5|blake\d\w?):)[\w.@+-]{2,60}\s?[:/]\s?"
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


@cache
def _codes() -> re.Pattern[str]:
    """ "recovery codes: 25b02-25cf7 63c2f-e5102", "license key 3CQ2M-LY9IJ-DG119": letters and digits in groups."""
    code, item = r"[A-Za-z0-9]{4,8}(?:-[A-Za-z0-9]{4,8}){1,8}", r"(?:(?:[0-9]{1,2}[.)]|[*•-])[ \t]{1,3})?"
    return re.compile(
        r"(?:recovery|backup|licen[sc]e)[ _-]?(?:codes?|keys?)\\{0,4}[\"']?\s{0,3}"
        rf"(?:(?:is|are):?|[:=]|)\s{{0,3}}{item}[\[\"'`\\]{{0,6}}"
        rf"(?P<value>(?=[^\s]{{0,40}}[0-9]){code}(?:[\s,;\"'\\]{{1,6}}{item}{code}){{0,30}})(?![\w-])",
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
        pointed = _pointed().match(text, at)
        if pointed and _stands_out(_bare(pointed["value"])):
            return _span(pointed, "password")
        grouped = _grouped().match(text, at)
        if grouped:
            return *grouped.span("value"), "password"
        beside = _adjacent().match(text, at)
        if beside and looks_like_a_password(_bare(beside["value"])):
            return _span(beside, "password")
        return _before_its_name(text, at, earliest, "password", looks_like_a_password)
    key = _told_key().match(text, at)
    is_secret = _is_generated if key and key["verb"] else _stands_out
    if key and not ID_FIELD().match(key["value"]) and is_secret(_bare(key["value"])):
        return _span(key, "secret")
    key = _told_key_abroad().match(text, at) if _may_be_abroad(text[at : at + 60]) else None
    if key and _is_generated(_bare(key["value"])):
        return _span(key, "secret")
    if _KEY_NAME().match(text, at) and (found := _before_its_name(text, at, earliest, "secret", _is_generated)):
        return found
    pair = _pair().match(text, at)
    group = "with" if pair and pair["with"] else "value"
    if pair and looks_like_a_password(_bare(pair[group])):
        return _span(pair, "password", group)
    if codes := _codes().match(text, at):
        return *codes.span("value"), "recovery code"
    phrase = _phrase().match(text, at)
    return (*phrase.span("value"), "seed phrase") if phrase else None


def _may_be_abroad(text: str) -> bool:
    small = text.lower()
    return small.startswith(_KEYS_ABROAD) or (
        small.startswith(("token", "secret")) and any(verb in small for verb in _VERBS_ABROAD)
    )


def _before_its_name(
    text: str, at: int, earliest: int, kind: str, is_secret: Callable[[str], bool]
) -> tuple[int, int, str] | None:
    """A secret that is told before its name, which is at ``at``: "use X as the password", "X for the API key"."""
    start = max(earliest, at - 140)
    before = _as_password().search(text[start:at])
    if before is None:
        return None
    group = "alone" if before["alone"] else "value"
    weak = re.search(r"\sfor\s", before[0]) is not None
    value = _bare(before[group])
    if not is_secret(value) or (weak and not _stands_out(value)):
        return None
    first, end, _ = _span(before, kind, group)
    return first + start, end + start, kind


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
    if match["noun"].lower() == "pass" and match["verb"].split()[:1] in (["to"], ["from"]):
        return _stands_out(value)  # "pass to utf8_decoder", and the statement of Python before "from base64 import …"
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


def _is_generated(value: str) -> bool:
    """Whether ``value`` looks like a key, or like a password with letters, digits and signs."""
    return (_is_key(value) or _stands_out(value)) and (looks_like_a_password(value) or value.isalnum())


def _stands_out(value: str) -> bool:
    """Whether ``value`` looks generated without a word beside it that says so."""
    if is_random(value) or is_jumble(value):
        return True
    signs, digits = set(value) & set("!@#$%^&*"), any(map(str.isdigit, value))
    mixed = not value.islower() and not value.isupper()
    return len(value) >= 8 and bool(signs) and digits and mixed and looks_like_a_password(value)


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
        or value.startswith(("${", "$(", "<", "{", "[", "(", "/", "http", "#", "--", "~", "%(", "$HOME/", "%s:"))
    ):
        return False
    value = value.rstrip("=")
    if any(sign in value for sign in ("(", "[", "{", "<", "=", "\\", "://", "->", "…", "...")) or set(value) <= set(
        "*x.•-_X"
    ):
        return False
    if (value[0] == "$" and value[1:].isidentifier()) or _VERSION().fullmatch(value):
        return False
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    signs = any(one in "!@#$%^&*+~?" for one in value[:-1]) or value[-1] in "@#$%^&*"
    return letters and (digits or signs or is_jumble(value))
