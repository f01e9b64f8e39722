"""No function of the package that takes a text needs more than linear time for it.

The guard of regular expressions (``test_patterns.py``) does not see functions of Python's own library. One of these,
``unicodedata.normalize``, took quadratic time for combining marks. This guard calls each function of the package that
can be called with one text.
"""

from __future__ import annotations

import inspect
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nexus_tasks import limits
from tests import patterns

# Repeated, each of these makes a long text.
PARTS = {
    "marks of two classes": "\u0345\u0300",
    "a letter with many marks": "e" + "\u0301" * 30,
    "joined emoji": "\U0001f469\u200d❤️\u200d\U0001f468",
    "joiners": "\u200d",
    "jamo": "\u1100",
    "a sign of 18 letters": "\ufdfa",
    "tags": "\U000e0041",
    "directions": "\u202e\u202d",
    "no spaces": "漢",
    "Thai": "ก็",
    "digits": "9",
    "a far year": "in the year 99999999999 ",
    "days ago": "999999999 days ago ",
    "last": "last last ",
    "months": "12 months and ",
    "quotes": "\"'",
    "opened brackets": "[{(<",
    "closed brackets": "]})>",
    "backticks": "```",
    "empty lines": "\n ",
    "keys": "a: ",
    "assignments": "k=",
    "dashes": "- ",
    "cells": "| a ",
    "tags of XML": "<a>",
    "escapes": "\x1b[31m",
    "hexadecimal": "deadbeef",
    "addresses": "http://a.b/",
    "at signs": "a@b.",
    "dots": ".",
    "underscores": "_",
    "capitals": "Aa",
    "private keys": "-----BEGIN PRIVATE KEY-----\n",
    "entities": "&amp;",
    "percents": "%41",
    "slashes": "//",
    "citations": "[m1]",
    "reminders": "<system-reminder>",
    "dotted capitals": "İ",
}
SHORT, GROWTH = 5_000, 4  # characters; the long text has 4 times as many
FREE_SECONDS = 0.05  # a function that takes less for the long text is fast enough
LIMIT = 7.5  # times the time for 4 times the length: n to the power of 1.45
# Parameters with such names are no text from outside.
OF_THE_OPERATOR = ("path", "folder", "home", "url", "host", "token", "name", "module", "address", "database", "user")
# They start servers, ask the machine, or change it.
LEFT_OUT = ("nexus_tasks.cli.", "nexus_tasks.embedded.", "nexus_tasks.celery", "nexus_tasks.storage.migrations")
OF_THE_PROGRAM = {"lazy", "_compiled", "_statement", "_set", "_for_driver", "_start", "routes", "unanswered"}


def functions() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Each function that can be called with one text, by its module and name."""
    for module in patterns.modules():
        if module.__name__.startswith(LEFT_OUT):
            continue
        for name, value in vars(module).items():
            function = inspect.unwrap(value) if callable(value) else value
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            if inspect.iscoroutinefunction(function):
                continue
            needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
            if len(needed) != 1 or needed[0].kind not in (needed[0].POSITIONAL_ONLY, needed[0].POSITIONAL_OR_KEYWORD):
                continue
            if needed[0].annotation not in ("str", "str | None", str):
                continue
            if name not in OF_THE_PROGRAM and not any(word in needed[0].name for word in OF_THE_OPERATOR):
                yield f"{module.__name__}:{name}", function


def seconds(function: Callable[[str], object], text: str) -> float:
    """CPU time of this thread. A text may be refused with an error."""
    began = time.thread_time()
    with suppress(Exception):
        found = function(text)
        if inspect.isgenerator(found):
            for _ in found:
                pass
    return time.thread_time() - began


def fault(function: Callable[[str], object], part: str) -> str:
    """What is too slow; empty when nothing is."""
    short = part * (SHORT // len(part))
    before = seconds(function, short)
    if before < FREE_SECONDS / GROWTH / LIMIT:
        return ""
    after = seconds(function, short * GROWTH)
    if after < FREE_SECONDS:
        return ""
    before = min(before, *(seconds(function, short) for _ in range(2)))
    after = min(after, seconds(function, short * GROWTH))
    growth = after / max(before, 1e-6)
    return f"{growth:.1f} times the time for {GROWTH} times the length, {after:.2f} s" if growth > LIMIT else ""


@pytest.mark.long
def test_no_function_of_a_text_takes_more_than_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    found = list(functions())
    assert len(found) > 100
    slow = {
        f"{where}, {kind}": said
        for where, function in found
        for kind, part in PARTS.items()
        if (said := fault(function, part))
    }
    assert slow == {}
    assert list(tmp_path.iterdir()) == []


def test_the_guard_sees_a_quadratic_function() -> None:
    assert fault(lambda text: unicodedata.normalize("NFC", text), PARTS["marks of two classes"])
    assert not fault(str.upper, "a")


def test_the_guard_calls_what_reads_messages() -> None:
    assert {"nexus_tasks.text:words", "nexus_tasks.text:estimate_tokens"} <= {where for where, _ in functions()}
    assert limits.MESSAGE_CHARACTERS > SHORT * GROWTH
