"""No function that reads a stored text takes more than linear time for texts that no person writes.

One tenant's message of a megabyte must not stop the jobs and calls of the others. The guard of ``test_patterns.py``
reads the regular expressions of the package; this one also meets what libraries do with a text.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from nexus_tasks.errors import NexusError
from tests.growth import slow_text
from tests.patterns import ROOT

ROOMS = ("text", "types", "transcripts", "llm", "cognition", "services", "storage/searching")
READ = {"text", "content", "document", "line", "sentence", "prompt", "question", "value", "word", "head", "before"}
PIECES = (
    *("a", "eyj", "aB", "a_b", "a.b", "a1.", "0", "1,", "İ", "ﬁ", "ß", "e\u0301", "漢", "か", "ש", "😀", "\u200b"),
    *("the ", "running ", "Ann ", "it's ", "not ", "a b. ", "Why? ", "!", "2024-01-02 ", "3 May ", "https://a.b/"),
    *("- a\n", "\n", " ", "\t", "# a\n", "| a ", "a,b\n", "<", "<a>", "</", "&amp;", "[", "](", "{", '{"a":', '"', "'"),
    *("`", "```\n", "\\", "\\n", "$", "=", ": ", "--", "/", "@", "\x1b[0m", "\x00"),
    *("password: x\n", "key=", "AAAA", "-----BEGIN ", "eyJ."),
)
LENGTH = 16_000  # of the first texts; the stemmer that stopped a server looks linear below it
_number = count()


def functions() -> Iterator[tuple[str, Callable[[str], Any]]]:
    """The public functions of :data:`ROOMS` that can be called with a stored text alone, by their names."""
    for room in ROOMS:
        path = ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
            name = ".".join(("nexus_tasks", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            for known, found in sorted(vars(importlib.import_module(name)).items()):
                if known.startswith("_"):  # it may expect a text that a public function has prepared
                    continue
                function = inspect.unwrap(found) if callable(found) else None
                if not inspect.isfunction(function) or function.__module__ != name:
                    continue
                needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
                if len(needed) == 1 and needed[0].name in READ and needed[0].annotation == "str":
                    yield f"{name}.{known}", function


def shape(piece: str, length: int) -> str:
    """A text of one piece."""
    return (piece * (length // len(piece) + 1))[:length]


def call(function: Callable[[str], Any], text: str) -> None:
    with suppress(NexusError, ValueError):
        found = function(f"{text}{next(_number)}")  # another text each time, so that no cache has it
        if inspect.isgenerator(found):
            list(found)


def test_no_function_takes_more_than_linear_time_for_a_text() -> None:
    made, found = [partial(shape, piece) for piece in PIECES], dict(functions())
    assert len(found) > 40
    said = {name: slow_text(partial(call, function), made, length=LENGTH) for name, function in found.items()}
    assert [f"{name}: {one}" for name, one in said.items() if one] == []


def test_the_guard_sees_a_library_that_takes_longer() -> None:
    import snowballstemmer

    stemmer = snowballstemmer.stemmer("english")
    # The stemmer's time grows by 4 below 16,000 characters, by 8 above them, and by 13 from this length.
    assert slow_text(partial(call, stemmer.stemWord), [partial(shape, "eyj")], length=LENGTH * 4)
