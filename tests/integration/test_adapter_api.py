"""What adapters of frameworks need of the client: data of messages, pages of messages, topics to write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Message, Nexus
from nexus_tasks.errors import Conflict, InvalidInput, NotFound
from tests.sandbox import Sandbox

DATA = {"z": [1, 2.0, None, {"b": 'é\u2028"\\', "a": []}], "a": {"deep": {"er": True}}, "n": -1.5e-7, "": ""}


@pytest.fixture
def nexus(here: Sandbox) -> Nexus:
    return Nexus(here.deployment)


def said(nexus: Nexus, count: int) -> None:
    nexus.ingest("acme", "s", [{"content": f"message {n}", "id": f"m{n}"} for n in range(1, count + 1)], observers=[])


# --- data -------------------------------------------------------------------------------------------------------------
def test_data_comes_back_as_it_was_given_in_the_same_order(nexus: Nexus) -> None:
    nexus.ingest("acme", "s", [Message(content="", data=DATA, id="m"), Message(content="x", tool_calls=({"n": 1},))])
    first, second = nexus.session("acme", "s").said
    assert json.dumps(first.data) == json.dumps(DATA)
    assert (first.tool_calls, second.data, second.tool_calls) == ((), None, ({"n": 1},))
    assert [memory.data for memory in nexus.memories("acme", levels=["raw"])] == [None, DATA]


def test_a_message_with_other_data_is_another_message(nexus: Nexus) -> None:
    def store(data: Any, *, replace: bool = False) -> int:
        return nexus.ingest("acme", "s", [Message(content="x", data=data, id="m")], replace=replace).stored

    assert (store({"a": 1}), store({"a": 1})) == (1, 0)
    with pytest.raises(InvalidInput, match="data"):
        store({"a": 2})
    assert store({"a": 2}, replace=True) == 1
    assert [one.data for one in nexus.session("acme", "s").said] == [{"a": 2}]
    unnamed = [nexus.ingest("acme", "t", [Message(content="", data={"a": n})]).stored for n in (1, 2, 1)]
    assert unnamed == [1, 1, 0]


@pytest.mark.parametrize(
    "data", [{"a": float("nan")}, {1: "x"}, {"a": (1,)}, {"a": "\0"}, {"a": "\ud800"}, {"a": object()}, [1], "x"]
)
def test_data_that_would_not_come_back_is_refused(nexus: Nexus, data: Any) -> None:
    with pytest.raises(InvalidInput, match="data"):
        nexus.ingest("acme", "s", [{"content": "x", "data": data}])


def test_data_counts_toward_the_size_of_a_message(nexus: Nexus) -> None:
    with pytest.raises(InvalidInput, match="1,000,000"):
        nexus.ingest("acme", "s", [{"content": "x", "data": {"a": "x" * 1_000_000}}])
    with pytest.raises(InvalidInput, match="10,000 values"):
        nexus.ingest("acme", "s", [{"content": "x", "data": {"a": [0] * 10_001}}])


def test_secrets_in_data_are_replaced_unless_the_namespace_keeps_them(nexus: Nexus) -> None:
    secret = {"config": {"password": "swordfish-9-and-more"}}
    for name, scrub in (("acme", True), ("open", False)):
        nexus.create_namespace(name, scrub=scrub)
        assert [nexus.ingest(name, "s", [Message(content="", data=secret, id="m")]).stored for _ in "ab"] == [1, 0]
    assert "swordfish" not in json.dumps(nexus.session("acme", "s").said[0].data)
    assert nexus.session("open", "s").said[0].data == secret


def test_data_is_exported_imported_and_buffered(nexus: Nexus, here: Sandbox, tmp_path: Any) -> None:
    nexus.ingest("acme", "s", [Message(content="x", data=DATA, id="m")])
    nexus.export("acme", tmp_path / "a.jsonl")
    nexus.import_("copy", tmp_path / "a.jsonl")
    assert nexus.session("copy", "s").said[0].data == DATA
    from nexus_tasks.services import buffer_flush

    buffer_flush.keep(here.deployment, "later", "s", [Message(content="", data=DATA)], None, observe=None, end=False)
    nexus.search("acme", "x")
    assert nexus.session("later", "s").said[0].data == DATA


# --- pages of a session -----------------------------------------------------------------------------------------------
def test_the_newest_messages_are_paged_backwards(nexus: Nexus) -> None:
    said(nexus, 5)
    page = nexus.session("acme", "s", newest=True, limit=2)
    assert ([one.seq for one in page.said], page.next_before, page.next_after) == ([4, 5], 4, None)
    page = nexus.session("acme", "s", newest=True, limit=2, before=4)
    assert ([one.seq for one in page.said], page.next_before) == ([2, 3], 2)
    page = nexus.session("acme", "s", newest=True, limit=2, before=2)
    assert ([one.seq for one in page.said], page.next_before) == ([1], None)
    assert [one.seq for one in nexus.session("acme", "s", after=1, before=4).said] == [2, 3]


def test_messages_are_found_by_their_ids(nexus: Nexus) -> None:
    said(nexus, 5)
    nexus.ingest("acme", "other", [{"content": "x", "id": "m1"}])
    assert [one.content for one in nexus.session("acme", "s", ids=["m4", "m2", "nonesuch"]).said] == [
        "message 2",
        "message 4",
    ]
    assert nexus.session("acme", "s", ids=[]).said == ()


# --- sessions by prefix -----------------------------------------------------------------------------------------------
def test_sessions_and_memories_are_selected_by_the_beginning_of_the_key(nexus: Nexus) -> None:
    for key in ("shop/ann", "shop/ben", "shop_x", "shop%", "office"):
        nexus.ingest("acme", key, [{"content": f"tea in {key}"}], observers=[])
    keys = [one.session_key for one in nexus.sessions("acme", session_prefix="shop/")]
    assert keys == ["shop/ben", "shop/ann"]
    assert {one.session_key for one in nexus.memories("acme", session_prefix="shop/")} == set(keys)
    assert {one.session_key for one in nexus.search("acme", "tea", session_prefix="shop/")} == set(keys)
    assert [one.session_key for one in nexus.sessions("acme", session_prefix="shop%")] == ["shop%"]
    assert nexus.search("acme", "tea", session_prefix="nonesuch") == []


# --- topics -----------------------------------------------------------------------------------------------------------
def test_a_topic_is_made_changed_renamed_and_deleted(nexus: Nexus) -> None:
    made = nexus.write_topic("acme", "Deploys", "# Deploys\n- On Tuesdays.", author="claude")
    assert (made.filename, made.name, made.description, made.type) == ("deploys.md", "deploys", "Deploys", "reference")
    assert (made.made_by, made.revision) == ("claude", 1)
    changed = nexus.write_topic("acme", "deploys.md", "- On Mondays.", type="project", revision=1)
    assert (changed.revision, changed.type, changed.name, changed.description) == (2, "project", "deploys", "Deploys")
    assert nexus.write_topic("acme", "deploys.md", "- On Mondays.").revision == 2
    assert nexus.rename_topic("acme", "deploys.md", "releases").filename == "releases.md"
    with pytest.raises(NotFound):
        nexus.topic("acme", "deploys.md")
    nexus.delete_topic("acme", "releases.md")
    assert nexus.topics("acme") == []
    assert nexus.audit("acme", action="erase")[0].action == "erase.topic"


def test_a_topic_that_has_changed_meanwhile_is_not_overwritten(nexus: Nexus) -> None:
    nexus.write_topic("acme", "a", "one", revision=0)
    for revision in (0, 2):
        with pytest.raises(Conflict):
            nexus.write_topic("acme", "a", "two", revision=revision)
    with pytest.raises(Conflict):
        nexus.write_topic("acme", "nonesuch", "two", revision=1)
    nexus.write_topic("acme", "b", "two")
    with pytest.raises(Conflict):
        nexus.rename_topic("acme", "b.md", "a.md")
    assert [(one.filename, nexus.topic("acme", one.filename).content) for one in nexus.topics("acme")] == [
        ("b.md", "two"),
        ("a.md", "one"),
    ]


@pytest.mark.parametrize(
    "filename", ["../a", "/etc/passwd", "a/b", "con.md", "README.md", ".hidden", "", "é", "x" * 130]
)
def test_a_topic_takes_no_name_that_leads_elsewhere(nexus: Nexus, filename: str) -> None:
    nexus.write_topic("acme", "a", "one")
    with pytest.raises(InvalidInput):
        nexus.write_topic("acme", filename, "text")
    with pytest.raises(InvalidInput):
        nexus.rename_topic("acme", "a.md", filename)


def test_a_topic_has_text_within_its_bound(nexus: Nexus) -> None:
    for content, why in (("", "empty"), (" \n", "empty"), ("x" * 8_001, "8,000")):
        with pytest.raises(InvalidInput, match=why):
            nexus.write_topic("acme", "a", content)
    with pytest.raises(InvalidInput, match="type"):
        nexus.write_topic("acme", "a", "x", type="poem")  # type: ignore[arg-type]
    written = nexus.write_topic("acme", "a", "token ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    assert "ghp_" not in written.content


def test_an_erased_session_still_reaches_the_topic_that_was_written_over(nexus: Nexus, here: Sandbox) -> None:
    receipt = nexus.ingest("acme", "s", [{"content": "x"}], observers=[])
    assert receipt.stored == 1
    nexus.write_topic("acme", "a", "from the message")
    with here.deployment.database.transaction() as tx:
        tx.execute(
            text(
                "INSERT INTO topic_sources (topic_id, memory_id, namespace_id)"
                " SELECT t.id, m.id, m.namespace_id FROM topics t, memories m"
            )
        )
        tx.execute(text("UPDATE topics SET own = ''"))  # as if an extraction had written it
    nexus.write_topic("acme", "a", "written over by a person\nfrom this message")
    nexus.forget("acme", session_key="s")
    [left] = nexus.topics("acme")
    assert "message" not in f"{left.filename} {left.name} {left.description}"
    assert nexus.topic("acme", left.filename).content == "written over by a person"  # not the reworded line
