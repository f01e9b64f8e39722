"""Scrub secrets that are known by their shape: tokens with a vendor's prefix, and private keys."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from nexus_tasks.transcripts.scrubbing.placeholder import placeholder


# --- tokens -----------------------------------------------------------------------------------------------------------
class Shape(NamedTuple):
    """A kind of token. ``pattern`` is tried only when the text contains one of the texts in ``marks``."""

    kind: str
    marks: tuple[str, ...]
    pattern: str


# The patterns follow the vendors' descriptions of their tokens and GitHub's list of supported secret scanning patterns.
SHAPES = (
    Shape("anthropic key", ("sk-ant-",), r"sk-ant-[A-Za-z0-9_-]{16,}"),
    Shape("openai key", ("sk-",), r"sk-(?=[A-Za-z_-]{0,200}[0-9])(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    Shape("aws access key", ("AKIA", "ASIA", "ABIA", "ACCA"), r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    Shape("aws bedrock key", ("ABSK",), r"ABSK[A-Za-z0-9+/=]{100,}"),
    Shape("github token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{30,}"),
    Shape("github token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{22,}"),
    Shape(
        "gitlab token",
        ("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glsoat-", "glagent-"),
        r"gl(?:pat|dt|rt|ptt|cbt|soat|agent)-[A-Za-z0-9_.-]{20,}",
    ),
    Shape(
        "slack token",
        ("xoxb-", "xoxp-", "xoxa-", "xoxo-", "xoxr-", "xoxs-", "xoxe"),
        r"xox[abeoprs][.-][A-Za-z0-9.-]{10,}",
    ),
    Shape("slack token", ("xapp-",), r"xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    Shape("slack webhook", ("hooks.slack.com/",), r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}"),
    Shape("discord webhook", ("/api/webhooks/",), r"/api/webhooks/[0-9]{10,}/[A-Za-z0-9_-]{20,}"),
    Shape("stripe key", ("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}"),
    Shape("stripe webhook secret", ("whsec_",), r"whsec_[A-Za-z0-9+/=]{20,}"),
    Shape("google api key", ("AIza",), r"AIza[A-Za-z0-9_-]{35}"),
    Shape("google client secret", ("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    Shape("google access token", ("ya29.",), r"ya29\.[A-Za-z0-9_-]{20,}"),
    Shape(
        "azure account key",
        ("AccountKey=", "SharedAccessKey="),
        r"(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40,}={0,2}",
    ),
    Shape("azure client secret", ("8Q~",), r"8Q~[A-Za-z0-9_~.-]{30,}"),
    Shape("digitalocean token", ("dop_v1_", "doo_v1_", "dor_v1_"), r"do[por]_v1_[a-f0-9]{40,}"),
    Shape("heroku key", ("HRKU-",), r"HRKU-[A-Za-z0-9_-]{30,}"),
    Shape("npm token", ("npm_",), r"npm_[A-Za-z0-9]{30,}"),
    Shape("pypi token", ("pypi-",), r"pypi-[A-Za-z0-9_-]{50,}"),
    Shape("sendgrid key", ("SG.",), r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}"),
    Shape("mailgun key", ("key-",), r"key-[a-f0-9]{32}(?![A-Za-z0-9])"),
    Shape("twilio key", ("SK",), r"SK[a-f0-9]{32}(?![A-Za-z0-9])"),
    Shape("hugging face token", ("hf_",), r"hf_[A-Za-z0-9]{30,}"),
    Shape("replicate token", ("r8_",), r"r8_[A-Za-z0-9]{30,}"),
    Shape("groq key", ("gsk_",), r"gsk_[A-Za-z0-9]{30,}"),
    Shape("databricks token", ("dapi",), r"dapi[a-f0-9]{32}"),
    Shape("vault token", ("hvs.", "hvb.", "hvr."), r"hv[sbr]\.[A-Za-z0-9_-]{20,}"),
    Shape("doppler token", ("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{30,}"),
    Shape("linear key", ("lin_api_",), r"lin_api_[A-Za-z0-9]{30,}"),
    Shape("notion token", ("ntn_",), r"ntn_[A-Za-z0-9]{40,}"),
    Shape("notion token", ("secret_",), r"secret_[A-Za-z0-9]{43}(?![A-Za-z0-9])"),
    Shape("atlassian token", ("ATATT3",), r"ATATT3[A-Za-z0-9_=-]{50,}"),
    Shape("shopify token", ("shpat_", "shpca_", "shppa_", "shpss_"), r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    Shape("square token", ("sq0",), r"sq0[a-z]{3}-[A-Za-z0-9_-]{22,}"),
    Shape("figma token", ("figd_",), r"figd_[A-Za-z0-9_-]{30,}"),
    Shape("postman key", ("PMAK-",), r"PMAK-[A-Za-z0-9-]{50,}"),
    Shape("new relic key", ("NRAK-", "NRII-"), r"NR(?:AK|II)-[A-Za-z0-9_-]{20,}"),
    Shape("sentry token", ("sntrys_", "sntryu_"), r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    Shape("grafana token", ("glsa_", "glc_"), r"gl(?:sa|c)_[A-Za-z0-9+/=_-]{30,}"),
    Shape("supabase token", ("sbp_",), r"sbp_[a-f0-9]{40}"),
    Shape("planetscale token", ("pscale_",), r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.=-]{30,}"),
    Shape("docker token", ("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    Shape("dropbox token", ("sl.",), r"sl\.[A-Za-z0-9_-]{100,}"),
    Shape("terraform token", (".atlasv1.",), r"\.atlasv1\.[A-Za-z0-9_=-]{50,}"),
    Shape("age key", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    Shape("telegram token", (":AA",), r":AA[A-Za-z0-9_-]{33,}"),
    Shape(
        "jwt",
        ("eyJ",),
        r"eyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,40000}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+){0,2}",
    ),
)
# In a token of these kinds, the mark is in the middle of the token. The letters before the mark belong to the secret.
_INNER = frozenset(("azure client secret", "terraform token", "telegram token", "discord webhook"))
# The marks of these kinds also occur at the end of ordinary words ("task-…", "monkey-…"). The marks of all other kinds
# occur in no ordinary word.
_WORDLIKE = frozenset(
    ("openai key", "mailgun key", "twilio key", "sendgrid key", "vault token", "doppler token", "dropbox token")
)
_ESCAPED = re.compile(r"\\[nrtbf]|\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}")
# The text between two literals that code joins, for example in "AKIA" + "…" or 'sk-' 'ant'. The code may be a part of a
# JSON text and then has escaped quotes.
_JOINT = r"\\{0,4}[\"']\s{0,40}(?:[+.&]\s{0,40}|\\\s{0,40}|\\{1,4}n\s{0,40})?(?:[fbr]\b)?\\{0,4}[\"']|\\\r?\n\s{0,40}"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def scrub_tokens(text: str) -> str:
    """``text`` without tokens of a known shape, even if code joins a token from several literals."""
    # Replace tokens of joined literals first. Otherwise only the first literal would be replaced, and the rest of the
    # token, which has no known shape, would stay in the text.
    if '"' in text or "'" in text or "\\\n" in text:
        text = _scrub_joined(text)
    spans = _spans(text)
    return _replaced(text, spans) if spans else text


def _spans(text: str) -> list[tuple[int, int, str]]:
    """The start, end and kind of every token, in the order of the text. The spans do not overlap."""
    found = list[tuple[int, int, str]]()
    for shape in SHAPES:
        if any(mark in text for mark in shape.marks):
            for match in _compiled(shape.pattern).finditer(text):
                start = match.start()
                if shape.kind in _INNER:
                    start = _token_start(text, start)
                elif shape.kind in _WORDLIKE and _inside_a_word(text, start):
                    continue
                found.append((start, match.end(), shape.kind))
    found.sort(key=lambda span: (span[0], -span[1]))
    separate, end = list[tuple[int, int, str]](), 0
    for span in found:
        if span[0] >= end:
            separate.append(span)
            end = span[1]
    return separate


def _inside_a_word(text: str, at: int) -> bool:
    """Whether the character before ``at`` is a letter or digit. The ``n`` of an escape ``\\n`` does not count."""
    if not at or not text[at - 1].isalnum():
        return False
    return not any(_ESCAPED.fullmatch(text, at - length, at) for length in (2, 3, 6) if at >= length)


def _token_start(text: str, at: int) -> int:
    """The start of the token that contains the position ``at``, at most 64 characters before ``at``."""
    earliest = max(0, at - 64)
    while at > earliest and (text[at - 1].isalnum() or text[at - 1] in "_-"):
        at -= 1
    return at


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts, done = list[str](), 0
    for start, end, kind in spans:
        parts += [text[done:start], placeholder(kind)]
        done = end
    return "".join((*parts, text[done:]))


def _scrub_joined(text: str) -> str:
    """Replace the tokens that ``text`` contains after its joined literals are put together."""
    joints = list(_compiled(_JOINT).finditer(text))
    if not joints:
        return text
    pieces, starts, done, length = list[str](), list[tuple[int, int]](), 0, 0
    for joint in (*joints, None):
        piece = text[done : joint.start() if joint else len(text)]
        starts.append((length, done))  # (position in the joined text, position in ``text``)
        pieces.append(piece)
        length += len(piece)
        done = joint.end() if joint else done
    spans = _spans("".join(pieces))
    if not spans:
        return text
    from bisect import bisect_right

    def original(position: int) -> int:
        joined, start = starts[bisect_right(starts, (position, len(text) + 1)) - 1]
        return start + position - joined

    return _replaced(text, [(original(start), original(end - 1) + 1, kind) for start, end, kind in spans])


# --- private keys -----------------------------------------------------------------------------------------------------
_PRIVATE_KEY = "private key"
_LINE_CHARACTERS = 400  # the longest line of a key, in characters, with quotes and escaped line breaks
_KEY_CHARACTERS = 40_000  # the most characters between BEGIN and END; a key of 16,384 bits has 13,000


@cache
def _key_marks() -> re.Pattern[str]:
    return re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")


@cache
def _key_body() -> re.Pattern[str]:
    """The pattern of a key's body: base64, headers, quotes and line breaks. The line breaks may be escaped."""
    return re.compile(
        r"(?:\\{1,4}[nrt]|[\s\"'+,\\]|[A-Za-z0-9/=+]{16,}|[A-Za-z0-9/+]{0,15}={1,2}|"
        r"(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]{0,200})*+"
    )


def scrub_private_keys(text: str) -> str:
    """``text`` without private keys in the formats PEM, OpenSSH and PGP.

    Keys with a missing beginning or end, and keys with escaped line breaks, are replaced too.
    """
    if " PRIVATE KEY" not in text:
        return text
    parts, done, begin = list[str](), 0, None
    for mark in _key_marks().finditer(text):
        if mark[1] == "BEGIN":
            if begin is not None:  # the previous key has no END
                done = _cut_unended_key(text, done, begin, mark.start(), parts)
            begin = mark
            continue
        if begin is not None and mark.start() - begin.end() <= _KEY_CHARACTERS:
            parts += [text[done : begin.start()], placeholder(_PRIVATE_KEY)]
        else:
            if begin is not None:
                done = _cut_unended_key(text, done, begin, mark.start(), parts)
            # The text does not contain the BEGIN of this key. Search for the first line of the key that is in the text,
            # but not before the end of the previous key.
            parts += [text[done : _start_of_unbegun_key(text, done, mark.start())], placeholder(_PRIVATE_KEY)]
        done, begin = mark.end(), None
    if begin is not None:
        done = _cut_unended_key(text, done, begin, len(text), parts)
    return "".join((*parts, text[done:]))


def _cut_unended_key(text: str, done: int, begin: re.Match[str], limit: int, parts: list[str]) -> int:
    """Replace a key that has a BEGIN and no END. Returns the position after the key."""
    body = _key_body().match(text, begin.end(), min(limit, begin.end() + _KEY_CHARACTERS))
    parts += [text[done : begin.start()], placeholder(_PRIVATE_KEY)]
    end = body.end() if body else begin.end()
    while end > begin.end() and text[end - 1].isspace():
        end -= 1  # keep the line break after the key in the text
    return end


def _start_of_unbegun_key(text: str, earliest: int, end: int) -> int:
    """The start of the base64 lines that end at ``end``. They are the last lines of a key whose BEGIN is missing."""
    at, earliest = end, max(earliest, end - _KEY_CHARACTERS)
    while at > earliest:
        floor = max(earliest, at - _LINE_CHARACTERS)
        # A line starts after a line break, which may be escaped, or at the start of the text.
        found = max(text.rfind("\n", floor, at - 1) + 1, text.rfind("\\n", floor, at - 2) + 2)
        line = found if found > floor or floor > earliest else floor
        words = text[line:at].replace("\\n", " ").replace("\\r", " ").translate(_JOINING).split()
        words = [word for word in words if word != "+"]
        last = at == end  # only a key's last line may be shorter than 16 characters
        if line >= at or line < floor or not all(_is_base64(word) and (last or len(word) >= 16) for word in words):
            break
        at = line
    return at


_JOINING = str.maketrans("\"',\\", "    ")


def _is_base64(word: str) -> bool:
    return word.translate(_BASE64_SIGNS).isalnum() and word.isascii()


_BASE64_SIGNS = str.maketrans("", "", "+/=")
