"""Export and import: nothing is lost, ids follow, and a file that is no whole export stores nothing."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus
from nexus_tasks.deployment import Deployment, default_deployment
from nexus_tasks.errors import InvalidInput, NamespaceMoved, NotFound
from nexus_tasks.services import transfer
from nexus_tasks.services.erasure import erased_ids
from nexus_tasks.storage import audit, statistics
from nexus_tasks.storage.engine import _SETTINGS
from nexus_tasks.storage.models import Base
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.storage.transfer.tables import LEFT_BEHIND, TABLES
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox, engine, eventually

TALK = (
    "I moved to Lisbon in March.",
    "I drink green tea every morning.",
    "My sister Eva lives in Porto.",
    "I do not drink green tea in the evening.",
    "I drink green tea every single morning.",
)


@pytest.fixture
def exported(here: Sandbox, tmp_path: Path) -> Path:  # noqa: ARG001 - the deployment
    """An export of a namespace with facts, digests, a reflection, wanted work and settings of its own."""
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"], concurrency=3)
    say(*TALK, end=True, observe=True)
    say("And something new.", session='odd "key" 100%')
    work()
    from nexus_tasks import reflect_namespace

    reflect_namespace.delay(namespace=NAMESPACE)
    work()
    say("Not derived yet.", session="later")
    path = tmp_path / "memory.jsonl"
    Nexus().export(NAMESPACE, path)
    return path


def counted(here: Sandbox) -> dict[str, int]:
    """The rows of two tables, as Postgres' statistics have them; -1 when there are none."""
    query = "SELECT relname, reltuples::int FROM pg_class WHERE relname IN ('memories', 'sessions')"
    return dict(here.sql(query))


@pytest.fixture
def without_autovacuum(here: Sandbox) -> Iterator[Sandbox]:
    """A deployment whose tables were never analyzed, and whose statistics nobody renews."""
    here.sql("TRUNCATE memories, sessions CASCADE")
    for table in ("memories", "sessions"):
        here.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    yield here
    for table in ("memories", "sessions"):
        here.sql(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def test_many_rows_renew_the_statistics(
    without_autovacuum: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, client, path = without_autovacuum, Nexus(), tmp_path / "export.jsonl"
    client.ingest(NAMESPACE, "chat", [{"content": f"Message {n}."} for n in range(120)])
    client.export(NAMESPACE, path)
    client.import_("few", path)
    assert counted(here) == {"memories": -1, "sessions": -1}
    monkeypatch.setattr(statistics, "MANY", 100)
    client.import_("many", path)
    assert counted(here) == {"memories": 360, "sessions": 3}
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps({"content": f"Line {n}."}) + "\n" for n in range(120)))
    assert nexus("ingest", str(file), "--namespace", "lines").returncode == 0
    assert counted(here) == {"memories": 480, "sessions": 4}
    client.ingest(NAMESPACE, "chat", [{"content": f"Later message {n}."} for n in range(200)])
    found = eventually(lambda: upkeep.run(here.deployment.database).analyzed, within=30)  # Postgres counts with delay
    assert "memories" in found
    assert counted(here)["memories"] == 680


def documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_import_exports_as_it_was_imported(exported: Path, tmp_path: Path) -> None:
    counts = Nexus().import_("copy", exported).rows
    assert counts["memories"] > len(TALK)
    assert counts["session_digests"] >= 2
    again = tmp_path / "again.jsonl"
    Nexus().export("copy", again)
    first, second = documents(exported), documents(again)
    assert first[0] == second[0]
    assert first[0]["settings"]["observers"] == ["assistant", "coach"]
    assert len(first) == len(second)
    times = ("occurred_at", "created_at", "valid_from", "valid_to")
    plain = ("content", *times, "confidence", "session_key", "state", "kind")
    for one, two in zip(first, second, strict=True):
        assert one.keys() == two.keys()
        assert {k: one[k] for k in plain if k in one} == {k: two[k] for k in plain if k in two}
    # The copy has no vectors yet, so it finds by words alone.
    copied, original = (Nexus().search(name, "tea", limit=100, collapse=False) for name in ("copy", NAMESPACE))
    by_words = [{hit.content for hit in hits if hit.why.get("words")} for hits in (copied, original)]
    assert by_words[0] == by_words[1] != set()


def test_what_refers_to_memories_names_those_of_the_copy(here: Sandbox, exported: Path) -> None:
    Nexus().import_("copy", exported)
    joined = """SELECT m.content, s.content, e.role FROM evidence e JOIN memories m ON m.id = e.memory_id
        JOIN memories s ON s.id = e.source_id JOIN namespaces n ON n.id = e.namespace_id
        WHERE n.name = :n AND m.namespace_id = n.id AND s.namespace_id = n.id ORDER BY 1, 2, 3"""
    assert here.sql(joined, n="copy") == here.sql(joined, n=NAMESPACE) != []
    marks = """SELECT observer, subject, (SELECT content FROM memories WHERE id = reflected_through) FROM perspectives p
        JOIN namespaces n ON n.id = p.namespace_id WHERE n.name = :n ORDER BY 1, 2"""
    assert here.sql(marks, n="copy") == here.sql(marks, n=NAMESPACE) != []


def test_a_copy_knows_the_ids_of_erased_messages(here: Sandbox, tmp_path: Path) -> None:  # noqa: ARG001
    client, path = Nexus(), tmp_path / "export.jsonl"
    client.ingest(NAMESPACE, "chat", [{"id": one, "content": f"I like {one}."} for one in ("m1", "m2")])
    work()  # so the export has rows of later tables
    client.forget(NAMESPACE, memory_id=client.session(NAMESPACE, "chat").said[0].id)
    client.export(NAMESPACE, path)
    client.ingest("copy", "chat", [{"id": "m1", "content": "Another message."}])
    client.forget("copy", everything=True)  # so the copy knows this id before the import
    assert client.import_("copy", path).rows["erased_ids"] == 2
    assert erased_ids(default_deployment(), "copy", "chat", ["m1", "m2"]) == {"m1"}
    assert len(client.session("copy", "chat").said) == 1


def test_wanted_work_goes_on_in_the_copy(exported: Path) -> None:
    from nexus_tasks.idempotency.worker.reconciler import Reconciler

    work()
    Nexus().import_("copy", exported)
    assert Nexus().status("copy").namespaces[0].underived == 1
    assert Reconciler(engine).round()
    work()
    after = Nexus().status("copy").namespaces[0]
    assert after.underived == 0
    assert Nexus().search("copy", "tea").missing_embeddings == 0
    texts = [Nexus().context(name, session_key="chat", query="tea").text for name in (NAMESPACE, "copy")]
    assert len({re.sub(r"m\d+", "m", text) for text in texts}) == 1


def test_every_table_travels_or_is_known_to_stay() -> None:
    travels = {model.__tablename__ for model in TABLES}
    assert len(travels) == len(TABLES)
    assert {table.name for table in Base.metadata.sorted_tables} == travels | LEFT_BEHIND | {"namespaces"}


# --- what is no export ------------------------------------------------------------------------------------------------
Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
WRONG: dict[str, Change] = {
    "cut off": lambda docs: docs[:-1],
    "a line lost": lambda docs: [*docs[:-2], docs[-1]],
    "no header": lambda docs: docs[1:],
    "another version": lambda docs: [{**docs[0], "version": 99}, *docs[1:]],
    "nothing": lambda _: [],
    "lines behind the end": lambda docs: [*docs, docs[1]],
    "an unknown table": lambda docs: [docs[0], {"table": "users"}, *docs[1:]],
    "a table at the wrong place": lambda docs: [docs[0], docs[-2], *docs[1:-2], docs[-1]],
    "an unknown field": lambda docs: [docs[0], {**docs[1], "password": 1}, *docs[2:]],
    "a reference to nothing": lambda docs: [
        {**d, "session_id": 10**9} if d.get("table") == "derivations" else d for d in docs
    ],
    "a missing field": lambda docs: [docs[0], {k: v for k, v in docs[1].items() if k != "session_key"}, *docs[2:]],
    "no object": lambda docs: [docs[0], [1], *docs[1:]],  # type: ignore[list-item]
    "no id": lambda docs: [docs[0], {k: v for k, v in docs[1].items() if k != "id"}, *docs[2:]],
    "a wrong type": lambda docs: [docs[0], {**docs[1], "created_at": "soon"}, *docs[2:]],
    "an erased id that is no hash": lambda docs: [
        *docs[:-1],
        {"table": "erased_ids", "id_hash": "m1"},
        {"end": docs[-1]["end"] + 1},
    ],
}


def test_a_file_that_is_no_whole_export_stores_nothing(here: Sandbox, exported: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    for why, change in WRONG.items():
        changed = change(documents(exported))
        wrong.write_text("".join(json.dumps(one) + "\n" for one in changed))
        with pytest.raises(InvalidInput):
            Nexus().import_("copy", wrong)
        assert here.sql("SELECT * FROM namespaces WHERE name = 'copy'") == [], why
    for content in (b"\xff\xfe", b"{not json"):
        wrong.write_bytes(content)
        with pytest.raises(InvalidInput):
            Nexus().import_("copy", wrong)
    with pytest.raises(InvalidInput):
        Nexus().import_("copy", tmp_path / "nowhere")


@contextmanager
def impatient(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment whose transactions Postgres ends when they are idle for 0.2 s."""
    short = tuple(re.sub(r"(idle_in_transaction_session_timeout) = \d+", r"\1 = 200", one) for one in _SETTINGS)
    monkeypatch.setattr("nexus_tasks.storage.engine._SETTINGS", short)
    with here.another() as deployment:
        yield deployment


def test_an_import_waits_for_a_pipe_that_pauses(here: Sandbox, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = exported.read_text().count("\n")
    with impatient(here, monkeypatch) as deployment:
        transfer.import_(deployment, "copy", exported, lambda line: time.sleep(0.6 if line == lines // 2 else 0))
    assert {one.content for one in Nexus().memories("copy", levels=["raw"])} >= set(TALK)


def test_an_export_waits_for_a_reader_that_pauses(
    here: Sandbox, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe takes no more when its reader does something else, such as asking for a password."""
    copy = io.StringIO()
    with impatient(here, monkeypatch) as deployment:
        transfer.export(deployment, NAMESPACE, copy, note=lambda row: time.sleep(0.6 if row == 2 else 0))
    assert copy.getvalue() == exported.read_text()


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_rows_with_different_fields_lose_none_of_them(exported: Path, tmp_path: Path) -> None:
    """A program such as jq may have left out fields without a value."""
    lean = [
        {key: value for key, value in one.items() if value is not None} if one.get("table") == "memories" else one
        for one in documents(exported)
    ]
    Nexus().import_("lean", write(tmp_path / "lean.jsonl", lean))
    Nexus().import_("copy", exported)
    for name in ("lean", "copy"):
        Nexus().export(name, tmp_path / name)
    first, second = ([{**one, "id": 0} for one in documents(tmp_path / name)] for name in ("lean", "copy"))
    fields = ("content", "author", "external_id", "content_key", "valid_to", "made_by", "standing")
    told = [[tuple(one.get(field) for field in fields) for one in docs] for docs in (first, second)]
    assert told[0] == told[1]


def test_what_has_given_up_is_tried_again_in_the_copy(here: Sandbox, exported: Path, tmp_path: Path) -> None:
    """The dead letters stay behind, so nobody could retry their jobs."""
    states = (("extractions", "state"), ("observation_logs", "observing"), ("observation_logs", "reflecting"))
    for table in ("extractions", "observation_logs"):
        here.sql(
            f"INSERT INTO {table} (namespace_id, session_id) SELECT namespace_id, id FROM sessions"
            " ON CONFLICT DO NOTHING"
        )
    for table, column in states:
        here.sql(f"UPDATE {table} SET {column} = 'dead'")
    here.sql("UPDATE perspectives SET dead = true")
    Nexus().export(NAMESPACE, tmp_path / "dead.jsonl")
    Nexus().import_("copy", tmp_path / "dead.jsonl")
    of_the_copy = "(SELECT id FROM namespaces WHERE name = 'copy')"
    for table, column in states:
        found = here.sql(f"SELECT DISTINCT {column} FROM {table} WHERE namespace_id = {of_the_copy}")
        assert found == [("wanted",)], table
    assert here.sql(f"SELECT DISTINCT dead FROM perspectives WHERE namespace_id = {of_the_copy}") == [(False,)]
    assert exported.exists()


def test_a_plan_that_waits_for_review_is_released_in_the_copy(here: Sandbox, exported: Path, tmp_path: Path) -> None:
    """A plan is known by the id of a job, and the exported namespace keeps its own."""
    plan = {"job_id": "made-it", "facts": 1, "held_at": "2026-03-09T14:30:00Z", "through": 1, "supersedes": []}
    here.sql(
        "UPDATE perspectives SET held = CAST(:plan AS jsonb) WHERE subject = 'ann' AND observer = 'assistant'",
        plan=json.dumps(plan | {"relations": [], "insights": [], "rejected": 0}),
    )
    Nexus().export(NAMESPACE, tmp_path / "held.jsonl")
    Nexus().import_("copy", tmp_path / "held.jsonl")
    [review] = Nexus().status("copy").namespaces[0].reviews
    assert review.job_id != "made-it"
    assert Nexus().job(review.job_id).details["relations"] == 0
    Nexus().retry_job(review.job_id)
    held = "SELECT n.name, p.held ->> 'released' FROM perspectives AS p JOIN namespaces AS n ON n.id = p.namespace_id"
    assert sorted(here.sql(f"{held} WHERE p.held IS NOT NULL")) == [(NAMESPACE, None), ("copy", "true")]
    assert exported.exists()


def test_of_two_imports_at_a_time_one_is_refused(here: Sandbox, tmp_path: Path) -> None:
    paths = []
    for name in ("first", "second"):
        say("I like tea.", session=name, namespace=name)
        paths.append(tmp_path / name)
        Nexus().export(name, paths[-1])
    Nexus().create_namespace("copy")
    with ThreadPoolExecutor(1) as pool:
        later = list[Future[Any]]()

        def note(line: int) -> None:
            if line == 2:
                later.append(pool.submit(Nexus().import_, "copy", paths[1]))
                eventually(lambda: later[0].done() or here.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))

        transfer.import_(here.deployment, "copy", paths[0], note)
        with pytest.raises(InvalidInput, match="already"):
            later[0].result(60)
    assert [one.session_key for one in Nexus().sessions("copy")] == ["first"]


def test_an_export_of_a_namespace_that_has_just_moved_is_refused(
    here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(*TALK)
    record = audit.record

    def late(tx: Any, action: str, *given: Any) -> None:
        record(tx, action, *given)
        tx.execute(text("UPDATE namespaces SET residence = 'left', other_cell = 'two'"))

    with monkeypatch.context() as patched:
        patched.setattr(audit, "record", late)
        with pytest.raises(NamespaceMoved):
            Nexus().export(NAMESPACE, tmp_path / "memory.jsonl")
    assert not (tmp_path / "memory.jsonl").exists()
    here.sql("UPDATE namespaces SET residence = 'here', other_cell = NULL")


@pytest.mark.usefixtures("exported")
def test_a_namespace_that_remembers_something_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="already"):
        Nexus().import_(NAMESPACE, tmp_path / "memory.jsonl")
    with pytest.raises(NotFound):
        Nexus().export("nobody", tmp_path / "x")
    with pytest.raises(InvalidInput):
        Nexus().export(NAMESPACE, tmp_path / "no" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["memory.jsonl"]


@pytest.mark.usefixtures("here")
def test_the_commands_say_what_they_moved(tmp_path: Path) -> None:
    say(*TALK)
    file = str(tmp_path / "m.jsonl")
    told = nexus("export", file, "--namespace", NAMESPACE, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["rows"]["memories"] == len(TALK)
    assert f"{len(TALK)} of them memories" in nexus("import", file, "--namespace", "copy").stdout
    assert nexus("import", file, "--namespace", "copy").returncode == 1
