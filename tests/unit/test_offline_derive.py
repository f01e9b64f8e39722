"""What the offline model takes for a fact."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_tasks.llm.answers import DeriveMaterial, Observation, PromptLine
from nexus_tasks.llm.offline.derive import derive
from nexus_tasks.text import words

SAID = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)  # a Friday


def line(
    content: str, *, id: int = 1, author: str = "ann", role: str = "user", context_only: bool = False
) -> PromptLine:
    return PromptLine(id=id, author=author, role=role, content=content, occurred_at=SAID, context_only=context_only)


def facts(*lines: PromptLine, subjects: tuple[str, ...] = ("ann", "bob")) -> list[Observation]:
    return derive(DeriveMaterial(lines=lines, observer="assistant", subjects=subjects)).observations


def contents(text: str) -> list[str]:
    return [fact.content for fact in facts(line(text))]


@pytest.mark.parametrize(
    "sentence",
    [
        "I'm a nurse.",
        "I live in Lisbon.",
        "I love tea.",
        "My name is Ann.",
        "Call me Annie.",
        "i don't eat meat.",
        "The office is in Lisbon.",
        "Her name is Olive.",
        "Deploys happen on Tuesdays.",
        "We moved the staging database to Postgres 18.",
        "Yeah, Bob, I visited Porto with my sister last summer!",
        "My sister works at the harbour.",
        "The budget is 4,000 euros.",
        "Just got back from a week in the mountains!",
        "I went to Porto last week, have you been there?",
        "I'll send you the report on Friday at 10:30.",
        "She plays the violin in an orchestra.",
    ],
)
def test_statements_are_kept_in_the_words_of_their_author(sentence: str) -> None:
    assert contents(f"Wow! {sentence} Thanks!") == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "Hi Bob!",
        "Thanks a lot, Bob!",
        "Wow, that's great!",
        "That's so sweet of you.",
        "Sounds good, Bob!",
        "I agree.",
        "I'm so happy for you!",
        "I hope your week gets better.",
        "Good luck with the new job!",
        "What did you do last weekend?",
        "I wonder what you did?",
        "You should visit Lisbon in May.",
        "Let me know how it goes.",
        "ok",
        "Rex and Mimi!",
        "Me too!",
        "It was so much fun!",
        "[image: a photo of a dog in Lisbon]",
    ],
)
def test_what_states_nothing_is_left_out(sentence: str) -> None:
    assert contents(sentence) == []
    assert contents(f"I live in Lisbon. {sentence}") == ["I live in Lisbon."]


def test_a_message_of_its_own_may_be_a_general_note() -> None:
    assert contents("Backups run hourly") == ["Backups run hourly"]
    assert contents("Backups run hourly. Good to know.") == []


def test_captions_are_not_statements() -> None:
    assert contents("I painted our dogs [image: two dogs in Lisbon]") == ["I painted our dogs"]


def test_only_people_and_assistants_that_are_wanted_are_derived() -> None:
    text = "I live in Lisbon."
    found = facts(
        line(text, id=1),
        line(text, id=2, author="bob"),
        line(text, id=3, author="eve"),
        line(text, id=4, role="tool"),
        line(text, id=5, role="system"),
        line(text, id=6, context_only=True),
        line(text, id=7, author="bob", role="assistant"),
    )
    assert [(fact.subject, fact.sources) for fact in found] == [("ann", [1]), ("bob", [2]), ("bob", [7])]


def test_a_sentence_said_twice_in_a_line_is_one_fact() -> None:
    assert contents("I live in Lisbon. i live in   Lisbon!") == ["I live in Lisbon."]


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ("Thanks for the lamp, Bob! It stands on my desk.", ["Thanks for the lamp, Bob! It stands on my desk."]),
        ("That old boat! And they're selling it to my aunt.", ["That old boat! And they're selling it to my aunt."]),
        ("I bought a boat. It is moored in Porto.", ["I bought a boat.", "It is moored in Porto."]),
        ("Is the boat old? It is moored in Porto.", ["It is moored in Porto."]),
        ("Wow, thanks! It is moored in Porto.", ["It is moored in Porto."]),
        ("That old boat! Its-fast is moored in Porto.", ["Its-fast is moored in Porto."]),
        ("Boat " * 60 + "! It is moored in Porto.", ["It is moored in Porto."]),  # too long for one fact
    ],
)
def test_a_statement_takes_along_what_its_first_word_means(said: str, facts: list[str]) -> None:
    assert contents(said) == facts


def test_a_remark_that_says_much_is_a_statement() -> None:
    told = "It's a quiet way to rest between long shifts at the harbour."
    assert contents(told) == [told]
    assert contents("It's a quiet way to rest.") == []
    assert contents("It's a quiet way for you to rest between long shifts at the harbour.") == []


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("I prefer tea over coffee.", "preference"),
        ("My favourite city is Lisbon.", "preference"),
        ("I'm allergic to peanuts.", "constraint"),
        ("I'll visit my aunt in Porto.", "plan"),
        ("I think the old parser was clearer.", "opinion"),
        ("I finished the marathon in Porto.", "event"),
        ("My sister is an architect.", "relationship"),
        ("The office is in Lisbon.", "fact"),
    ],
)
def test_categories(sentence: str, category: str) -> None:
    assert [fact.category for fact in facts(line(sentence))] == [category]


def test_confidence_grows_with_plain_markers_up_to_the_most() -> None:
    plain, strong, strongest = facts(
        line("I had a walk by the river. I prefer small tea cups. I always meet Bob at 9:30.")
    )
    assert (plain.confidence, strong.confidence, strongest.confidence) == (0.75, 0.80, 0.90)


def test_long_sentences_are_cut_and_labels_are_few() -> None:
    (fact,) = facts(line("I remember " + "the extraordinary lighthouse keeper of Porto and " * 30))
    assert len(fact.content) <= 300
    assert fact.content.endswith("…")
    assert fact.labels == ["remember", "extraordinary", "lighthouse"]


# --- properties -------------------------------------------------------------------------------------------------------
SENTENCES = st.sampled_from(
    [
        "I live in Lisbon.",
        "Thanks!",
        "I met Bob yesterday.",
        "Deploys happen on Tuesdays",
        "Is it?",
        "wow\n",
        "My cat is 3.",
    ]
)
CONTENTS = st.one_of(st.lists(SENTENCES, max_size=4).map(" ".join), st.text(st.characters(codec="utf-8"), max_size=60))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[PromptLine], list[list[PromptLine]]]:
    """Lines, and the same lines cut into batches that show some of the others as context."""
    lines = [
        line(
            content,
            id=i,
            author=draw(st.sampled_from(["ann", "bob", "eve"])),
            role=draw(st.sampled_from(["user", "tool"])),
        )
        for i, content in enumerate(draw(st.lists(CONTENTS, max_size=8)))
    ]
    cut: dict[int, list[PromptLine]] = {}
    for one in lines:
        cut.setdefault(draw(st.integers(0, 3)), []).append(one)
    for batch in cut.values():
        shown = draw(st.lists(st.sampled_from(lines), max_size=3))
        batch[:0] = [line(one.content, id=one.id, author=one.author, context_only=True) for one in shown]
    return lines, list(cut.values())


@settings(max_examples=200)
@given(batches())
def test_what_is_derived_does_not_depend_on_the_batches(drawn: tuple[list[PromptLine], list[list[PromptLine]]]) -> None:
    lines, cut = drawn
    whole = Counter(fact.model_dump_json() for fact in facts(*lines))
    assert whole == Counter(fact.model_dump_json() for batch in cut for fact in facts(*batch))
    alone = (fact for author in ("ann", "bob") for fact in facts(*lines, subjects=(author,)))
    assert whole == Counter(fact.model_dump_json() for fact in alone)


@given(CONTENTS)
def test_facts_are_what_was_said(content: str) -> None:
    said = " ".join(content.split())
    for fact in facts(line(content)):
        assert fact.content.rstrip("…") in said
        assert 0.75 <= fact.confidence <= 0.9
        assert len(fact.labels) <= 3
        assert set(fact.labels) <= set(words(content))


@pytest.mark.parametrize("unit", ["so, ", "I moved from ", "we ", "a, ", "I am, do ", "x", "Ann "])
def test_a_pasted_log_is_no_trouble(unit: str) -> None:
    facts(line(unit * (200_000 // len(unit)) + "?"), line(unit * (200_000 // len(unit))))
