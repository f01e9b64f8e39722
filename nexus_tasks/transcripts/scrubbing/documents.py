"""Scrub the secrets of documents whose kind says that they are secret, not the names in them.

- Kubernetes: every value of the data of a ``kind: Secret``.
- Lines of ``.pgpass``.
"""

from __future__ import annotations

import re
from functools import cache

from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder

_BREAK = r"(?:\r?\n|\\{1,4}n)"  # a line break, which may be escaped
_START = r"(?:\b|(?<=\\[nrt]))"  # of a word, which may stand behind an escaped line break
_QUOTE = r"\\{0,6}[\"']"


@cache
def _pgpass() -> re.Pattern[str]:
    return re.compile(
        r"(?:^|(?<=[\s\"'])|(?<=\\n))[\w.*-]{1,100}:(?:\*|54\d\d|6432):[\w.*-]{1,60}:[\w.*-]{1,60}:(?P<value>[^\s:\"'\\\[]{3,200})",
        re.MULTILINE,
    )


def scrub_documents(text: str) -> str:
    """``text`` without the secrets of Kubernetes and of ``.pgpass``."""
    lowered = text.lower()
    if "secret" in lowered and "data" in lowered and "kind" in lowered:
        text = _scrub_kubernetes(text)
    if ":*:" in text or ":54" in text or ":6432:" in text:
        text = _pgpass().sub(lambda match: _replaced(match, "password"), text)
    return text


def _replaced(match: re.Match[str], kind: str) -> str:
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return f"{match[0][:start]}{placeholder(kind)}{match[0][end:]}"


# --- Kubernetes -------------------------------------------------------------------------------------------------------
@cache
def _secret_kind() -> re.Pattern[str]:
    return re.compile(rf"{_START}kind(?:{_QUOTE})?\s{{0,4}}:\s{{0,4}}(?:{_QUOTE})?Secret\b")


@cache
def _secret_data() -> re.Pattern[str]:
    """The block ``data`` of a secret: a JSON object without objects in it, or the indented lines of YAML."""
    line = rf"(?:{_BREAK}[ \t]{{1,20}}(?:{_QUOTE})?[\w.-]{{1,100}}(?:{_QUOTE})?[ \t]{{0,4}}:[^\n\\]{{0,4000}})"
    return re.compile(
        rf"{_START}(?:stringData|data)(?:{_QUOTE})?\s{{0,4}}:"
        rf"(?:\s{{0,40}}\{{[^{{}}]{{0,20000}}\}}|[ \t]{{0,4}}{line}{{1,100}})"
    )


@cache
def _secret_pair() -> re.Pattern[str]:
    return re.compile(
        rf"(?P<name>[\w.-]{{1,100}})(?:{_QUOTE})?[ \t]{{0,4}}:\s{{0,4}}(?:{_QUOTE})?"
        rf"(?P<value>[^\s\"',{{}}\\|>]{{3,8000}})"
    )


def _scrub_kubernetes(text: str) -> str:
    """Replace all values of the data of Kubernetes' secrets. A document that is no secret is kept."""
    if not _secret_kind().search(text):
        return text
    documents = re.split(r"(\n---[^\n]*)", text)
    return "".join(_secret_data().sub(_without_data, one) if _secret_kind().search(one) else one for one in documents)


def _without_secret(match: re.Match[str]) -> str:
    return match[0] if match["value"] == MARK else _replaced(match, "kubernetes secret")


def _without_data(match: re.Match[str]) -> str:
    head, sign, rest = match[0].partition(":")
    return head + sign + _secret_pair().sub(_without_secret, rest)
