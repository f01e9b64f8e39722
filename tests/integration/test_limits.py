"""Beyond a limit a call fails with the limit and a remedy, stores nothing, and the next call works."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import typer
from sqlalchemy import event

from nexus_tasks import Message, Nexus, limits
from nexus_tasks.cli.main import app
from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency import quarantine
from nexus_tasks.integrations.mcp import http
from nexus_tasks.integrations.mcp.server import server
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.storage import perspectives, tenancy, topics
from nexus_tasks.storage.transfer import reading
from tests.commandline import nexus
from tests.integration.inline import say, work
from tests.integration.served import served
from tests.integration.test_nonsense import leaves
from tests.sandbox import Sandbox

NAMESPACE, TOKEN = "limits", "token-" + "0123456789" * 3
pytestmark = pytest.mark.usefixtures("here")
CALLS = ({"name": "Write", "input": {"text": "x" * 600_000}},)

BEYOND: dict[str, tuple[str, Callable[[Nexus], Any]]] = {
    "content": ("1,000,000", lambda nexus: nexus.remember(NAMESPACE, "x" * (limits.MESSAGE_CHARACTERS + 1))),
    "content and tool calls": (
        "1,000,000",
        lambda nexus: nexus.ingest(NAMESPACE, "s", [Message(content="x" * 600_000, tool_calls=CALLS)]),
    ),
    "values of tool calls": (
        "10,000",
        lambda nexus: nexus.ingest(NAMESPACE, "s", [{"content": "x", "tool_calls": [{"a": [["x", {}]] * 3_400}]}]),
    ),
    "derivations": (
        "100,000",
        lambda nexus: nexus.ingest(NAMESPACE, "s", [{"content": "a"}] * 1_001, observers=[f"o{n}" for n in range(100)]),
    ),
    "observers": (
        "100",
        lambda nexus: nexus.ingest(NAMESPACE, "s", [{"content": "a"}], observers=[f"o{n}" for n in range(101)]),
    ),
    "name": ("256", lambda nexus: nexus.ingest(NAMESPACE, "s" * 257, [{"content": "a"}])),
    "author": ("256", lambda nexus: nexus.remember(NAMESPACE, "a", author="a" * 257)),
    "word": ("1,000", lambda nexus: nexus.session(NAMESPACE, "s" * 1_001)),
    "query": ("100,000", lambda nexus: nexus.search(NAMESPACE, "tea " * 25_001)),
    "list": ("10,000", lambda nexus: nexus.search(NAMESPACE, "tea", levels=itertools.repeat("raw"))),
    "results": ("1,000", lambda nexus: nexus.search(NAMESPACE, "tea", limit=1_001)),
    "tokens": ("1,000,000", lambda nexus: nexus.context(NAMESPACE, query="tea", max_tokens=1_000_001)),
    "page": ("1,000", lambda nexus: nexus.memories(NAMESPACE, limit=1_001)),
    "offset": ("1,000,000", lambda nexus: nexus.jobs(offset=1_000_001)),
    "messages of a session": ("1,000", lambda nexus: nexus.session(NAMESPACE, "s", limit=1_001)),
    "path": ("4,096", lambda nexus: nexus.export(NAMESPACE, "x" * 4_097)),
    "job id": ("10,000", lambda nexus: nexus.job("x" * 10_001)),
}


@pytest.mark.parametrize("what", BEYOND)
def test_the_client_refuses_and_stores_nothing(what: str) -> None:
    client = Nexus()
    client.remember(NAMESPACE, "kept")
    limit, call = BEYOND[what]
    with pytest.raises(InvalidInput, match=limit) as caught:
        call(client)
    assert caught.value.remedy
    assert [one.content for one in client.memories(NAMESPACE)] == ["kept"]


def test_a_call_with_too_many_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGES_PER_CALL", 1_000)
    endless = ({"content": f"message {number}"} for number in itertools.count())
    with pytest.raises(InvalidInput, match="more than 1,000 messages"):
        Nexus().ingest(NAMESPACE, "s", endless)  # type: ignore[arg-type]
    assert Nexus().ingest(NAMESPACE, "s", [{"content": f"{n}"} for n in range(1_000)]).stored == 1_000


def test_a_list_that_can_be_read_only_once_is_refused() -> None:
    """The check of the limit reads it to its end, so nothing would be left of it for the call."""
    once: Any = (name for name in ("ann", "bob"))
    with pytest.raises(InvalidInput, match="observers must be a list of texts"):
        Nexus().ingest(NAMESPACE, "s", [{"content": "a"}], observers=once)
    assert Nexus().namespaces() == []


def test_the_largest_message_is_stored() -> None:
    assert Nexus().remember(NAMESPACE, "x" * limits.MESSAGE_CHARACTERS).stored == 1


def test_commands_refuse_with_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"content": "x" * 600_000, "tool_calls": CALLS}) + "\n")
    for arguments in (
        ("ingest", str(file), "--namespace", NAMESPACE, "--json"),
        ("remember", "a", "--namespace", NAMESPACE, "--author", "a" * 257, "--json"),
        ("search", "tea " * 25_001, "--namespace", NAMESPACE, "--json"),
    ):
        done = nexus(*arguments)
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["type"]) == (1, "InvalidInput"), done.stdout
        assert "at most" in error["message"]
        assert error["remedy"]


# --- pages ------------------------------------------------------------------------------------------------------------
def statements(here: Sandbox, call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and how many rows it reads."""
    rows = 0

    def count(_conn: Any, cursor: Any, *_others: Any) -> None:
        nonlocal rows
        rows += max(cursor.rowcount, 0)

    engine = here.deployment.database.engine
    event.listen(engine, "after_cursor_execute", count)
    try:
        return call(), rows
    finally:
        event.remove(engine, "after_cursor_execute", count)


LISTS = {
    name: method
    for name, method in vars(Nexus).items()
    if inspect.isfunction(method)
    and not name.startswith("_")
    and not inspect.iscoroutinefunction(method)
    and str(inspect.signature(method).return_annotation).startswith("list[")
}


def test_every_list_has_pages() -> None:
    """A list that is added without pages fails here, as do a command that lists and a default beyond the limit."""
    assert set(LISTS) >= {"memories", "sessions", "namespaces", "topics", "tokens", "audit", "jobs", "quarantined"}
    for name, method in LISTS.items():
        parameters = inspect.signature(method).parameters
        assert parameters["offset"].default == 0, name
        assert 0 < parameters["limit"].default <= 100, name
    listing = [
        (path, one)
        for path, one in leaves(typer.main.get_command(app))  # type: ignore[arg-type]
        if path[-1] in ("list", "audit", "quarantine")
    ]
    assert len(listing) >= 8
    for path, command in listing:
        options: dict[str, Any] = {one.name: one for one in command.params if one.name}
        assert options["limit"].max == limits.PAGE_ROWS, path
        assert options["offset"].max == limits.PAGE_OFFSET, path


def test_the_pages_of_a_list_are_the_list(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Nexus()
    for number in range(7):
        client.create_namespace(f"n{number}")
        client.create_token("n0", f"token {number}")
        client.create_webhook("n0", f"https://example.org/{number}")
        client.remember("n0", f"Text {number}.", session_key=f"s{number}")
    say(*(f"I like tea number {number}." for number in range(7)), namespace="n0", session="facts", end=True)
    work("derive_memory")
    for number in range(7):
        quarantine.set_aside(
            here.deployment.claims, SimpleNamespace(delivery_info={}, headers={}, body=""), f"f{number}"
        )
    with here.deployment.database.transaction() as tx:
        fields = {"description": "d", "type": "user", "content": "c", "made_by": "m"}
        drafts = [topics.TopicDraft(filename=f"t{n}.md", name=f"t{n}", **fields) for n in range(7)]  # type: ignore[arg-type]
        topics.store(tx, client.deployment.namespace("n0").id, drafts)  # type: ignore[union-attr]
        for number in range(7):
            perspectives.lock(tx, client.deployment.namespace("n0").id, "assistant", [f"subject {number}"])  # type: ignore[union-attr]
    for name in LISTS:
        scope = {} if name in ("namespaces", "quarantined") else {"namespace": "n0"}
        scope |= {"session_key": "facts"} if name == "session_facts" else {}
        whole = getattr(client, name)(**scope)
        assert len(whole) >= 7, name
        pages = [getattr(client, name)(**scope, limit=3, offset=start) for start in range(0, len(whole) + 3, 3)]
        assert [one for page in pages for one in page] == whole, name
        assert [len(page) for page in pages[:2]] == [3, 3]
        assert getattr(client, name)(**scope, offset=10**6) == []
    allowed = [f"n{number}" for number in range(3, 7)]
    limited = Nexus(namespaces=allowed)
    assert [one.namespace for one in limited.namespaces(limit=2, offset=1)] == ["n4", "n5"]
    with monkeypatch.context() as patch:  # without row-level security
        patch.setattr(tenancy, "fault", lambda _connection: "the role is away")
        patch.setattr(here.deployment.database, "_row_security", False)
        assert [one.namespace for one in limited.namespaces(limit=2, offset=1)] == ["n4", "n5"]
    told = json.loads(nexus("namespaces", "list", "--limit", "2", "--offset", "4", "--json").stdout)
    assert [one["namespace"] for one in told["namespaces"]] == ["n4", "n5"]
    told = json.loads(nexus("sessions", "list", "--namespace", "n0", "--limit", "2", "--json").stdout)
    assert [one["session_key"] for one in told["sessions"]] == ["facts", "s6"]


def test_a_list_reads_one_page(here: Sandbox) -> None:
    here.sql("INSERT INTO namespaces (name) SELECT 'n' || i FROM generate_series(1, 3000) AS i")
    here.sql(
        "INSERT INTO sessions (namespace_id, session_key)"
        " SELECT (SELECT min(id) FROM namespaces), 's' || i FROM generate_series(1, 3000) AS i"
    )
    client = Nexus()
    for call in (client.namespaces, lambda: client.sessions("n1")):
        found, rows = statements(here, call)
        assert len(found) == 100
        assert rows < 110


def test_a_long_session_is_read_in_pages(here: Sandbox) -> None:
    client = Nexus()
    client.ingest(NAMESPACE, "s", [{"content": f"Number {n}.", "id": str(n)} for n in range(2_500)], observers=[])
    client.forget(NAMESPACE, memory_id=client.session(NAMESPACE, "s", limit=1).said[0].id)
    found, rows = statements(here, lambda: client.session(NAMESPACE, "s"))
    assert (len(found.said), found.messages, found.next_after) == (1_000, 2_500, 1_001)
    assert rows < 1_020
    assert len(client.session(NAMESPACE, "s", limit=0).said) == 0
    said = []
    pages = []
    after: int | None = 0
    while after is not None:
        page, rows = statements(here, lambda after=after: client.session(NAMESPACE, "s", after=after, limit=700))
        assert rows < 720
        pages.append(len(page.said))
        said += [one.external_id for one in page.said]
        after = page.next_after
    assert pages == [700, 700, 700, 399]
    assert said == [str(n) for n in range(1, 2_500)]
    assert client.session(NAMESPACE, "s", after=10**12).said == ()
    shown = json.loads(nexus("sessions", "show", "s", "--namespace", NAMESPACE, "--after", "2400", "--json").stdout)
    assert (len(shown["said"]), shown["next_after"]) == (100, None)
    told = nexus("sessions", "show", "s", "--namespace", NAMESPACE, "--limit", "10")
    assert "--after 11" in told.stderr
    assert told.stdout.count("Number") == 10


# --- imports ----------------------------------------------------------------------------------------------------------
def _changed(line: dict[str, Any], change: str) -> dict[str, Any]:
    if "settings" in line and change in ("budget", "concurrency"):
        name = "budget_usd_per_day" if change == "budget" else change
        return {**line, "settings": {**line["settings"], name: -1}}
    if line.get("level") == "raw" and change in ("control", "long"):
        return {**line, "content": "a\x1b[2J" if change == "control" else "x" * (limits.MESSAGE_CHARACTERS + 1)}
    return line


@pytest.mark.parametrize(
    ("change", "said"),
    [("budget", "budget"), ("concurrency", "1 or more"), ("control", "control characters"), ("long", "1,000,000")],
)
def test_an_import_refuses_a_row_that_no_call_could_store(tmp_path: Path, change: str, said: str) -> None:
    client, file = Nexus(), tmp_path / "export.jsonl"
    client.remember(NAMESPACE, "kept")
    client.export(NAMESPACE, file)
    lines = [_changed(json.loads(line), change) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InvalidInput, match=said) as caught:
        client.import_("another", file)
    assert "Line " in str(caught.value)
    assert caught.value.remedy
    assert "another" not in [one.namespace for one in client.namespaces()]


IMPOSSIBLE = (
    *(("memories", name, when) for name in ("occurred_at", "event_from", "expires_at", "valid_to") for when in (
        "infinity", "-infinity", "200000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "4713-01-01 BC", 5)),
    *(("sessions", "created_at", when) for when in ("infinity", "now")),
    *(("memories", "standing", rank) for rank in (-1, 0, 6, 32_767)),
    *(("memories", "seq", number) for number in (-1, 2**62, 2**63 - 1, True, "1")),
    *(("sessions", "last_seq", number) for number in (-1, 2**63 - 1)),
    *(("memories", "tokens", number) for number in (-1, 1.5)),
    ("memories", "role", "root"),
    ("memories", "confidence", "x"),
    ("perspectives", "held", {}),
    ("perspectives", "held", {"facts": [], "supersedes": [], "relations": [], "insights": [], "through": 0}),
    ("settings", "time_zone", "../../etc/passwd"),
    ("settings", "time_zone", 5),
    ("settings", "budget_usd_per_day", "x"),
)  # fmt: skip


def test_an_import_refuses_what_could_not_be_read_again(here: Sandbox, tmp_path: Path) -> None:
    """Postgres takes such values. The namespace, or the status of all, could then not be read."""
    client, file = Nexus(), tmp_path / "export.jsonl"
    say("I moved to Lisbon.", "I like tea.", namespace=NAMESPACE, end=True)
    work()
    client.export(NAMESPACE, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for table, name, value in IMPOSSIBLE:
        documents = copy.deepcopy(lines)
        found = [one for one in documents if one.get("table") == table]
        at = found[0] if found else documents[0]["settings"]
        assert name in at
        at[name] = value
        file.write_text("".join(json.dumps(line) + "\n" for line in documents))
        with pytest.raises(InvalidInput):
            client.import_("another", file)
    assert here.sql("SELECT 1 FROM namespaces WHERE name = 'another'") == []


def test_an_import_continues_a_session_behind_its_last_message(tmp_path: Path) -> None:
    client, file = Nexus(), tmp_path / "export.jsonl"
    client.ingest(NAMESPACE, "chat", [{"content": "one"}, {"content": "two"}])
    client.export(NAMESPACE, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line.update({"last_seq": 0} if line.get("table") == "sessions" else {})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    client.import_("another", file)
    client.ingest("another", "chat", [{"content": "three"}])
    assert [one.seq for one in client.session("another", "chat").said] == [1, 2, 3]


def test_an_import_of_an_endless_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_LINE_CHARACTERS", 1_000)
    file = tmp_path / "export.jsonl"
    file.write_text("[" * 5_000)
    with pytest.raises(InvalidInput, match="Line 1 has more than 1,000 characters"):
        Nexus().import_("another", file)


def test_the_default_observers_count_too() -> None:
    client = Nexus()
    client.create_namespace(NAMESPACE)
    client.set_namespace(NAMESPACE, observers=[f"o{n}" for n in range(100)])
    with pytest.raises(InvalidInput, match="100,100 derivations; at most 100,000"):
        client.ingest(NAMESPACE, "s", [{"content": "a", "id": f"{n}"} for n in range(1_001)])
    assert client.memories(NAMESPACE) == []


def test_an_import_holds_few_long_lines_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows of 50 MB each would be held at once, if only the rows were counted."""
    client, file = Nexus(), tmp_path / "export.jsonl"
    client.ingest(NAMESPACE, "chat", [{"content": f"{n} {'x' * 100_000}"} for n in range(30)])
    client.export(NAMESPACE, file)
    held = list[int]()
    insert = reading.insert_rows

    def watched(tx: Any, model: Any, rows: Any, **more: Any) -> Any:
        held.append(sum(len(row.get("content") or "") for row in rows))
        return insert(tx, model, rows, **more)

    monkeypatch.setattr(reading, "CHARACTERS_AT_ONCE", 500_000)
    monkeypatch.setattr(reading, "insert_rows", watched)
    client.import_("another", file)
    assert len(client.memories("another")) == 30
    assert 400_000 < max(held) < 1_000_000


# --- MCP over HTTP ----------------------------------------------------------------------------------------------------
@contextmanager
def serving() -> Iterator[int]:
    with served(lambda port: http.application(server(NAMESPACE), TOKEN, LOOPBACK, port)) as port:
        yield port


def post(port: int, body: dict[str, Any], **headers: str) -> httpx2.Response:
    given = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream", **headers}
    return httpx2.post(f"http://{LOOPBACK}:{port}{http.PATH}", json=body, headers=given, timeout=60)


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def half_sent(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port), timeout=60)
    connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_000)
    except ConnectionResetError:
        return b""


def test_mcp_answers_413_and_431_and_goes_on() -> None:
    with serving() as port:
        call = {"name": "remember", "arguments": {"text": "x" * limits.HTTP_BODY_BYTES}}
        refused = post(port, {**PING, "method": "tools/call", "params": call})
        assert (refused.status_code, "8,000,000" in refused.text) == (413, True)
        connection = half_sent(port, b"GET /mcp HTTP/1.1\r\nX: " + b"x" * (limits.HTTP_HEADER_BYTES + 1_000))
        with connection:
            assert b"431" in answer(connection)
        long = b"x" * (limits.HTTP_HEADER_BYTES + 1_000)
        for whole in (b"GET /mcp HTTP/1.1\r\nHost: h\r\nX: " + long, b"GET /mcp?" + long + b" HTTP/1.1\r\nHost: h"):
            with half_sent(port, whole + b"\r\n\r\n") as connection:
                assert b"431" in answer(connection)
        assert post(port, PING).status_code == 200


def test_mcp_gives_an_error_for_too_long_a_message() -> None:
    with serving() as port:
        call = {"name": "remember", "arguments": {"text": "x" * (limits.MESSAGE_CHARACTERS + 1)}}
        said = post(port, {**PING, "method": "tools/call", "params": call}).json()["result"]
        assert said["isError"]
        assert "1,000,000" in said["content"][0]["text"]


def test_mcp_takes_a_message_of_the_largest_size_as_json_writes_it() -> None:
    with serving() as port:
        call = {"name": "remember", "arguments": {"text": "я" * limits.MESSAGE_CHARACTERS}}
        content = json.dumps({**PING, "method": "tools/call", "params": call})
        assert len(content) > 6_000_000
        given = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
        given |= {"Content-Type": "application/json"}
        said = httpx2.post(f"http://{LOOPBACK}:{port}{http.PATH}", content=content, headers=given, timeout=120)
        assert (said.status_code, said.json()["result"]["structuredContent"]["stored"]) == (200, 1)


def test_half_sent_requests_neither_stop_the_server_nor_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_SECONDS", 3)
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 50)
    with serving() as port, ExitStack() as stack:
        half = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
        opened = [stack.enter_context(half_sent(port, sent)) for sent in [half, half + b"\r\n{", b""] * 40]
        answers = [answer(one) for one in opened]
        # How many are refused at once depends on how fast the machine opens connections.
        assert any(b"429" in one for one in answers)
        assert sum(any(status in one for status in (b"401", b"408", b"429")) for one in answers) >= 100
        assert post(port, PING).status_code == 200


def test_a_good_request_is_answered_while_1100_are_half_sent() -> None:
    """Within less than the time limit of the half-sent requests, so their places must have been taken from them."""
    half = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
    with serving() as port, ExitStack() as stack:
        opened = [stack.enter_context(half_sent(port, half)) for _ in range(1_100)]
        began = time.monotonic()
        assert post(port, PING).status_code == 200
        assert time.monotonic() - began < limits.HTTP_REQUEST_SECONDS / 2
        refused = [one for one in opened if readable(one)]
        assert len(refused) >= 1_100 - limits.HTTP_CONNECTIONS
        assert b"429" in answer(refused[0])
        call = {"name": "remember", "arguments": {"text": "Tea is hot."}}
        assert not post(port, {**PING, "method": "tools/call", "params": call}).json()["result"]["isError"]


def test_a_connection_is_refused_when_every_other_has_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 2)
    held, begun = threading.Event(), threading.Semaphore(0)

    def status(*_args: object, **_options: object) -> object:
        begun.release()
        return held.wait(60) and Nexus().namespaces()

    monkeypatch.setattr(Nexus, "status", status)
    call = {**PING, "method": "tools/call", "params": {"name": "memory_status", "arguments": {}}}
    with serving() as port, ThreadPoolExecutor() as pool:
        busy = [pool.submit(post, port, call) for _ in range(2)]
        try:
            # A connection without a request would give way to the ping.
            assert all(begun.acquire(timeout=60) for _ in busy)
            assert post(port, PING).status_code == 429
        finally:
            held.set()
        assert [one.result(60).status_code for one in busy] == [200, 200]


def readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
