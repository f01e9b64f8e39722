"""Lists that show how memories hang together: perspectives, history, and the facts beside a session's messages."""

from __future__ import annotations

import json

import pytest

from nexus_tasks import Nexus
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, facts, say, work

pytestmark = pytest.mark.usefixtures("here")


def test_superseded_memories_are_listed_when_asked_for() -> None:
    say("I live in Lisbon.", end=True)
    work()
    [old] = facts()
    new = Nexus().revise(NAMESPACE, old.id, "Ann lives in Porto.")
    assert [one.id for one in Nexus().memories(NAMESPACE, levels=["explicit"])] == [new.id]
    found = {one.id: one for one in Nexus().memories(NAMESPACE, levels=["explicit"], superseded=True)}
    assert set(found) == {old.id, new.id}
    assert found[old.id].superseded_by == new.id
    listed = nexus("memories", "list", "--namespace", NAMESPACE, "--level", "explicit", "--superseded", "--json")
    assert {one["id"] for one in json.loads(listed.stdout)["memories"]} == {old.id, new.id}


def test_perspectives_are_listed_with_their_figures() -> None:
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    say("I live in Lisbon.", "I drink green tea every morning.", end=True)
    work()
    found = Nexus().perspectives(NAMESPACE)
    assert [(one.observer, one.memories) for one in found] == [("assistant", 2), ("coach", 2)]
    assert {one.subject for one in found} == {facts()[0].subject}
    assert [one.unreflected for one in found] == [2, 2]
    assert Nexus().perspectives(NAMESPACE, limit=1, offset=1) == found[1:]
    listed = nexus("memories", "perspectives", "--namespace", NAMESPACE, "--json")
    assert json.loads(listed.stdout)["perspectives"] == [one.to_dict() for one in found]


def test_the_facts_of_a_page_of_a_session() -> None:
    ids = say("I live in Lisbon.", "Hm.", "I drink green tea every morning.", end=True)
    work()
    key = Nexus().sessions(NAMESPACE)[0].session_key
    found = Nexus().session_facts(NAMESPACE, key)
    assert [one.sources for one in found] == [(ids[0],), (ids[2],)]
    assert "Lisbon" in found[0].content
    assert [one.sources for one in Nexus().session_facts(NAMESPACE, key, after=1, limit=2)] == [(ids[2],)]
    assert [one.sources for one in Nexus().session_facts(NAMESPACE, key, before=3)] == [(ids[0],)]
    assert Nexus().session_facts(NAMESPACE, key, limit=1, offset=1) == found[1:]
    assert Nexus().session_facts(NAMESPACE, key, after=3) == []
    Nexus().revise(NAMESPACE, found[0].id, "Ann lives in Porto.")
    assert found[0].id not in {one.id for one in Nexus().session_facts(NAMESPACE, key)}
    ever = Nexus().session_facts(NAMESPACE, key, superseded=True)
    assert found[0].id in {one.id for one in ever}


def test_a_number_of_thousands_of_digits_is_no_memory() -> None:
    """Before, Python's own error was shown: it converts no number with so many digits."""
    told = nexus("memories", "show", "9" * 5_000, "--namespace", NAMESPACE)
    assert told.returncode == 2, told.stderr
