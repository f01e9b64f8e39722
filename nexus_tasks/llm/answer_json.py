"""Read a model's reply as the JSON of an answer, and repair the common flaws of models without structured output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import ValidationError

from nexus_tasks.llm.base import AnswerT
from nexus_tasks.llm.server_errors import redact

# Matches lone surrogates, and control characters except tab and line feed. UTF-8 and Postgres cannot hold a surrogate.
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)  # of models that reason in their reply
_UNKNOWN = "extra_forbidden"  # the last part of the place of such a fault is the model's own word
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(?=\s*+[}\]])")
# The second group is empty when the string does not end. The expression takes such a string, too: a search that began
# again at each of its escaped quotes would take quadratic time.
_STRING_OR_TRAILING_COMMA = re.compile(rf'("(?:[^"\\]|\\.)*+("|))|{_TRAILING_COMMA.pattern}', re.DOTALL)
_MOST_STARTS = 50  # code fences of a text, or braces at which an object may begin; chosen by hand


def parse(text: str, answer: type[AnswerT]) -> AnswerT:
    """Parse ``text`` as JSON, remove control characters from its strings, and validate it as an ``answer``.

    When ``text`` is not JSON, the answer is the one object in it that fits ``answer``, which may stand in a code fence
    or between sentences. These flaws are repaired: a trailing comma, a field that the schema does not have, and a list
    in place of the object whose only required field is a list.

    Raises:
        ValueError: the text has no JSON, is nested too deeply, has two different answers, or does not fit ``answer``
            (``ValidationError``).
    """
    try:
        return _parse(_THOUGHTS.sub("", text, count=1), answer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parse(text: str, answer: type[AnswerT]) -> AnswerT:
    try:
        # strict=False accepts raw control characters in strings, and clean removes them.
        value = json.loads(text, strict=False)
    except ValueError as error:
        return _among(text, answer, error)
    return _fit(value, answer)


def _among(text: str, answer: type[AnswerT], error: ValueError) -> AnswerT:
    """The one answer in a text that is not JSON. Two different ones may be a quotation and the answer: neither is."""
    found: AnswerT | None = None
    why = error
    for value in _values(_STRING_OR_TRAILING_COMMA.sub(_mended, text)):
        try:
            fitting = _fit(value, answer)
        except ValidationError as unfit:
            why = unfit if why is error else why
        else:
            if found is not None and fitting != found:
                raise ValueError("two different answers")
            found = fitting
    if found is None:
        raise why
    return found


def _mended(match: re.Match[str]) -> str:
    """What replaces a match: a string stays, and a trailing comma goes.

    A quotation mark that is never closed begins no string, so the trailing commas behind it go too.
    """
    said = match[1] or ""
    return said if match[2] or not said else _TRAILING_COMMA.sub("", said)


def _values(text: str) -> Iterator[Any]:
    """The JSON values of code fences, or else the objects of the text."""
    blocks = islice(_FENCED.finditer(text), _MOST_STARTS)
    fenced = [value for block in blocks if (value := _loaded(block[1])) is not None]
    if fenced:
        yield from fenced
        return
    decoder = json.JSONDecoder(strict=False)
    start = text.find("{")
    for _ in range(_MOST_STARTS):
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            start = text.find("{", start + 1)
        else:
            yield value
            start = text.find("{", end)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return None


def _fit(value: Any, answer: type[AnswerT]) -> AnswerT:
    value = clean(value)
    required = [name for name, field in answer.model_fields.items() if field.is_required()]
    if isinstance(value, list) and len(required) == 1:
        value = {required[0]: value}
    try:
        return answer.model_validate(value)
    except ValidationError as error:
        extra = [fault["loc"] for fault in error.errors() if fault["type"] == "extra_forbidden"]
        if len(extra) < error.error_count():
            raise
        for place in extra:
            _remove(value, place)
        return answer.model_validate(value)


def _remove(value: Any, place: tuple[Any, ...]) -> None:
    for step in place[:-1]:
        value = value[step]
    del value[place[-1]]


def clean(value: Any) -> Any:
    """``value``, which was read from JSON, without the characters in its texts that Postgres cannot store."""
    if isinstance(value, str):
        return _UNWANTED.sub("", value)
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def why(error: ValueError) -> str:
    """A text with the fields that break a rule, and the rules. The model's own text is left out."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[:3]
        places = (".".join(map(str, fault["loc"][: -1 if fault["type"] == _UNKNOWN else None])) for fault in first)
        rules = "; ".join(f"{place}: {fault['type']}" for place, fault in zip(places, first, strict=True))
        return redact(f"{error.error_count()} faults: {rules}")
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at character {error.pos}"
    return redact(f"no JSON: {error}")


def is_misshapen(error: ValueError) -> bool:
    """Whether a server that enforces the schema cannot have sent the reply.

    Servers enforce fields and their types. They do not enforce bounds and the checks of the answer's type.
    """
    if not isinstance(error, ValidationError):
        return True
    kinds = {fault["type"] for fault in error.errors()}
    return any(kind in ("missing", "extra_forbidden", "literal_error") or kind.endswith("_type") for kind in kinds)
