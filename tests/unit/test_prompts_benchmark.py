"""The benchmark of the prompts asks about every prompt, and shows a broken rule and a changed answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import prompts
from nexus_tasks.llm.base import PURPOSES


def test_every_prompt_has_a_case() -> None:
    assert {case.request.purpose for case in prompts.cases()} == set(PURPOSES)


@pytest.mark.parametrize("source", ["stand-in", "offline"])
def test_the_accepted_answers_are_those_of_todays_prompts(source: str) -> None:
    """After a change of a prompt: look at ``python -m benchmarks.prompts``, and accept with ``--accept``."""
    accepted = json.loads(prompts.ACCEPTED.read_text(encoding="utf-8"))[source]
    assert {case.name: prompts.version(case.request) for case in prompts.cases()} == {
        name: one["prompt"] for name, one in accepted.items()
    }


def test_a_changed_prompt_and_a_changed_answer_are_told_apart() -> None:
    case = prompts.cases()[0]
    now = {"prompt": prompts.version(case.request), "answer": {"observations": []}}
    other = prompts.version(replace(case.request, instructions="Otherwise."))
    assert prompts.changes(None, now) == "new"
    assert prompts.changes(now, now) == "nothing"
    assert prompts.changes({**now, "prompt": other}, now) == "prompt"
    assert prompts.changes({"prompt": other, "answer": {}}, now) == "prompt and answer"
    assert "+ " in prompts.difference(case.name, {}, now["answer"])


def test_an_answer_of_another_form_breaks_every_rule_that_reads_its_fields() -> None:
    case = next(case for case in prompts.cases() if case.name == "digest")
    kept = {"short": "Ann booked 2026-06-12.", "long": "Ann booked 2026-06-12; band unpaid; contract by Thursday."}
    assert prompts.broken(case, kept) == []
    assert prompts.broken(case, {**kept, "long": ""}) == list(case.rules)[:3]
    assert prompts.broken(case, {"fault": "invalid"}) == list(case.rules)
