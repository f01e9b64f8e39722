"""The offline model as a provider, and what it makes of the demo's conversation."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import as_file, files
from itertools import count

import numpy as np
import pytest

from nexus_tasks.embeddings.hashing import HashingEmbedder
from nexus_tasks.integrations.importers import read
from nexus_tasks.llm.answers import (
    DeriveMaterial,
    Digest,
    DigestMaterial,
    Material,
    Observations,
    PromptFact,
    PromptLine,
    Reflection,
    ReflectMaterial,
)
from nexus_tasks.llm.base import AnswerT, Completion, LanguageModel, ModelRequest, Usage
from nexus_tasks.llm.offline import OfflineModel
from nexus_tasks.text import estimate_tokens

NOW = datetime(2026, 11, 20, tzinfo=UTC)
HELLO = PromptLine(id=1, author="ann", role="user", content="I live in Lisbon.", occurred_at=NOW)
MODEL: LanguageModel = OfflineModel()


def ask(answer: type[AnswerT], material: Material) -> Completion[AnswerT]:
    return MODEL.complete(
        ModelRequest(purpose="derive", instructions="", transcript="", question="", answer=answer, material=material)
    )


def answered(answer: type[AnswerT], material: Material) -> AnswerT:
    completion = ask(answer, material)
    assert completion.answer is not None
    return completion.answer


def test_it_says_that_it_is_offline_and_costs_nothing() -> None:
    completion = ask(Observations, DeriveMaterial(lines=(HELLO,), observer="a", subjects=("ann",)))
    assert MODEL.name == "offline"
    assert {MODEL.model_for(purpose) for purpose in ("derive", "reflect", "digest")} == {"offline"}
    assert (completion.model, completion.usage, completion.fault) == ("offline", Usage(), "")
    assert completion.seconds >= 0
    MODEL.probe()


def test_the_material_decides_the_answer() -> None:
    observations = answered(Observations, DeriveMaterial(lines=(HELLO,), observer="a", subjects=("ann",)))
    assert [fact.content for fact in observations.observations] == ["I live in Lisbon."]
    assert answered(Reflection, ReflectMaterial(observer="a", subject="b", facts=(), clusters=())).relations == []
    told = DigestMaterial(session_key="s", previous="", lines=(HELLO,), short_tokens=20, long_tokens=50)
    assert answered(Digest, told).short == "ann: I live in Lisbon."


def test_another_type_of_answer_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match=r"DeriveMaterial gives Observations, not .*Digest"):
        ask(Digest, DeriveMaterial(lines=(HELLO,), observer="a", subjects=("ann",)))


# --- the demo ---------------------------------------------------------------------------------------------------------
def demo() -> list[tuple[str, PromptLine]]:
    ids = count(1)
    with as_file(files("nexus_tasks") / "examples" / "team-chat.jsonl") as path:
        return [
            (
                conversation.session_key,
                PromptLine(
                    id=next(ids),
                    author=message.author or "",
                    role=message.role,
                    content=message.content,
                    occurred_at=message.occurred_at or NOW,
                ),
            )
            for conversation in read(path, namespace="demo")
            for message in conversation.messages
        ]


def reflection_on(subject: str) -> tuple[dict[int, str], Reflection]:
    """All facts about one person, reflected on with the eight nearest by the built-in embedder as candidates."""
    lines = {line.id: line for _, line in demo()}
    found = answered(Observations, DeriveMaterial(lines=(*lines.values(),), observer="assistant", subjects=(subject,)))
    facts = tuple(
        PromptFact(id=i, content=fact.content, valid_from=lines[fact.sources[0]].occurred_at)
        for i, fact in enumerate(found.observations)
    )
    vectors = HashingEmbedder().embed([fact.content for fact in facts])
    near = vectors @ vectors.T - 2 * np.eye(len(facts))
    clusters = tuple((i, tuple(int(j) for j in np.argsort(-near[i], kind="stable")[:8])) for i in range(len(facts)))
    shown = ReflectMaterial(observer="assistant", subject=subject, facts=facts, clusters=clusters)
    return {fact.id: fact.content for fact in facts}, answered(Reflection, shown)


def test_the_demo_has_people_an_assistant_and_sessions() -> None:
    told = demo()
    assert len({key for key, _ in told}) == 4
    assert 60 <= len(told) <= 75
    assert {(line.author, line.role) for _, line in told} == {
        ("maya", "user"),
        ("jonas", "user"),
        ("assistant", "assistant"),
    }


def test_the_demo_shows_the_changed_deploy_day() -> None:
    contents, reflection = reflection_on("maya")
    changed = [(contents[r.new_id], contents[r.old_id], r.kind, r.holds) for r in reflection.relations]
    assert changed == [
        ("Deploys now happen on Thursdays.", "Deploys happen on Tuesdays.", "contradicts", "new"),
        (
            "The daily standup is at 10:00 from tomorrow on.",
            "The daily standup is at 9:15 from now on.",
            "contradicts",
            "new",
        ),
    ]
    assert [insight.content for insight in reflection.insights] == ["Repeatedly: I prefer small pull requests."]


def test_the_demo_shows_a_move_and_a_new_habit() -> None:
    contents, reflection = reflection_on("jonas")
    assert [(contents[r.old_id], r.holds) for r in reflection.relations] == [
        ("I live in Hamburg with my partner Lena.", "new"),
        ("One thing about me: I drink coffee every morning.", "new"),
    ]


def test_the_demo_digests_are_worth_reading() -> None:
    lines = tuple(line for key, line in demo() if key == "crunch")
    material = DigestMaterial(session_key="crunch", previous="", lines=lines, short_tokens=150, long_tokens=600)
    answer = answered(Digest, material)
    assert "Deploys moved from Tuesday to Thursday because of the payment run." in answer.short
    assert estimate_tokens(answer.short) <= 150 < estimate_tokens(answer.long) <= 600
