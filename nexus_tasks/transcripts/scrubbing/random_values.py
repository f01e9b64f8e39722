"""Scrub values that look generated, when a name or a sentence beside them says that they are secret.

The rule does not depend on the syntax between the name and the value. It works in assignments, JSON, YAML, XML, calls
and sentences.
"""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.names import names_a_secret
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder
from nexus_tasks.transcripts.scrubbing.randomness import is_random

_BEFORE, _AFTER = 140, 60  # characters around a value that can say what it is


@cache
def _candidate() -> re.Pattern[str]:
    return re.compile(r"(?<![A-Za-z0-9+/_=.~-])[A-Za-z0-9+_=.~%!$/-]{15,}")


# The words of a token's prefix, such as `live` in `sk_live_`.
_PREFIX = lazy(r"(?:[A-Za-z][A-Za-z0-9]{0,11}[_-]){1,3}")
_REST = lazy(r"[A-Za-z0-9_=-]+")
_TELLING = frozenset(
    """
    sk rk pk ak pat apikey apitoken secret live tok token key api server private production prod sandbox auth access
    sec skey pw pass hook admin console
    """.split()  # noqa: SIM905
)
# The first words of ids that many programs print: of messages, requests, payments and machines. They are not secret.
_IDS = frozenset(
    """
    toolu req msg resp run thread asst call file evt cus price prod sub in pi ch seti batch step chatcmpl gen trace
    span ses sess session user usr org acct account conv item rs fc vs snap vol ami subnet sg vpc eni img image proj
    project obj object blk txn tx ord order job task node pod build dpl deploy deployment cmpl event id uid uuid hash
    sha sha1 sha256 sha512 md5 commit blob tree cache chunk layer digest etag nonce csrf state code cursor page next
    device team space workspace doc document block comment ticket issue card list board member inv invoice pm src cs
    link ref row rec record table tbl view field fld app bot channel group role perm lib module mod pkg test tmp temp
    index idx styles style main vendor runtime assets asset static tooluse
    """.split()  # noqa: SIM905
)
# The value's own name in `<token>…`, `('API_KEY', '…')` and `--api-key …`. A name before a sign is found without these.
_ELEMENT = lazy(r"<([A-Za-z_][\w.:-]{0,60})[^<>]{0,60}>\s{0,20}\Z")
_ARGUMENT = lazy(r"[\"']([A-Za-z_][\w.-]{0,60})\\{0,4}[\"']\s{0,4},\Z")
_OPTION = lazy(r"(?<![\w-])-{1,2}([a-z][\w-]{0,40})[ =]{1,2}\Z")
_SIGNS = ("=", ":", "|", "=>", "<-")
_GENERIC = lazy(r"(?:value|val|default|data|content|text|string|stringvalue|output|result|is|are|was|here|as)\Z", re.I)
# A name before a value that has the generic name `value`: `name: API_TOKEN`, `"db_key": {`, `variable "db_key" {`.
_OUTER_NAME = lazy(
    r"(?:\b(?:name|key|id|Name|Key)[\"'\\]{0,6}\s{0,4}[:=]\s{0,4}[\"'\\]{0,6}(?P<named>[A-Za-z_][\w.-]{0,60})|"
    r"(?P<outer>[A-Za-z_][\w.-]{0,60})[\"'\\]{0,6}\s{0,4}(?:[:=]\s{0,4})?\{)[^{}]{0,80}\Z"
)
# The name of a setting in a sentence: "the SHOP_ADMIN_KEY is", "set SHOP_ADMIN_KEY to".
_SETTING = lazy(
    r"(?<![\w.-])(?P<name>[A-Za-z][A-Za-z0-9]{0,30}(?:_[A-Za-z0-9]{1,30}){1,6})[\"'`*]{0,4}\s{1,4}(?:is|was|to|as)"
    r"(?:\s{1,4}(?:now|still|currently))?\s{0,4}:?\s{0,4}\Z"
)
# A sentence that says that a value is secret.
_THING = (
    r"(?:pass(?:word|code|phrase|wd)?|pwd|secret|token|credentials?|creds|bearer|"
    r"(?:api|access|secret|private|license|app|account|auth|service|admin|signing|encryption|client|deploy|webhook|"
    r"integration|master|session|personal|live|test|prod|production|staging|account|user|the|my|our|your|new|this|old)"
    r"[ _-]{1,2}keys?|apikey|webhook|cookie|pat|jwt|signature|license|psk|"
    r"(?<=\w )(?<!cache )(?<!primary )(?<!foreign )(?<!sort )(?<!routing )(?<!object )key)"
)
_SENTENCE_BEFORE = lazy(rf"\b{_THING}\b(?P<gap>[^\n\d={{}}<>]{{0,50}})\Z", re.IGNORECASE)
_SENTENCE_AFTER = lazy(
    rf"[\"'`*)]{{0,4}},?[ \t]{{1,3}}(?:(?:is|as|for|was|are)\b|\()[^\n\d={{}}]{{0,30}}?\b{_THING}\b", re.IGNORECASE
)
_TELLS = lazy(
    r"(?:\A|\b(?:is|was|are|to|with)\s{0,50}+(?:(?:now|still|currently|just)\s{1,4})?:?|[:,]|->|→)[\s\"'`(*]{0,50}\Z",
    re.IGNORECASE,
)
_OPEN_SENTENCE = lazy(
    r"\b(?:sha\d*|md5|hash|digest|checksum|commit|revision|etag|uuid|guid|fingerprint|public|id|ids|url|request|trace)\b|://",
    re.IGNORECASE,
)


def scrub_random_values(text: str) -> str:
    """``text`` without generated values that a name or a sentence marks as secret."""
    parts, done = list[str](), 0
    for match in _candidate().finditer(text):
        start, end = match.span()
        value = match[0]
        value = value.rstrip(".,;:!/-")
        end = start + len(value)
        # In `name=value` without spaces the candidate contains the name.
        name, sign, rest = value.partition("=")
        if sign and rest.strip("=") and name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            start, value = end - len(rest), rest
        if sign and name.startswith("sha"):
            continue  # a checksum
        if start < done or not is_random(value) or MARK in text[max(0, start - 12) : start]:
            continue
        if text[max(0, start - 4) : start].endswith((" h1:", "\th1:")):
            continue  # a checksum in go.sum, behind the name of a module such as `golang.org/x/oauth2`
        if text[end : end + 1] == "(" and value.replace(".", "").isidentifier():
            continue  # the name of a function that is called
        kind = "token" if _has_telling_prefix(value) else _kind(text, start, end)
        if kind:
            parts += [text[done:start], placeholder(kind)]
            done = _whole(text, end)
    return "".join((*parts, text[done:])) if parts else text


def _whole(text: str, end: int) -> int:
    """The end of a secret of two parts with a colon or a ``|`` between them, such as an id and its key."""
    more = _candidate_part().match(text, end)
    return more.end() if more and is_random(more[1]) else end


@cache
def _candidate_part() -> re.Pattern[str]:
    return re.compile(r"[:|]([A-Za-z0-9+_=~-]{15,})")


def _has_telling_prefix(value: str) -> bool:
    """Whether ``value`` begins like a token: ``name_live_``, ``sk-name-``, or a short word that no id has."""
    prefix = _PREFIX().match(value)
    if prefix is None:
        return False
    rest = value[prefix.end() :]
    if not _REST().fullmatch(rest) or not is_random(rest):
        return False
    if not all(word.islower() or word.isupper() for word in re.split("[_-]", prefix[0][:-1])):
        return False  # the beginning of a base64 text, not the words of a prefix
    words = re.split("[_-]", prefix[0].lower())
    if len(rest) >= 18 and not _TELLING.isdisjoint(words):
        return True
    if not rest.isalnum() or rest.islower() or rest.isupper():
        return False
    # Many ids have a time in front, and so begin with 01.
    return len(rest) >= 36 or (len(rest) >= 20 and words[0] not in _IDS and not rest.startswith("01"))


def _kind(text: str, start: int, end: int) -> str | None:
    """The kind of the secret between ``start`` and ``end``. ``None`` if nothing says that it is secret."""
    before = text[max(0, start - _BEFORE) : start]
    name = _own_name(before)
    if name:
        if not _GENERIC().match(name.split()[-1]):
            return names_a_secret(name)
        outer = _OUTER_NAME().search(before)
        if outer:
            return names_a_secret(outer["named"] or outer["outer"])
    line = before.rpartition("\n")[2]
    setting = _SETTING().search(line.rstrip("\"'`(*"))
    if setting:
        return names_a_secret(setting["name"])
    said = _SENTENCE_BEFORE().search(line)
    if said and not _OPEN_SENTENCE().search(said["gap"]):
        value = text[start:end]
        # Ids and hashes stand in many sentences about tokens. A key in capital and small letters is no id.
        if not (value.islower() or value.isupper()) or _TELLS().search(said["gap"]):
            return "secret"
    after = text[end : end + _AFTER]
    return "secret" if _SENTENCE_AFTER().match(after) else None


def _own_name(before: str) -> str | None:
    """The name in ``before`` that is the name of the value behind ``before``. ``None`` if the value has no name."""
    head = before.rstrip("\"'`\\([{*")
    if head[-1:] in ("b", "f", "r", "u") and not head[-2:-1].isalnum() and len(head) < len(before):
        head = head[:-1]  # the prefix of a string in Python
    spaced = head.rstrip()
    if spaced.endswith(_SIGNS):
        spaced = spaced.rstrip("=>:<-| \t").rstrip("\"'`\\]) ")
        at, earliest = len(spaced), max(0, len(spaced) - 60)
        while at > earliest and (spaced[at - 1].isalnum() or spaced[at - 1] in "_. -"):
            at -= 1
        return spaced[at:].strip(" .-") or None
    if spaced.endswith(">"):
        found = _ELEMENT().search(head[-140:])
    elif spaced.endswith(","):
        found = _ARGUMENT().search(spaced[-75:])
    else:
        found = _OPTION().search(head[-48:]) if "-" in head[-48:] else None
    return found[1] if found else None
