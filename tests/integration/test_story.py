"""One story, told to two observers of whom each heard a half, read back as of three dates, and a change of mind undone.

Ann likes to deploy on Tuesdays (January, both hear it), says so again in other words (February, both), and moves to
Thursdays (March, only the assistant hears it); what the coach alone hears is about coffee.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from nexus_tasks import Nexus, reflect_namespace
from tests.integration.inline import NAMESPACE, dump, observations, say, work
from tests.sandbox import Sandbox
from tests.standin import Call, StandIn
from tests.standin.answers import LINE

TUESDAY = "I prefer to run the deploys on Tuesday mornings."
AGAIN = "On Tuesday mornings I prefer to run the deploys, as ever."
THURSDAY = "I now prefer to run the deploys on Thursday mornings."
COFFEE = "I never drink coffee after lunch on Fridays."
SAID = (
    (TUESDAY, datetime(2026, 1, 10, tzinfo=UTC), ["assistant", "coach"]),
    (AGAIN, datetime(2026, 2, 10, tzinfo=UTC), ["assistant", "coach"]),
    (COFFEE, datetime(2026, 2, 20, tzinfo=UTC), ["coach"]),
    (THURSDAY, datetime(2026, 3, 10, tzinfo=UTC), ["assistant"]),
)
JANUARY, FEBRUARY, APRIL = (datetime(2026, month, 25, tzinfo=UTC) for month in (1, 2, 4))
SETTINGS = {"NEXUS_REFLECT_MIN_NEW": "1000"}


@pytest.fixture
def offline(deploy: Callable[..., Sandbox]) -> Sandbox:
    """The offline model judges."""
    return deploy(**SETTINGS)


@pytest.fixture
def scripted(claude: Callable[..., Sandbox], standin: StandIn) -> Sandbox:
    """Claude's stand-in judges, with answers that are scripted by what it is shown."""
    standin.answer("derive", _derived)
    standin.answer("reflect", _judged)
    return claude(**SETTINGS)


def _derived(call: Call) -> Any:
    said = ((line["text"], int(line["id"])) for line in LINE.finditer(call.parts[0]))
    return observations(*({"content": text, "sources": [i], "category": "preference"} for text, i in said))


def _judged(call: Call) -> Any:
    shown = {text: int(i) for i, text in re.findall(r"(?:new|near) \[(\d+)\] \S+ (.+)$", call.parts[0], re.MULTILINE)}
    relations = []
    for kind, new, old, holds in (
        ("reinforces", AGAIN, TUESDAY, "both"),
        ("contradicts", THURSDAY, TUESDAY, "new"),
        ("contradicts", THURSDAY, AGAIN, "new"),
    ):
        if new in shown and old in shown:
            relations.append(
                {"kind": kind, "new_id": shown[new], "old_id": shown[old], "holds": holds, "rationale": "as told"}
            )
    return {"relations": relations, "insights": []}


def live_through(*said: tuple[str, datetime, list[str]]) -> None:
    """Hear, derive and reflect."""
    for number, (text, when, observers) in enumerate(said):
        message = {"content": text, "author": "ann", "occurred_at": when}
        say(message, session=f"{when:%B} {number}", observers=observers)
    work("derive_memory")
    reflect_namespace.delay(namespace=NAMESPACE)
    work("reflect_namespace", "reflect_perspective")


def holds(observer: str, as_of: datetime | None = None) -> set[str]:
    """What an observer holds to be so about ann's deploys, by search."""
    found = Nexus().search(
        NAMESPACE, "when are the deploys?", observer=observer, subject="ann", levels=["explicit"], as_of=as_of, limit=50
    )
    listed = Nexus().memories(NAMESPACE, observer=observer, subject="ann", levels=["explicit"], as_of=as_of)
    assert {hit.content for hit in found} <= {memory.content for memory in listed}
    return {memory.content for memory in listed}


@pytest.mark.parametrize("model", ["offline", "scripted"])
def test_a_preference_is_stated_repeated_changed_and_the_change_undone(
    model: str, request: pytest.FixtureRequest
) -> None:
    here: Sandbox = request.getfixturevalue(model)
    live_through(*SAID[:3])
    before = dump(here, "job_runs", "model_calls", "perspectives", "reflections", "reflection_changes")
    # Both are kept, the repetition counts, and there is no third copy.
    assert Nexus().memories(NAMESPACE, observer="assistant", levels=["derived"]) == []
    counted = {m.content: m.times_reinforced for m in Nexus().memories(NAMESPACE, levels=["explicit"])}
    assert (counted[TUESDAY], counted[AGAIN], counted[COFFEE]) == (1, 1, 0)

    live_through(SAID[3])
    tells = {  # as of: what the assistant holds, what the coach holds
        JANUARY: ({TUESDAY}, {TUESDAY}),
        FEBRUARY: ({TUESDAY, AGAIN}, {TUESDAY, AGAIN, COFFEE}),
        APRIL: ({THURSDAY}, {TUESDAY, AGAIN, COFFEE}),
        None: ({THURSDAY}, {TUESDAY, AGAIN, COFFEE}),
    }
    for when, (assistant, coach) in tells.items():
        assert (holds("assistant", when), holds("coach", when)) == (assistant, coach), when
    changes = Nexus().memories(NAMESPACE, levels=["contradiction"])
    assert {change.observer for change in changes} == {"assistant"}
    assert {change.content for change in changes} == {
        f"Earlier: {TUESDAY} Now: {THURSDAY}",
        f"Earlier: {AGAIN} Now: {THURSDAY}",
    }
    told = Nexus().context(NAMESPACE, observer="assistant", query="deploys").text
    assert "Thursday" in told
    assert Nexus().search(NAMESPACE, "deploys", observer="coach", levels=["contradiction"]) == []

    [reflection] = {change.reflection for change in changes}
    after = dump(here)
    undone = Nexus().undo(NAMESPACE, reflection)
    assert undone.status == "undone"
    for when in (JANUARY, FEBRUARY):
        assert (holds("assistant", when), holds("coach", when)) == tells[when]
    for when in (APRIL, None):
        assert holds("assistant", when) == {TUESDAY, AGAIN, THURSDAY}
        assert holds("coach", when) == {TUESDAY, AGAIN, COFFEE}
    assert Nexus().memories(NAMESPACE, levels=["contradiction"]) == []
    # All that is new is what ann said in March: as before the reflection, to the last column.
    march = _ids_of(here, "March 0")
    now = dump(here, "job_runs", "model_calls", "perspectives", "reflections", "reflection_changes")
    assert {row for row in now["memories"] if int(row[1:].split(",")[0]) not in march} == set(before["memories"])
    assert set(before["evidence"]) <= set(now["evidence"])
    assert len(now["evidence"]) == len(before["evidence"]) + 1  # the fact of March rests on its message
    assert Nexus().undo(NAMESPACE, reflection).status == "unchanged"

    # And it stays undone, whatever is reflected on next.
    undone_state = dump(here, "job_runs", "perspectives")
    assert undone_state != after
    reflect_namespace.delay(namespace=NAMESPACE)
    work("reflect_namespace", "reflect_perspective")
    assert dump(here, "job_runs", "perspectives") == undone_state


def _ids_of(here: Sandbox, session_key: str) -> set[int]:
    """The messages of a session, and the facts that rest on them."""
    return {
        memory_id
        for (memory_id,) in here.sql(
            "WITH raw AS (SELECT m.id FROM memories m JOIN sessions s ON s.id = m.session_id"
            " WHERE s.session_key = :key AND m.level = 'raw')"
            " SELECT id FROM raw UNION SELECT memory_id FROM evidence WHERE source_id IN (SELECT id FROM raw)",
            key=session_key,
        )
    }
