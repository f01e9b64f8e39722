"""LangGraph's store and nodes: against the documentation of `BaseStore`, and beside LangGraph's own store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services.cells import moving
from tests.adapters.frameworks import needs
from tests.cells import two_cells
from tests.integration.inline import work
from tests.sandbox import Sandbox

needs("langgraph")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.store.base import (  # noqa: E402
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore  # noqa: E402

from nexus_tasks.integrations.langgraph import MemoryState, NexusStore, recall_node, remember_node  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture
def store(nexus: Nexus) -> NexusStore:
    return NexusStore(nexus, "acme")


# --- items ------------------------------------------------------------------------------------------------------------
VALUES = ({"text": "x"}, {}, {"n": 1.5, "none": None, "deep": {"list": [1, "é", {"a": []}]}, "": "\u2028"})


@pytest.mark.parametrize("value", VALUES)
def test_an_item_comes_back_as_it_was_put(store: NexusStore, value: dict[str, Any]) -> None:
    before = datetime.now(UTC)
    store.put(("users", "ann"), "key", value)
    item = store.get(("users", "ann"), "key")
    assert item is not None
    assert (item.value, item.key, item.namespace) == (value, "key", ("users", "ann"))
    assert before <= item.created_at == item.updated_at <= datetime.now(UTC)
    assert store.get(("users",), "key") is None
    assert store.get(("users", "ann"), "nonesuch") is None
    item.value["changed"] = True
    assert store.get(("users", "ann"), "key").value == value  # type: ignore[union-attr]


def test_a_put_over_an_item_replaces_its_value_and_keeps_its_beginning(store: NexusStore, nexus: Nexus) -> None:
    for value in ({"a": 1}, {"a": 2}, {"a": 2}):
        store.put(("n",), "k", value)
    item = store.get(("n",), "k")
    assert item is not None
    assert item.value == {"a": 2}
    assert item.created_at < item.updated_at
    assert len(nexus.memories("acme", levels=["raw"])) == 1


def test_a_deleted_item_is_gone_and_may_come_back(store: NexusStore) -> None:
    store.delete(("n",), "nonesuch")
    store.put(("n",), "k", {"a": 1})
    store.delete(("n",), "k")
    assert store.get(("n",), "k") is None
    assert store.search(("n",)) == []
    assert store.list_namespaces() == []
    store.put(("n",), "k", {"a": 1})
    assert store.get(("n",), "k") is not None


def test_two_deletes_of_an_item_at_once_are_one(
    store: NexusStore, nexus: Nexus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(("n",), "k", {"a": 1})
    forget = nexus.forget

    def forgotten_before(*args: Any, **kwargs: Any) -> Any:
        forget(*args, **kwargs)
        return forget(*args, **kwargs)

    monkeypatch.setattr(nexus, "forget", forgotten_before)
    store.delete(("n",), "k")
    assert store.get(("n",), "k") is None


UUID = "4f9c1d7a-7d36-4be0-9f1e-0c2b1f6a7d31"
RANDOM = (UUID, UUID.replace("-", ""), "Zt8QmX2vLr5Kc9Wd1HbN0pYs", f"https://example.com/{UUID}/{UUID}/" + "x" * 150)


def test_a_random_key_comes_back_as_it_was_given(store: NexusStore) -> None:
    for key in RANDOM:
        store.put(("memories", "ann"), key, {"text": f"about {key[:4]}"})
    assert [item.key for item in store.search(("memories",))] == list(RANDOM[::-1])
    assert {item.key for item in store.search(("memories",), query="about")} <= set(RANDOM)
    for item in store.search(("memories",)):
        assert store.get(item.namespace, item.key).key == item.key  # type: ignore[union-attr]
        store.put(item.namespace, item.key, {"text": "changed"})
    assert [item.value["text"] for item in store.search(("memories",))] == ["changed"] * 4
    for item in store.search(("memories",)):
        store.delete(item.namespace, item.key)
    assert store.search(("memories",)) == []


ODD = ("a b", "é", "a/b", "%2F", "*", "a" * 300, "\u2028", " ", "🙂", "'; DROP TABLE memories;--")


def test_odd_keys_and_labels_do_not_meet(store: NexusStore) -> None:
    for number, odd in enumerate(ODD):
        store.put(("n",), odd, {"number": number})
        if len(odd) < 100:
            store.put(("labels", odd), "k", {"number": number})
    for number, odd in enumerate(ODD):
        assert store.get(("n",), odd).value == {"number": number}  # type: ignore[union-attr]
        if len(odd) < 100:
            assert store.get(("labels", odd), "k").value == {"number": number}  # type: ignore[union-attr]
            assert [item.value for item in store.search(("labels", odd))] == [{"number": number}]
    assert set(store.list_namespaces(prefix=("labels",))) == {("labels", odd) for odd in ODD if len(odd) < 100}
    with pytest.raises(InvalidInput):
        store.put(("x" * 300,), "k", {})


@pytest.mark.parametrize("namespace", [(), ("",), ("a.b",), ("langgraph",), ("a\0",)])
def test_a_wrong_namespace_is_refused(store: NexusStore, namespace: tuple[str, ...]) -> None:
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})
    with pytest.raises((InvalidNamespaceError, NotImplementedError)):
        store.batch([PutOp(("a.b",), "k", {})])


def test_a_value_that_is_no_json_is_refused(store: NexusStore) -> None:
    for value in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(InvalidInput):
            store.put(("n",), "k", value)
    with pytest.raises(NotImplementedError):
        store.put(("n",), "k", {}, ttl=1)


# --- search -----------------------------------------------------------------------------------------------------------
def test_a_search_finds_by_meaning_below_a_prefix(store: NexusStore, nexus: Nexus) -> None:
    store.put(("users", "ann"), "tea", {"text": "Ann drinks green tea."})
    store.put(("users", "ann"), "city", {"text": "Ann lives in Lisbon."})
    store.put(("users", "ben"), "tea", {"text": "Ben hates tea."})
    store.put(("other",), "tea", {"text": "Tea is a plant."})
    store.put(("users", "ann"), "hidden", {"text": "tea that no search reads"}, index=False)
    work()
    found = store.search(("users", "ann"), query="tea")
    assert found[0].key == "tea"
    assert found[0].value == {"text": "Ann drinks green tea."}
    assert found[0].score is not None
    assert "hidden" not in [item.key for item in found if item.score and item.score > 0.3]
    assert {item.namespace for item in store.search(("users",), query="tea")} == {("users", "ann"), ("users", "ben")}
    assert [
        item.key for item in store.search(("users", "ann"), query="lisbon", filter={"text": {"$ne": "x"}}, limit=1)
    ] == ["city"]
    assert nexus.memories("acme", levels=["explicit"]) == []
    assert "green tea" in str(nexus.context("acme", query="green tea"))


def test_the_fields_to_read_are_paths(nexus: Nexus) -> None:
    store = NexusStore(nexus, "acme", fields=["a.title"])
    store.put(("n",), "default", {"a": {"title": "walnut"}, "b": "hazel"})
    store.put(("n",), "own", {"a": {"title": "beech"}, "b": "oak"}, index=["b"])
    texts = {memory.external_id: memory.content for memory in nexus.memories("acme", levels=["raw"])}
    assert texts == {"key:default": "walnut", "key:own": "oak"}


FILTERS = (
    {"a": 1},
    {"a": {"$eq": 1}},
    {"a": {"$ne": 1}},
    {"a": {"$gt": 1}},
    {"a": {"$gte": 1}},
    {"a": {"$lt": 2}},
    {"a": {"$lte": 1}},
    {"a": {"$gt": 0, "$lt": 2}},
    {"a": 1, "b": "x"},
    {"b": "x"},
    {"c": None},
    {"d": {"e": 1}},
)


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_a_filter_selects_what_langgraphs_own_store_selects(store: NexusStore, wanted: dict[str, Any]) -> None:
    own = InMemoryStore()
    for kept in (store, own):
        for key, value in enumerate(
            ({"a": 1}, {"a": 2, "b": "x"}, {"a": 1, "b": "x"}, {"d": {"e": 1, "f": 2}}, {"b": 0})
        ):
            kept.put(("n",), str(key), value)
    try:
        expected = {item.key for item in own.search(("n",), filter=wanted)}
    except TypeError:  # its own store compares None with a number
        expected = None
    found = {item.key for item in store.search(("n",), filter=wanted)}
    assert expected is None or found == expected
    with pytest.raises(ValueError, match="operator"):
        store.search(("n",), filter={"a": {"$nonesuch": 1}})


def test_pages_have_every_item_once(store: NexusStore) -> None:
    store.batch([PutOp(("n", str(n % 3)), str(n), {"n": n}) for n in range(25)])
    pages = [store.search(("n",), limit=10, offset=offset) for offset in (0, 10, 20, 30)]
    assert [len(page) for page in pages] == [10, 10, 5, 0]
    assert sorted(item.value["n"] for page in pages for item in page) == list(range(25))
    assert len(store.search(("n",), filter={"n": {"$gte": 5}}, limit=100)) == 20


def test_a_filter_finds_large_items_too(store: NexusStore, nexus: Nexus) -> None:
    nexus.create_namespace("acme", scrub=False)
    text = "é" * 99_000  # 100 items have 20 MB, and one answer has at most 16 MB
    store.batch([PutOp(("n",), str(n), {"text": text, "title": "tea", "n": n}, index=["title"]) for n in range(100)])
    found = store.search(("n",), query="tea", filter={"n": {"$gte": 0}}, limit=5)
    assert len(found) == 5
    assert store.search(("n",), query=" ", filter={"n": 7})[0].key == "7"


# --- namespaces -------------------------------------------------------------------------------------------------------
def test_namespaces_are_listed_as_langgraphs_own_store_lists_them(store: NexusStore) -> None:
    own = InMemoryStore()
    every = [("a",), ("a", "b"), ("a", "b", "c"), ("a", "c"), ("b", "a"), ("ab",), ("b", "b", "c"), ("c", "v1", "x")]
    for kept in (store, own):
        for namespace in every:
            kept.put(namespace, "k", {})
    for asked in (
        {},
        {"prefix": ("a",)},
        {"prefix": ("a", "*")},
        {"prefix": ("*", "b")},
        {"suffix": ("c",)},
        {"suffix": ("*", "c")},
        {"prefix": ("a",), "suffix": ("c",)},
        {"max_depth": 1},
        {"prefix": ("b",), "max_depth": 2},
        {"limit": 2},
        {"limit": 3, "offset": 4},
        {"prefix": ("nonesuch",)},
    ):
        assert store.list_namespaces(**asked) == own.list_namespaces(**asked), asked  # type: ignore[arg-type]


# --- batches ----------------------------------------------------------------------------------------------------------
def test_a_batch_reads_before_it_writes_and_the_last_put_counts(store: NexusStore) -> None:
    store.put(("n",), "old", {"a": 1})
    results = store.batch(
        [
            PutOp(("n",), "old", {"a": 2}),
            GetOp(("n",), "old"),
            PutOp(("n",), "old", {"a": 3}),
            PutOp(("n",), "new", {"a": 4}),
            SearchOp(("n",)),
            ListNamespacesOp((MatchCondition("prefix", ("n",)),)),
            PutOp(("n",), "new", None),
        ]
    )
    assert results[1].value == {"a": 1}  # type: ignore[union-attr]
    assert [item.value for item in results[4]] == [{"a": 1}]  # type: ignore[union-attr]
    assert results[5] == [("n",)]
    assert [results[n] for n in (0, 2, 3, 6)] == [None] * 4
    assert {item.key: item.value for item in store.search(("n",))} == {"old": {"a": 3}}


def test_the_async_calls_do_the_same(store: NexusStore) -> None:
    async def talk() -> None:
        await asyncio.gather(*(store.aput(("n",), str(n), {"n": n}) for n in range(5)))
        assert (await store.aget(("n",), "3")).value == {"n": 3}  # type: ignore[union-attr]
        assert len(await store.asearch(("n",))) == 5
        await store.adelete(("n",), "3")
        assert await store.aget(("n",), "3") is None
        assert await store.alist_namespaces() == [("n",)]

    asyncio.run(talk())


def test_random_operations_end_as_in_langgraphs_own_store(store: NexusStore) -> None:
    luck, own = random.Random(4), InMemoryStore()
    namespaces = [("a",), ("a", "b"), ("b",)]
    for _ in range(15):
        ops: list[Any] = []
        for _ in range(luck.randint(1, 6)):
            namespace, key = luck.choice(namespaces), luck.choice("xyz")
            value = luck.choice([None, {"n": luck.randint(0, 3)}, {"n": luck.randint(0, 3), "m": "é"}])
            ops.append(luck.choice([PutOp(namespace, key, value), GetOp(namespace, key)]))
        told, expected = store.batch(ops), own.batch(ops)
        assert [item and (item.value, item.namespace, item.key) for item in told] == [
            item and (item.value, item.namespace, item.key) for item in expected
        ]
    for namespace in namespaces:
        every = {(item.namespace, item.key): item.value for item in store.search(namespace, limit=100)}
        assert every == {(item.namespace, item.key): item.value for item in own.search(namespace, limit=100)}


def test_two_tenants_do_not_meet(nexus: Nexus) -> None:
    NexusStore(nexus, "acme").put(("n",), "k", {"a": 1})
    for other in (NexusStore(nexus, "globex"), NexusStore(nexus, "acme", root="other")):
        assert other.get(("n",), "k") is None
        assert other.search(()) == []
        assert other.list_namespaces() == []


def test_an_item_that_others_put_into_the_session_is_left_out(store: NexusStore, nexus: Nexus) -> None:
    store.put(("n",), "k", {"a": 1})
    nexus.ingest("acme", "langgraph/n/", [{"content": "not an item"}, {"content": "nor this", "data": {"x": 1}}])
    assert [item.key for item in store.search(("n",))] == ["k"]
    assert [item.key for item in store.search(("n",), query="item")] in ([], ["k"])


# --- nodes ------------------------------------------------------------------------------------------------------------
def graph_with(nexus: Nexus) -> Any:
    def answer(state: MemoryState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"I know: {state['memory']}")]}

    graph = StateGraph(MemoryState)
    graph.add_node("recall", recall_node(nexus, "acme"))
    graph.add_node("answer", answer)
    graph.add_node("remember", remember_node(nexus, "acme"))
    for one, two in ((START, "recall"), ("recall", "answer"), ("answer", "remember"), ("remember", END)):
        graph.add_edge(one, two)
    return graph.compile(checkpointer=InMemorySaver())


def test_a_graph_recalls_in_another_thread_what_it_remembered(nexus: Nexus) -> None:
    graph = graph_with(nexus)
    first = {"configurable": {"thread_id": "chat-1", "user_id": "ann"}}
    for text in ("I moved to Lisbon.", "I drink green tea."):
        graph.invoke({"messages": [HumanMessage(text)]}, first)
    said = nexus.session("acme", "chat-1").said
    assert [(one.role, one.author) for one in said] == [("user", "ann"), ("assistant", "assistant")] * 2
    work()
    second = {"configurable": {"thread_id": "chat-2", "user_id": "ann"}}
    told = asyncio.run(graph.ainvoke({"messages": [HumanMessage("Which city did I move to?")]}, second))
    assert "Lisbon" in told["messages"][-1].text


def test_the_node_stores_tools_and_edits_and_no_system_prompt(nexus: Nexus) -> None:
    node, config = remember_node(nexus, "acme"), {"configurable": {"thread_id": "t"}}
    call = {"name": "weather", "args": {"city": "Lisbon"}, "id": "1", "type": "tool_call"}
    messages = [
        SystemMessage("Be brief.", id="0"),
        HumanMessage(
            [{"type": "text", "text": "weather?"}, {"type": "image_url", "image_url": {"url": "data:x"}}], id="1"
        ),
        AIMessage("", tool_calls=[call], id="2"),
        ToolMessage("Sunny.", tool_call_id="1", name="weather", id="3"),
        AIMessage("It is sunny.", id="4"),
    ]
    node({"messages": messages}, config)  # type: ignore[arg-type]
    node({"messages": [*messages[:4], AIMessage("It is very sunny.", id="4")]}, config)  # type: ignore[arg-type]
    said = nexus.session("acme", "t").said
    assert [(one.role, one.author, one.content) for one in said] == [
        ("user", "user", "weather?"),
        ("assistant", "assistant", ""),
        ("tool", "weather", "Sunny."),
        ("assistant", "assistant", "It is very sunny."),
    ]
    assert said[1].tool_calls == (call,)


@pytest.mark.parametrize("whole", [False, True])
def test_a_thread_brings_back_no_erased_message(nexus: Nexus, whole: bool) -> None:
    node, config = remember_node(nexus, "acme"), {"configurable": {"thread_id": "t"}}
    messages = [HumanMessage("The door code is on the calendar.", id="1"), HumanMessage("I like rye bread.", id="2")]
    node({"messages": messages}, config)  # type: ignore[arg-type]
    node({"messages": [*messages[:1], HumanMessage("I like rice.", id="2")]}, config)  # type: ignore[arg-type]
    [first, _] = nexus.session("acme", "t").said
    if whole:
        nexus.forget("acme", session_key="t")
    else:
        nexus.forget("acme", memory_id=first.id)
    edited = [*messages[:1], HumanMessage("I like oats.", id="2"), HumanMessage("And now lunch.", id="3")]
    node({"messages": edited}, config)  # type: ignore[arg-type]
    said = [one.content for one in nexus.session("acme", "t").said]
    assert said == (["And now lunch."] if whole else ["I like oats.", "And now lunch."])


def test_a_thread_may_use_the_ids_of_erased_messages_of_another(nexus: Nexus) -> None:
    """A program may number the messages of each thread 1, 2, 3."""
    node = remember_node(nexus, "acme")
    said = [HumanMessage("I like rye bread.", id="1"), HumanMessage("I like figs.", id="2")]
    for thread in ("ann", "zoë", "bob"):
        node({"messages": said}, {"configurable": {"thread_id": thread}})  # type: ignore[arg-type]
        assert len(nexus.session("acme", thread).said) == 2
        nexus.forget("acme", session_key=thread)
    node({"messages": said}, {"configurable": {"thread_id": "zoe\u0308"}})  # type: ignore[arg-type]
    assert not nexus.session("acme", "zoë").said


def test_what_cannot_be_stored_of_a_message_does_not_cost_the_thread(nexus: Nexus) -> None:
    """The state keeps the message, so every later call of the thread would fail."""
    call = {"name": "read", "args": {"path": "a\0.pdf"}, "id": "1", "type": "tool_call"}
    messages = [
        HumanMessage("Read it.", id="1"),
        AIMessage("", tool_calls=[call], id="2"),
        ToolMessage("a page\0 of a PDF", tool_call_id="1", id="3"),
        ToolMessage("\0", tool_call_id="1", id="4"),
        ToolMessage("word " * 300_000, tool_call_id="1", id="5"),
        AIMessage("It is read.", id="6"),
    ]
    node = remember_node(nexus, "acme")
    for _ in range(2):
        node({"messages": messages}, {"configurable": {"thread_id": "t", "user_id": 42}})
    said = nexus.session("acme", "t").said
    assert [(one.role, one.author, one.content[:17]) for one in said] == [
        ("user", "42", "Read it."),
        ("assistant", "assistant", ""),
        ("tool", "tool", "a page of a PDF"),
        ("tool", "tool", "word word word wo"),
        ("assistant", "assistant", "It is read."),
    ]
    assert said[1].tool_calls == ({"name": "read", "id": "1"},)
    node({"messages": messages[:1]}, {"configurable": {"thread_id": "u", "user_id": ""}})
    assert nexus.session("acme", "u").said[0].author == "user"


def test_what_is_recalled_hides_nothing_from_people(nexus: Nexus) -> None:
    nexus.ingest("acme", "s", [{"content": "Deploys are on \u202eTuesdays.\U000e0068\U000e0069", "author": "ann"}])
    work()
    told = recall_node(nexus, "acme")({"messages": [HumanMessage("When are deploys?")]}, {})["memory"]
    assert "Tuesdays." in told
    assert not set(told) & set("\u202e\U000e0068\U000e0069")


def test_a_thread_goes_on_when_its_namespace_has_moved_to_another_cell(
    deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "NAMESPACE_REMEMBERED_SECONDS", 0.0)
    with two_cells(deploy, tmp_path) as both:
        late = Nexus(cells=str(both.file))
        node, config = remember_node(late, "acme"), {"configurable": {"thread_id": "t"}}
        said = [HumanMessage("I live in Porto.", id="m1")]
        node({"messages": said}, config)
        moving.move(both.cells, "acme", "one")
        node({"messages": [*said, HumanMessage("I drink tea.", id="m2")]}, config)
        assert both.one.sql("SELECT external_id FROM memories ORDER BY 1") == [("m1",), ("m2",)]
        late.cells.close()  # type: ignore[union-attr]
