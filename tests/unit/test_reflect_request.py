"""What a reflection is shown: every fact written out once, and each new one beside all that is near it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from nexus_tasks.cognition.reflect.propose import build_request
from nexus_tasks.llm.answers import PromptFact, ReflectMaterial

CLUSTERS = ((3, (1, 2)), (4, (1, 3)), (5, (2, 4)))


def test_a_fact_is_written_out_once_and_named_by_its_id_after_that() -> None:
    facts = tuple(
        PromptFact(id=i, content=f"I like thing {i}.", valid_from=datetime(2026, 1, i, tzinfo=UTC)) for i in range(1, 6)
    )
    material = ReflectMaterial(observer="assistant", subject="ann", facts=facts, clusters=CLUSTERS)
    transcript = build_request(material).transcript
    assert all(transcript.count(fact.content) == 1 for fact in facts)
    shown: dict[int, set[int]] = {}
    new = 0
    for line in transcript.splitlines()[1:-1]:
        ids = [int(i) for i in re.findall(r"\[(\d+)\]", line)]
        if line.startswith("new "):
            [new] = ids
            shown[new] = set()
        else:
            shown[new].update(ids)
    assert shown == {new: set(olds) for new, olds in CLUSTERS}
    assert list(shown) == [5, 4, 3], "the newest first"
