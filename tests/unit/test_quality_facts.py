"""The measure of facts in ``benchmarks.quality``: it sees a point that is covered, and a fact that nothing supports."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.quality_facts import Fact, covered, locomo_points, realmem_points, unsupported
from nexus_tasks.text import content_words


def words(text: str) -> frozenset[str]:
    return frozenset(content_words(text))


def fact(content: str, said: str) -> Fact:
    return Fact(words(content), words(said))


def test_a_point_is_covered_by_one_fact_with_half_of_its_words_and_names_do_not_count() -> None:
    facts = [fact("Ann bought a red kayak.", "I bought a red kayak"), fact("Ann lives in Oslo.", "I live in Oslo")]
    assert covered(["Ann has purchased a red kayak"], facts, ["Ann"]) == [1.0]
    assert covered(["Ann has purchased a green canoe"], facts, ["Ann"]) == [0.0]
    assert covered(["Ann"], facts, ["Ann"]) == []  # nothing is left to compare


def test_words_of_two_facts_together_cover_nothing() -> None:
    facts = [fact("A red kayak.", "a red kayak"), fact("It stands in Oslo.", "it stands in Oslo")]
    assert covered(["The harbour of Oslo sells a kayak on Sundays"], facts, []) == [0.0]


def test_a_fact_that_its_messages_do_not_say_is_unsupported() -> None:
    assert unsupported([fact("Ann bought a red kayak.", "Ann: I bought a red kayak"), fact("Ann hates rain.", "")]) == [
        0.0,
        1.0,
    ]


def test_points_are_read_as_the_corpora_write_them(tmp_path: Path) -> None:
    locomo = tmp_path / "locomo.json"
    observation = {"session_1_observation": {"Ann": [["Ann sails.", "D1:3"]], "Bo": [["Bo sings.", "D1:4"]]}}
    locomo.write_text(json.dumps([{"sample_id": "conv-1", "observation": observation}]))
    assert locomo_points(locomo, "conv-1") == ["Ann sails.", "Bo sings."]
    realmem = tmp_path / "persona.json"
    said = [{"extracted_memory": [{"content": "【Boats】 User sails."}, {"content": "User sings."}]}]
    realmem.write_text(json.dumps({"dialogues": said * 2}), encoding="utf-8")
    assert realmem_points(realmem, 1) == ["User sails.", "User sings."]
