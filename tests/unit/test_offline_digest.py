"""What the offline model tells of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks.llm.answers import Digest, DigestMaterial, PromptLine
from nexus_tasks.llm.offline.digest import digest
from nexus_tasks.text import estimate_tokens

START = datetime(2026, 9, 14, 8, 30, tzinfo=UTC)


def line(i: int, content: str, author: str = "ann", role: str = "user") -> PromptLine:
    return PromptLine(id=i, author=author, role=role, content=content, occurred_at=START + timedelta(minutes=i))


def told(*lines: PromptLine, previous: str = "", short: int = 60, long: int = 180) -> Digest:
    return digest(DigestMaterial(session_key="s", previous=previous, lines=lines, short_tokens=short, long_tokens=long))


def test_statements_are_told_in_order_and_small_talk_is_not() -> None:
    answer = told(
        line(1, "Hi there! I live in Lisbon. It's sunny."),
        line(2, "Wow, that's great!", "bob"),
        line(3, "The launch is on 17 November. The budget is 4,000 euros.", "bob"),
        line(4, "SELECT 1 FROM the_log_of_a_tool", "psql", role="tool"),
    )
    assert answer.long == "ann: I live in Lisbon.\nbob: The launch is on 17 November. The budget is 4,000 euros."


def test_the_given_order_is_kept() -> None:
    answer = told(line(9, "I moved to Lisbon in May."), line(1, "I moved to Porto in June."))
    assert answer.long.splitlines() == ["ann: I moved to Lisbon in May.", "ann: I moved to Porto in June."]


def test_facts_are_told_whatever_their_form() -> None:
    assert told(line(1, "likes tea", role="fact")).short == "ann: likes tea"


def test_what_is_said_twice_is_told_once() -> None:
    answer = told(line(1, "I live in Lisbon."), line(2, "i live in  Lisbon!"), previous="ann: I live in Lisbon.")
    assert answer.long == "ann: I live in Lisbon."


def test_short_on_room_the_matter_of_the_session_is_told() -> None:
    answer = told(
        line(1, "I saw a heron by the river."),
        line(2, "The invoice import fails on the Swiss invoices."),
        line(3, "The Swiss invoices need another rounding in the import."),
        line(4, "I decided to fix the rounding of the Swiss invoices by Friday."),
        short=20,
    )
    assert answer.short == "ann: I decided to fix the rounding of the Swiss invoices by Friday."


def test_nothing_but_small_talk_is_told_all_the_same() -> None:
    assert told(line(1, "Hi!"), line(2, "👋", "bob")).long == "ann: Hi!\nbob: 👋"
    assert told() == Digest(short="", long="")


def test_when_no_sentence_fits_the_best_one_is_cut() -> None:
    answer = told(line(1, "I " + "really " * 50 + "like the harbour of Lisbon."), short=5)
    assert len(answer.short) <= 20
    assert answer.short.endswith("…")


def test_digests_by_another_model_are_read_too() -> None:
    previous = "# Summary\n- Ann lives in Lisbon.\n- Decisions: deploys happen on Thursdays.\n"
    answer = told(line(1, "I like tea with honey."), previous=previous)
    assert "Ann lives in Lisbon." in answer.long
    assert "Decisions: deploys happen on Thursdays." in answer.long
    assert answer.long.endswith("ann: I like tea with honey.")


def test_an_incremental_digest_keeps_the_old_essentials() -> None:
    essentials = ["I prefer small pull requests.", "I decided to move to Lisbon on 2 November."]
    previous = told(*(line(i, text) for i, text in enumerate(essentials)), long=600).long
    places = ["harbour", "river", "bakery", "bridge", "school", "garden", "museum", "market"]
    for window in range(12):
        chatter = [
            line(i, f"I walked past {place} {window} and its {thing} was {window * 40 + i} years old.")
            for i, (place, thing) in enumerate(product(places, ["door", "roof", "clock"]))
        ]
        previous = told(*chatter, previous=previous, long=600).long
        assert sum(f" {window} and its" in one for one in previous.splitlines()) > 5  # it moves on
    assert all(text in previous for text in essentials)
    assert estimate_tokens(previous) <= 600


CONTENTS = st.one_of(
    st.text(st.characters(), max_size=80),
    st.lists(st.sampled_from(["I live in Lisbon.", "Really?", "The cat is 3", "ok", "\n", "a: b"]), max_size=6).map(
        " ".join
    ),
)


@given(st.lists(CONTENTS, max_size=8), CONTENTS, st.integers(1, 40), st.integers(1, 80))
def test_limits_hold_and_nothing_is_made_up(contents: list[str], previous: str, short: int, long: int) -> None:
    lines = [line(i, content) for i, content in enumerate(contents)]
    answer = told(*lines, previous=previous, short=short, long=long)
    assert answer == told(*lines, previous=previous, short=short, long=long)
    assert estimate_tokens(answer.short) <= short
    assert estimate_tokens(answer.long) <= long
    said = "".join("".join(text.split()) for text in ["ann:", previous, *contents]) + "…"
    assert set("".join(answer.long.split())) <= set(said)


def test_other_processes_tell_the_same() -> None:
    command = [sys.executable, "-c", "from tests.unit.test_offline_digest import story; print(story())"]
    outputs = {
        subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.decode()
        for seed in ("1", "2", "3")
    }
    assert outputs == {story() + "\n"}


def story() -> str:
    """A digest with many ties to break."""
    return told(
        *(line(i, f"I saw the {w} of Lisbon in {i} days.") for i, w in enumerate("abcdefghij" * 3)), long=100
    ).long
