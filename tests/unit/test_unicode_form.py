"""Unicode form NFC: the same as Python's for any text that people write, in linear time for any other."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nexus_tasks
from nexus_tasks.errors import InvalidInput
from nexus_tasks.text import content_hash, words
from nexus_tasks.types.unicode_form import nfc

MARKS = st.text(st.sampled_from("eéİ한ᄀ가हि \u0300\u0301\u0327\u0345\u0344\u0f73\u0f71"), max_size=200)
UNITS = ["\u0345\u0300", "\u0f73", "\u0344\u0345", "e" + "\u0345\u0300" * 20, "\u0345\u0300" * 20 + "🙂"]


@given(st.one_of(st.text(), MARKS))
def test_it_is_nfc_and_only_joiners_are_added(text: str) -> None:
    found = nfc(text)
    assert unicodedata.is_normalized("NFC", found)
    assert nfc(found) == found
    if found.count("\u034f") == text.count("\u034f"):
        assert found == unicodedata.normalize("NFC", text)


def test_texts_of_people_are_as_python_has_them() -> None:
    for text in (
        "Zalgo: " + "H\u0300\u0315\u031b\u0321" * 50,
        "한국어",
        "हिन्दी",
        "👩\u200d❤️\u200d👨" * 40,
        "—" * 100,
        "İ" * 100,
    ):
        assert nfc(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_a_long_run_of_marks_takes_linear_time(unit: str) -> None:
    """200,000 marks: before, 40 s and more, in which no other thread of the process ran."""
    text = unit * (200_000 // len(unit))
    began = time.process_time()
    content_hash(text)
    words(text)
    with pytest.raises(InvalidInput):
        nexus_tasks.types.check_name("author", text)
    assert time.process_time() - began < 5


def test_no_mark_is_a_word_character() -> None:
    """Else a run of it would not be found."""
    word = re.compile(r"[\w\x00-\x7f]")
    every = (chr(code) for code in range(sys.maxunicode + 1))
    assert [
        one for one in every if unicodedata.combining(unicodedata.normalize("NFD", one)[0]) and word.match(one)
    ] == []


def test_nothing_else_normalizes_whole_texts() -> None:
    """The other place normalizes single characters."""
    root = Path(nexus_tasks.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if "normalize(" in path.read_text()}
    assert found == {"types/unicode_form.py", "transcripts/scrubbing/__init__.py"}
