"""Reading a text without a model."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks import text
from nexus_tasks.llm.offline.compare import compare

# Everything Unicode has, lone surrogates included, and texts dense in what the rules look at.
ANYTHING = st.text(st.characters())
DENSE = st.text(st.sampled_from("aI1,.:!?…'’\"”) \n\t\u2028é\u0301😊❤\ufe0f。我ह\u093fİΣς"), max_size=60)
TEXTS = st.one_of(ANYTHING, DENSE)


def squeezed(value: str) -> str:
    return "".join(value.split())


# --- sentences --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        (
            "Dr. Lee met J. K. Rowling. So did I. Then we left.",
            ["Dr. Lee met J. K. Rowling.", "So did I.", "Then we left."],
        ),
        ("We go by bus, e.g. at noon, i.e. late.", ["We go by bus, e.g. at noon, i.e. late."]),
        ("It starts at 5 p.m. We eat before.", ["It starts at 5 p.m.", "We eat before."]),
        ("I was at work until 5 p.m. and left", ["I was at work until 5 p.m. and left"]),
        ("It costs $4,000.50 today. Version 3.11.2 is out.", ["It costs $4,000.50 today.", "Version 3.11.2 is out."]),
        ("See https://a.example/b.c?d=e.f. It works.", ["See https://a.example/b.c?d=e.f.", "It works."]),
        ("Wait... what? no way!! i know", ["Wait... what?", "no way!!", "i know"]),
        ("I was thinking… maybe. So… Yes.", ["I was thinking… maybe.", "So…", "Yes."]),
        ('"Really?" she said. He said "no." Then he left.', ['"Really?" she said.', 'He said "no."', "Then he left."]),
        ("So good! 😊 We went 🎉🎉 Then home", ["So good! 😊", "We went 🎉🎉", "Then home"]),
        ("I ❤️ NYC in spring", ["I ❤️ NYC in spring"]),
        ("i like tea. i don't like coffee", ["i like tea.", "i don't like coffee"]),
        ("no punctuation here\nnor here\r\n\r\n  done  ", ["no punctuation here", "nor here", "done"]),
        ("1. Do this. 2. Do that.", ["1. Do this.", "2. Do that."]),
        ("No. 5 is alive. No. I won't.", ["No. 5 is alive.", "No.", "I won't."]),
        ("我喜欢茶。你呢？好", ["我喜欢茶。", "你呢？", "好"]),
        ("  \n\t ", []),
    ],
)
def test_sentences(given_text: str, expected: list[str]) -> None:
    assert text.sentences(given_text) == expected


@given(TEXTS)
def test_sentences_lose_nothing_but_white_space(value: str) -> None:
    pieces = text.sentences(value)
    assert squeezed("".join(pieces)) == squeezed(value)
    assert all(piece and piece == " ".join(piece.split()) for piece in pieces)


@pytest.mark.parametrize("unit", [".", ". ", "😊 ", "1,000", "1,", "a.b", "a'", '."', "\n", " ", "\u0301", "1.1"])
def test_nothing_is_quadratic(unit: str) -> None:
    value = unit * (200_000 // len(unit))
    began = time.process_time()
    text.sentences(value), text.words(value), text.fold(value)
    assert time.process_time() - began < 5  # milliseconds when linear, minutes when quadratic


# --- words ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("4,000 at 3.5 and 10:30", ["4,000", "at", "3.5", "and", "10:30"]),
        ("1,000,000 but 1,2,3 and 12,3456", ["1,000,000", "but", "1", "2", "3", "and", "12", "3456"]),
        ("At 10:30am, 3.5km, v3.11.2, $40.", ["at", "10:30am", "3.5km", "v3.11.2", "40"]),
        ("I don’t; it's Ann's_thing", ["i", "don't", "it's", "ann's", "thing"]),
        ("हिन्दी cafe\u0301 ПРИВЕТ", ["हिन्दी", "café", "привет"]),
        ("我喜欢 AI模型", ["我", "喜", "欢", "ai", "模", "型"]),
        ("😊 ... --", []),
    ],
)
def test_words(given_text: str, expected: list[str]) -> None:
    assert text.words(given_text) == expected


@given(TEXTS)
def test_words_are_found_again_in_themselves(value: str) -> None:
    found = text.words(value)
    assert text.words(" ".join(found)) == found


@given(TEXTS)
def test_no_letter_or_digit_is_lost(value: str) -> None:
    kept = re.sub(r"[\W_]", "", "".join(text.words(value)))
    assert kept == re.sub(r"[\W_]", "", text.fold(value))


def test_content_words_keep_numbers_and_negations() -> None:
    assert text.content_words("I don't deploy the 4,000 apps on Tuesdays, never!") == [
        "not",
        "deploy",
        "4000",
        "app",
        "tuesday",
        "not",
    ]


def test_stemming_is_safe_between_threads() -> None:
    plain = [f"{letter}{ending}" for letter in "abcdefghijklmnopqrstuvwxyz" * 8 for ending in ("unning", "ationally")]
    words = [f"{word}{i}ness" for i, word in enumerate(plain)]
    expected = {word: text._stemmer().stemWord(word) for word in words}
    wrong: list[str] = []

    def work(seed: int) -> None:
        mine = random.Random(seed).sample(words, len(words))
        wrong.extend(word for word in mine if text._stem.__wrapped__(word) != expected[word])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_process_that_is_forked_while_a_thread_stems_can_stem(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Stemmer:
        def stemWord(self, word: str) -> str:
            if word == "waiting":
                begun.set()
                go_on.wait()
            return word

    monkeypatch.setattr(text, "_stemmer", Stemmer)
    thread = threading.Thread(target=text._stem.__wrapped__, args=("waiting",))
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        text._stem.__wrapped__("sailing")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    assert code == 0


# --- hashes -----------------------------------------------------------------------------------------------------------
@given(TEXTS)
def test_folding_is_idempotent(value: str) -> None:
    folded = text.fold(value)
    assert text.fold(folded) == folded
    assert text.content_hash(folded) == text.content_hash(value)


@given(TEXTS)
def test_white_space_and_trailing_punctuation_do_not_change_the_hash(value: str) -> None:
    assert text.content_hash(f"  {value}\n") == text.content_hash(value)
    if text.fold(value).rstrip(" .!?,;:…"):
        assert text.content_hash(f"{value} .") == text.content_hash(value)


@given(TEXTS)
def test_keys_are_stable_hex(value: str) -> None:
    key = text.content_key(value)
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert text.content_key(value) == key


def test_keys_ignore_wording_but_not_order_numbers_or_negation() -> None:
    key = text.content_key
    assert key("We deploy on Tuesdays.") == key("we are deploying on tuesday")
    assert key("Tuesday, not Thursday") != key("Thursday, not Tuesday")
    assert key("It costs 40") != key("It costs 50")
    assert key("I like tea") != key("I don't like tea")
    assert key("👍") != key("👎")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I live in Berlin.", "I lived in Berlin."),
        ("I live in Berlin.", "I lived in Berlin until May."),
        ("I am a nurse.", "I was a nurse."),
        ("I have a dog.", "I had a dog."),
        ("I like dogs.", "I'd like dogs."),
        ("I go to Rome.", "I'll go to Rome."),
        ("I moved to Berlin.", "I moved from Berlin."),
        ("I take the pill before lunch.", "I take the pill after lunch."),
        ("He drinks tea.", "She drinks tea."),
        ("I drink tea.", "They drink tea."),
        ("I drink tea or coffee.", "I drink tea and coffee."),
        ("我住在柏林", "我住在北京"),
        ("هو يحب الشاي", "هي تحب الشاي"),
    ],
)
def test_what_turns_a_statement_makes_it_another_one(one: str, other: str) -> None:
    assert text.content_key(one) != text.content_key(other)
    verdict = compare(one, other)
    assert verdict is None or verdict.kind == "contradicts"


# --- the rest ---------------------------------------------------------------------------------------------------------
@given(TEXTS, st.integers(0, 80))
def test_shortened_texts_fit(value: str, limit: int) -> None:
    short = text.shorten(value, limit)
    assert len(short) <= limit
    assert short == value or len(value) > limit


@given(TEXTS)
def test_tokens_are_a_quarter_of_the_characters_rounded_up(value: str) -> None:
    assert 4 * text.estimate_tokens(value) - 3 <= len(value) <= 4 * text.estimate_tokens(value) or not value


@given(st.frozensets(st.sampled_from("abcd")), st.frozensets(st.sampled_from("abcd")))
def test_jaccard_is_symmetric_and_bounded(left: frozenset[str], right: frozenset[str]) -> None:
    value = text.jaccard(left, right)
    assert value == text.jaccard(right, left)
    assert 0 <= value <= 1
    assert (value == 1) == (left == right != frozenset())


def test_a_word_of_a_million_letters_keeps_no_other_thread_from_stemming() -> None:
    began = time.perf_counter()
    assert text.content_words("eyj" * 300_000 + " running") == ["eyj" * 300_000, "run"]
    assert time.perf_counter() - began < 5


def test_forms_of_a_word_have_a_part_in_common() -> None:
    for one, other in [
        ("Ивана", "Иван"),
        ("Mehmet'in", "Mehmet"),
        ("김철수입니다", "철수야"),
        ("ליוסף", "יוסף"),
        ("王明", "我叫王明"),
        ("встретил Олю", "Оля"),
        ("Evou", "Eva"),
        ("Ewę", "Ewa"),
        ("Tomem", "Tom"),
        ("chez l'amie d'Eva", "Eva"),
        ("Ali'nin", "Ali"),
    ]:
        assert text.word_forms(one) & text.word_forms(other), (one, other)
    assert "mark" in text.word_forms("Mark") - text.word_forms("market")
    assert not text.word_forms("v3.11") & text.word_forms("v3.12")
    assert "~王明" in text.word_forms("王明") - text.word_forms("他明天去见国王")
