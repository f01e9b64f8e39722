"""Cells: a call reaches the deployment of its namespace, or all of them, and a wrong file says what is wrong."""

from __future__ import annotations

import inspect
import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from nexus_tasks import Cells, Message, Nexus, deployment
from nexus_tasks.deployment import Deployment, use
from nexus_tasks.errors import (
    ConfigurationError,
    InvalidInput,
    NamespaceMoved,
    NamespaceMoving,
    NotAllowed,
    NotFound,
    SchemaOutdated,
    StorageMisconfigured,
    StorageUnavailable,
)
from nexus_tasks.integrations.coding_agents import hook
from nexus_tasks.services import buffer_flush, context_cache, jobs
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.services.buffer_flush import store_buffer
from nexus_tasks.services.cells import buffers, gathering, routing
from nexus_tasks.services.cells.moving import move
from nexus_tasks.services.cells.tokens import CellTokenChecker
from nexus_tasks.storage import cells as directory
from nexus_tasks.storage.tokens import Checked
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import JobDetails, JobRepair, Listed, MendedCounter
from tests.cells import AS_MADE, TwoCells, document, two_cells
from tests.commandline import nexus as command
from tests.databases import administer
from tests.integration.inline import work
from tests.sandbox import Sandbox, eventually
from tests.silence import proxy

NOWHERE = "postgresql://nexus:x@127.0.0.1:1/nowhere"


@pytest.fixture
def both(deploy: Callable[..., Sandbox], tmp_path: Path) -> Iterator[TwoCells]:
    """Two cells. ``old`` lives in ``one``, because it was there before; what is made now lives in ``two``."""
    with two_cells(deploy, tmp_path) as made:
        Nexus(made.cells.deployments["one"]).remember("old", "Eva lives in Porto.")
        made.cells.prepare()
        yield made


def names(here: Sandbox) -> list[str]:
    return [name for (name,) in here.sql("SELECT name FROM namespaces ORDER BY 1")]


def test_a_namespace_is_written_and_read_in_its_cell(both: TwoCells) -> None:
    both.nexus.ingest("fresh", "chat", [Message(content="I moved to Lisbon.", author="ann")], end=True)
    both.nexus.remember("old", "Deploys happen on Tuesdays.")
    assert names(both.one) == ["old"]
    assert names(both.two) == ["fresh"]
    for name in ("one", "two"):
        with use(both.cells.deployments[name]):
            work()
    assert both.nexus.search("fresh", "Lisbon")[0].content
    assert len(both.nexus.session("old", "notes").said) == 2
    with pytest.raises(NotFound):
        both.nexus.search("nobody", "Lisbon")
    assert names(both.two) == ["fresh"], "a read makes no namespace, and no place for one"
    assert both.one.sql("SELECT namespace, cell FROM placements ORDER BY 1") == [("fresh", "two"), ("old", "one")]


def test_what_names_no_namespace_is_gathered(both: TwoCells) -> None:
    for number in range(5):
        both.nexus.remember(f"fresh-{number}", "Something.")
    every = [one.namespace for one in both.nexus.namespaces()]
    assert every == [*(f"fresh-{number}" for number in range(5)), "old"]
    pages = [one.namespace for offset in range(0, 8, 2) for one in both.nexus.namespaces(limit=2, offset=offset)]
    assert pages == every
    report = both.nexus.status()
    assert [one.namespace for one in report.namespaces] == every
    assert report.jobs.waiting + report.jobs.pending == 6
    assert both.nexus.status(limit=2).left_out == 4
    jobs = both.nexus.jobs()
    assert len({job.id for job in jobs}) == 6
    assert {both.nexus.job(job.id).namespace for job in jobs} == set(every)
    assert both.nexus.drop_job(jobs[0].id).id == jobs[0].id
    assert both.nexus.drop_jobs().dropped == 5
    with pytest.raises(NotFound):
        both.nexus.job("nonesuch")
    both.nexus.create_token("old", "one")
    both.nexus.create_token("fresh-1", "two")
    assert {entry.namespace for entry in both.nexus.audit(action="token")} == {"old", "fresh-1"}
    assert len(both.nexus.audit("old")) == 1
    assert both.nexus.finished_jobs().counts["derive_memory"]["dropped"] == 6


def test_a_cell_that_is_away_is_named(both: TwoCells, tmp_path: Path) -> None:
    both.nexus.remember("fresh", "Something.")
    file = tmp_path / "away.json"
    told = document(both.one, both.two)
    told["cells"]["two"]["database_url"] = NOWHERE  # type: ignore[index]
    file.write_text(json.dumps(told))
    cells = Cells(str(file))
    try:
        nexus = Nexus(cells=cells)
        found = nexus.namespaces()
        assert isinstance(found, Listed)
        assert [one.namespace for one in found] == ["old"]
        assert list(found.away) == ["two"]
        assert list(nexus.status().away) == ["two"]
        assert list(nexus.finished_jobs().away) == ["two"]
        assert nexus.status().to_dict()["away"].keys() == {"two"}
        with pytest.raises(StorageUnavailable, match="two"):
            nexus.job("nonesuch")
        with pytest.raises(StorageUnavailable, match="Done in one, but not in two"):
            nexus.drop_jobs()
        assert nexus.remember("old", "Still here.").stored == 1
    finally:
        cells.close()


def test_without_the_directory_known_namespaces_go_on_and_messages_of_others_are_buffered(
    both: TwoCells, tmp_path: Path
) -> None:
    both.nexus.remember("fresh", "First.")
    file = tmp_path / "away.json"
    told = document(both.one, both.two)
    told["cells"]["one"]["database_url"] = NOWHERE  # type: ignore[index]
    file.write_text(json.dumps(told))
    cells = Cells(str(file))
    try:
        nexus = Nexus(cells=cells)
        receipt = nexus.remember("elsewhere", "Kept.", author="ann")
        assert (receipt.stored, receipt.buffered) == (0, 1)
        with pytest.raises(StorageUnavailable):
            nexus.search("elsewhere", "kept")
        cells._known["fresh"] = "two"  # this process has asked before
        cells._verified.add("two")
        assert nexus.remember("fresh", "Second.").stored == 1
    finally:
        cells.close()
    assert names(both.two) == ["fresh"], "without the directory no cell makes a namespace"
    buffers.note_buffered(both.cells)  # as after 5 s
    both.nexus.remember("fresh", "Third.")  # the directory is back, and this process stores the buffer
    [said] = both.nexus.session("elsewhere", "notes").said
    assert (said.content, said.author) == ("Kept.", "ann")


def through_a_proxy(both: TwoCells, cell: str, port: int, folder: Path) -> Path:
    """A file of cells in which the Postgres of a cell is behind a proxy."""
    told = document(both.one, both.two)
    url = make_url(both.of(cell).database_url).set(host="127.0.0.1", port=port, query={})
    told["cells"][cell]["database_url"] = url.render_as_string(hide_password=False)  # type: ignore[index]
    file = folder / "behind.json"
    file.write_text(json.dumps(told))
    return file


@pytest.mark.parametrize("silent", ["one", "two"])
def test_only_the_first_checks_of_tokens_wait_for_a_silent_cell(both: TwoCells, tmp_path: Path, silent: str) -> None:
    """``one`` is the directory. Each check holds one of the few threads of the server."""
    both.nexus.remember("fresh", "Something.")
    given = {cell: both.nexus.create_token(name, "t").token for cell, name in (("one", "old"), ("two", "fresh"))}
    other = given["two" if silent == "one" else "one"]
    unknown = given[silent][:-6] + "AAAAAA"
    folder = parse_qs(urlsplit(both.of(silent).database_url).query)["host"][0]
    with proxy(Path(folder) / ".s.PGSQL.5432") as wire:
        wire.silent_from(b"user")  # that is: from the first bytes of each connection on
        with closing(Cells(str(through_a_proxy(both, silent, wire.port, tmp_path)))) as cells:
            checker = CellTokenChecker(cells)
            with pytest.raises(StorageUnavailable):
                checker.check(given[silent])
            begun = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                trying = pool.submit(checker.check, given[silent])  # after a second, one check tries the cell again
                for _ in range(100):
                    assert not checker.check(other).refusal
                    for token in (given[silent], unknown):
                        with pytest.raises(StorageUnavailable):
                            checker.check(token)
                with pytest.raises(StorageUnavailable):
                    trying.result()
            assert time.monotonic() - begun < 15, "with a wait for the silent cell in each check, 1,000 s"
            wire.silent_from(b"")
            wire.cut()
            for token in given.values():
                assert eventually(lambda token=token: valid(checker, token), within=20)  # type: ignore[misc]
            assert checker.check(unknown).refusal == "unknown"


@pytest.mark.parametrize("silent", ["one", "two"])
def test_only_the_first_calls_wait_for_a_silent_cell(both: TwoCells, tmp_path: Path, silent: str) -> None:
    """``one`` is the directory. Before, the calls of a silent cell held all threads of a server for 5 s each."""
    both.nexus.remember("fresh", "I like rye bread.")
    lost, kept = ("old", "fresh") if silent == "one" else ("fresh", "old")
    folder = parse_qs(urlsplit(both.of(silent).database_url).query)["host"][0]
    with (
        proxy(Path(folder) / ".s.PGSQL.5432") as wire,
        closing(Cells(str(through_a_proxy(both, silent, wire.port, tmp_path)))) as cells,
    ):
        nexus = Nexus(cells=cells)
        for name in (lost, kept):
            nexus.search(name, "bread")
        wire.silent_from(b"user")  # that is: from the first bytes of each connection on
        wire.cut()
        with pytest.raises(StorageUnavailable):
            nexus.search(lost, "bread")
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            trying = pool.submit(nexus.search, lost, "bread")  # after a second, one call tries the cell again
            for number in range(100):
                nexus.search(kept, "bread")
                with pytest.raises(StorageUnavailable):
                    nexus.search(lost, "bread")
                if number < 10:
                    assert list(nexus.status().away) == list(nexus.namespaces().away) == [silent]
                    assert nexus.remember(lost, f"Message {number}.").buffered == 1
            with pytest.raises(StorageUnavailable):
                trying.result()
        assert time.monotonic() - begun < 60, "with a wait for the silent cell in each call, 650 s"
        wire.silent_from(b"")
        wire.cut()
        stored = eventually(lambda: said_in(nexus, lost), within=30)
        assert [text for text in stored if text.startswith("Message")] == [f"Message {n}." for n in range(10)]


def test_who_asks_a_silent_directory_for_a_deployment_takes_no_cell_from_the_others(
    both: TwoCells, tmp_path: Path
) -> None:
    """Before, the wait made the client forget the cell: reads of the namespace failed, and messages were buffered."""
    both.nexus.remember("fresh", "I like rye bread.")
    folder = parse_qs(urlsplit(both.one.database_url).query)["host"][0]
    with (
        proxy(Path(folder) / ".s.PGSQL.5432") as wire,
        closing(Cells(str(through_a_proxy(both, "one", wire.port, tmp_path)))) as cells,
    ):
        nexus = Nexus(cells=cells)
        home = cells.deployment_of("fresh")
        wire.silent_from(b"user")  # that is: from the first bytes of each connection on
        wire.cut()
        with pytest.raises(StorageUnavailable):
            nexus.search("old", "Porto")
        time.sleep(1.1)  # from now on, one call tries the directory again
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(cells.deployment_of, "fresh")
            found = 0
            while not asking.done():
                assert nexus.search("fresh", "bread")
                assert nexus.remember("fresh", "I bake on Fridays.").buffered == 0
                found += 1
                time.sleep(0.1)
            assert asking.result() is home
        assert found > 1
        wire.silent_from(b"")
        wire.cut()


def test_a_write_that_waits_for_another_one_makes_no_cell_silent(both: TwoCells) -> None:
    """Before, an import of one tenant made the calls of all tenants of the cell fail: Postgres does not answer."""
    for name in ("fresh", "other"):
        both.nexus.remember(name, "I like rye bread.")
    two = both.cells.deployments["two"]
    two.buffer.append("fresh", "notes", "It waits.")
    two.local(buffer_flush._Clock).looked_at.clear()  # as after 5 s
    with two.database.transaction() as tx:
        tx.execute(text("SELECT 1 FROM namespaces WHERE name = 'fresh' FOR UPDATE"))
        begun = time.monotonic()
        assert both.nexus.remember("fresh", "Later.").buffered == 1
        assert time.monotonic() - begun > 1
        assert both.nexus.search("other", "bread")
        assert both.nexus.remember("other", "I like tea.").stored == 1


def test_a_replacement_for_a_silent_cell_fails_as_one_for_a_cell_that_is_away(both: TwoCells) -> None:
    """Before, it was refused as a wrong argument, so no client tried it again."""
    said = [Message(id="m1", content="I like rye bread.")]
    both.nexus.ingest("fresh", "chat", said)
    for cell, namespace in (("two", "fresh"), ("one", "elsewhere")):
        both.cells.silence._answered.clear()
        both.cells.silence.note(cell, time.monotonic() - 5, StorageUnavailable("No answer."))
        with pytest.raises(StorageUnavailable, match="No answer"):
            both.nexus.ingest(namespace, "chat", said, replace=True)


def said_in(nexus: Nexus, namespace: str) -> list[str]:
    """The notes of a namespace. The list is empty until its cell answers and has stored the buffered messages."""
    try:
        said = [one.content for one in nexus.session(namespace, "notes").said]
    except StorageUnavailable:
        return []
    return said if len(said) > 10 else []


def valid(checker: CellTokenChecker, token: str) -> bool:
    """Whether a token is valid, by a cell that answers."""
    try:
        return not checker.check(token).refusal
    except StorageUnavailable:
        return False


@pytest.mark.parametrize("cell", ["one", "two"])
def test_a_cell_that_refuses_is_no_outage_and_nothing_is_buffered(both: TwoCells, tmp_path: Path, cell: str) -> None:
    """``one`` is the directory, and ``two`` is where a new namespace is made."""
    told = document(both.one, both.two)
    url = both.of(cell).database_url
    told["cells"][cell]["database_url"] = url.replace(f"/{both.of(cell).database_name}?", "/missing?")  # type: ignore[index]
    file = tmp_path / "refusing.json"
    file.write_text(json.dumps(told))
    cells = Cells(str(file))
    try:
        nexus = Nexus(cells=cells)
        for call in (nexus.remember, lambda space, text: nexus.ingest(space, "chat", [text])):
            with pytest.raises(StorageMisconfigured, match="does not exist"):
                call("elsewhere", "Refused.")
        assert [one for each in cells.deployments.values() for one in each.buffer.status()] == []
    finally:
        cells.close()


def test_a_cell_that_is_away_keeps_no_message_of_another_cell_in_the_buffer(both: TwoCells, tmp_path: Path) -> None:
    both.nexus.remember("fresh", "First.")
    buffer = both.cells.deployments["one"].buffer
    for namespace in ("old", "fresh"):
        buffer.append(namespace, "chat", f"Kept for {namespace}.")
    file = tmp_path / "away.json"
    told = document(both.one, both.two)
    told["cells"]["two"]["database_url"] = NOWHERE  # type: ignore[index]
    file.write_text(json.dumps(told))
    cells = Cells(str(file))
    try:
        assert buffers.store_all(cells, wait=True).stored == 1
    finally:
        cells.close()
    assert [one.content for one in both.nexus.session("old", "chat").said] == ["Kept for old."]
    assert buffers.store_all(both.cells, wait=True).stored == 1
    assert [one.content for one in both.nexus.session("fresh", "chat").said] == ["Kept for fresh."]


def test_a_message_for_a_cell_that_was_away_is_stored_in_no_other_cell(both: TwoCells, tmp_path: Path) -> None:
    file = tmp_path / "away.json"
    told = document(both.one, both.two)
    told["cells"]["one"]["database_url"] = NOWHERE  # type: ignore[index]
    file.write_text(json.dumps(told))
    both.nexus.remember("fresh", "First.")
    with closing(Cells(str(file))) as cells:  # the directory is away, and this process knows no cell of `old`
        assert Nexus(cells=cells).remember("old", "Second.").buffered == 1
    assert both.cells.deployments["two"].buffer.pending()
    both.cells.deployments["two"].local(buffer_flush._Clock).looked_at.clear()
    both.nexus.search("fresh", "First")  # this call's cell looks into its buffer
    assert names(both.two) == ["fresh"]
    assert buffers.store_all(both.cells, wait=True).stored == 1
    assert [one.content for one in both.nexus.session("old", "notes").said] == ["Eva lives in Porto.", "Second."]


def test_an_erasure_reaches_what_the_buffer_of_another_cell_has(both: TwoCells) -> None:
    both.nexus.remember("fresh", "First.")
    buffer = both.cells.deployments["one"].buffer
    buffer.append("fresh", "chat", {"content": "Refused.", "role": "nobody"})
    buffer.append("fresh", "chat", "Of a newer release.", "sketch")
    buffers.store_all(both.cells, wait=True)
    buffer.append("fresh", "chat", "It waits.")
    assert buffer.quarantined() == 1
    both.nexus.forget("fresh", everything=True)
    assert (buffer.quarantined(), buffer.pending()) == (0, False)
    buffers.store_all(both.cells, wait=True)
    assert both.two.sql("SELECT count(*) FROM memories") == [(0,)]


def test_a_limited_client_waits_for_no_message_of_another_tenant(both: TwoCells) -> None:
    both.nexus.remember("fresh", "First.")
    buffer = both.cells.deployments["one"].buffer
    for namespace in ("old", "fresh"):
        buffer.append(namespace, "chat", f"Kept for {namespace}.")
    buffers.note_buffered(both.cells)
    Nexus(cells=both.cells, namespaces=["old"]).remember("old", "Deploys happen on Tuesdays.")
    assert [one.content for one in both.nexus.session("old", "chat").said] == ["Kept for old."]
    assert buffer.has("fresh", "chat")
    assert not buffer.has("old", "chat")


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": "5"}, {"limit": 10**20}, {"offset": -1}])
def test_a_wrong_page_of_a_gathered_list_is_refused(both: TwoCells, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        both.nexus.namespaces(**wrong)


def test_a_token_is_looked_for_where_it_was_found_last(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each request waited for the first cell, also while that was silent and the token was of another one."""
    both.nexus.remember("fresh", "Something.")
    token = both.nexus.create_token("fresh", "agent").token
    checker, asked, look_up = CellTokenChecker(both.cells), list[str](), TokenChecker.look_up

    def watched(self: TokenChecker, given: str) -> Checked:
        asked.append("one" if self._deployment is both.cells.deployments["one"] else "two")
        return look_up(self, given)

    monkeypatch.setattr(TokenChecker, "look_up", watched)
    assert [checker.check(token).namespace for _ in range(3)] == ["fresh"] * 3
    assert asked == ["one", "two", "two", "two"]
    move(both.cells, "fresh", "one")
    assert [checker.check(token).namespace for _ in range(2)] == ["fresh"] * 2
    assert asked[4:] == ["two", "one", "one"]
    assert checker.check(token + "x").refusal == "unknown"


@pytest.mark.parametrize("since", ["revoked", "rotated", "nothing"])
def test_a_restored_cell_does_not_make_a_token_of_a_moved_namespace_valid_again(both: TwoCells, since: str) -> None:
    """A backup of the old cell has the namespace as it was before the move, with its tokens."""
    made = both.nexus.create_token("old", "agent")
    move(both.cells, "old", "two", keep=True)
    if since == "revoked":
        both.nexus.revoke_token("old", made.id)
    elif since == "rotated":
        both.nexus.rotate_token("old", made.id, grace=0)
    both.one.sql("UPDATE namespaces SET residence = 'here', other_cell = NULL, move_id = NULL WHERE name = 'old'")
    with closing(Cells(str(both.file))) as cells:
        cells.prepare()  # both cells have `old` now, so the table stays as it is
        checker = CellTokenChecker(cells)
        for _ in range(2):
            found = checker.check(made.token)
            expected = {"revoked": "revoked", "rotated": "unknown", "nothing": ""}[since]
            assert (found.refusal, found.namespace) == (expected, "" if since == "rotated" else "old")


def test_a_limited_client_stays_limited(both: TwoCells) -> None:
    nexus = Nexus(cells=both.cells, namespaces=["old"])
    assert [one.namespace for one in nexus.namespaces()] == ["old"]
    assert nexus.search("old", "Eva")
    with pytest.raises(NotAllowed):
        nexus.remember("fresh", "Something.")
    with pytest.raises(NotAllowed):
        nexus.repair_jobs()
    assert both.one.sql("SELECT namespace FROM placements WHERE namespace = 'fresh'") == []


def test_a_repair_names_the_keys_that_it_set_aside_in_each_cell() -> None:
    of_one = JobRepair(
        counters=(MendedCounter(namespace="a", counter="waiting", old=1, new=2),),
        entries_put_back=1,
        set_aside=("one:line",),
    )
    of_two = JobRepair(counters=(), entries_put_back=2, set_aside=("two:line",))
    found = gathering.repaired({"one": of_one, "two": of_two})
    assert (found.counters, found.entries_put_back) == (of_one.counters, 3)
    assert found.set_aside == ("one:line", "two:line")


def test_a_job_is_looked_for_in_the_cell_of_the_only_namespace(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each look at a job of a tenant waited for the other cells, also while one was silent."""
    both.nexus.remember("fresh", "Something.")
    job, asked, show = both.nexus.digest("fresh", "notes").job_id, list[Deployment](), jobs.show_job

    def watched(deployment: Deployment, job_id: str) -> JobDetails:
        asked.append(deployment)
        return show(deployment, job_id)

    monkeypatch.setattr(jobs, "show_job", watched)
    limited = Nexus(cells=both.cells, namespaces=["fresh"])
    assert limited.job(job).namespace == "fresh"
    assert all(one is both.cells.deployments["two"] for one in asked)
    for other in ("old", "nobody"):
        with pytest.raises(NotFound):
            Nexus(cells=both.cells, namespaces=[other]).drop_job(job)
    assert limited.drop_job(job).id == job


# --- the environment and the commands ---------------------------------------------------------------------------------
def test_the_environment_names_the_cells(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEXUS_DATABASE_URL", "NEXUS_REDIS_URL", "NEXUS_KEY_PREFIX"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NEXUS_CELLS", str(both.file))
    client = Nexus()
    assert client.cells is not None
    assert [one.namespace for one in client.namespaces()] == ["old"]
    client.cells.close()
    with pytest.raises(ConfigurationError, match="NEXUS_CELLS names several deployments"):
        Deployment()
    monkeypatch.setenv("NEXUS_CELL", "two")
    worker = Deployment()
    assert worker.settings.key_prefix == both.two.name
    assert Nexus(worker).namespaces() == []
    worker.close()
    monkeypatch.setenv("NEXUS_CELL", "three")
    with pytest.raises(ConfigurationError, match="no cell 'three'"):
        Deployment()


def test_commands_reach_the_cells(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXUS_CELLS", str(both.file))
    assert command("remember", "I like tea.", "--namespace", "fresh").returncode == 0
    found = json.loads(command("namespaces", "list", "--json").stdout)
    assert [one["namespace"] for one in found["namespaces"]] == ["fresh", "old"]
    assert command("search", "tea", "--namespace", "fresh").stdout.count("tea") >= 1
    listed = json.loads(command("cells", "list", "--json").stdout)
    assert [(one["name"], one["namespaces"], one["ready"]) for one in listed["cells"]] == [
        ("one", 1, True),
        ("two", 1, True),
    ]
    assert json.loads(command("cells", "prepare", "--json").stdout)["cells"] == {"one": 0, "two": 1}
    wrong = command("cells", "move", "fresh", "three")
    assert wrong.returncode == 1
    assert "no cell 'three'" in wrong.stderr
    monkeypatch.setenv("NEXUS_NAMESPACES", "fresh")
    refused = command("cells", "move", "fresh", "one")
    assert (refused.returncode, "concerns all namespaces" in refused.stderr) == (1, True)


OF_A_NAMESPACE = """
ingest FILE --namespace fresh
digest chat --namespace fresh
extract chat --namespace fresh
dream fresh
context --query tea --namespace fresh
profile ann --observer assistant --namespace fresh
ask --observer assistant tea? --namespace fresh
memories list --namespace fresh
memories perspectives --namespace fresh
memories show RAW --namespace fresh
sessions list --namespace fresh
sessions show chat --namespace fresh
sessions end chat --namespace fresh
topics list --namespace fresh
jobs list --namespace fresh
jobs finished --namespace fresh
jobs retry --all --namespace fresh
tokens create one --namespace fresh
tokens list --namespace fresh
webhooks list --namespace fresh
namespaces show fresh
namespaces set fresh --budget 1
status --namespace fresh
audit --namespace fresh
export FILE.out --namespace fresh
forget --session chat --yes --namespace fresh
"""
"""Commands for a namespace. Each does its work, and then ends with the code 0."""


def only_cells(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that names a file of cells, and none of them."""
    monkeypatch.setenv("NEXUS_CELLS", str(both.file))
    monkeypatch.setattr(deployment, "_default", None)


def test_each_command_ends_well_in_the_cell_of_its_namespace(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, `ingest` and `digest` did their work, and then ended with an error: which cell's workers to look for?"""
    only_cells(both, monkeypatch)
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"session": "chat", "id": "m1", "author": "ann", "content": "I like tea."}))
    raw, failed = "", {}
    for line in OF_A_NAMESPACE.strip().splitlines():
        given = [word.replace("FILE", str(file)).replace("RAW", raw) for word in line.split()]
        told = command(*given)
        if told.returncode or "NEXUS_CELL" in told.stdout + told.stderr:
            failed[line] = told.stdout + told.stderr
        raw = raw or str(both.nexus.session("fresh", "chat").said[0].id)
    assert failed == {}


@pytest.mark.parametrize("asked", [("ingest", "FILE", "--wait"), ("digest", "chat", "--wait")])
def test_a_command_that_waits_leaves_the_work_to_the_workers_of_the_cell(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    only_cells(both, monkeypatch)
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"session": "chat", "id": "m1", "author": "ann", "content": "I like tea."}))
    both.nexus.ingest("fresh", "chat", [Message(content="I like coffee.", author="ann")])
    given = [str(file) if word == "FILE" else word for word in asked]
    told = command(*given, "--timeout", "1", "--namespace", "fresh")
    assert (told.returncode, "NEXUS_CELL" in told.stdout + told.stderr) == (3, False), told.stderr


@pytest.mark.parametrize(
    "given",
    ["db upgrade", "db upgrade --check", "db check", "db accept", "db reembed", "metrics"],
)
def test_a_command_about_one_database_asks_for_the_cell(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Before, `db upgrade` upgraded a database that is no cell, and the others meant the directory alone."""
    only_cells(both, monkeypatch)
    told = command(*given.split())
    assert (told.returncode, "Set NEXUS_CELL for a worker or a command" in told.stderr) == (1, True), told.stdout
    monkeypatch.setenv("NEXUS_CELL", "two")
    told = command(*given.split())
    assert told.returncode == 0, told.stderr


def test_doctor_and_up_ask_for_the_cell_and_start_nothing(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, `doctor` examined the servers of the home folder, which are no cell, and found them well."""
    only_cells(both, monkeypatch)
    for name in ("NEXUS_DATABASE_URL", "NEXUS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path / "home"))
    checks = {check["name"]: check for check in json.loads(command("doctor", "--json").stdout)["checks"]}
    assert not checks["servers"]["ok"]
    assert "NEXUS_CELL" in checks["servers"]["remedy"]
    assert not {"postgres", "redis", "workers"} & set(checks)
    told = command("up", "--detach")
    assert (told.returncode, "Set NEXUS_CELL" in told.stdout + told.stderr) == (1, True)
    assert not (tmp_path / "home" / "postgres").exists()


@pytest.mark.parametrize("name", ["status", "list", "recover", "clear", "quarantine", "release --all"])
def test_a_command_about_the_buffer_asks_for_the_cell(
    both: TwoCells, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each cell has its entries. Before, `buffer status` said that all was stored, and looked in another home."""
    only_cells(both, monkeypatch)
    told = command("buffer", *name.split())
    assert (told.returncode, "Set NEXUS_CELL" in told.stderr) == (1, True)
    assert command("buffer", "flush").returncode == 0


def test_the_start_of_a_jobs_id_is_enough_in_each_cell(both: TwoCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows eight characters. Before, only the directory knew its jobs by them."""
    both.nexus.remember("fresh", "Something.")
    job = both.nexus.digest("fresh", "notes").job_id
    only_cells(both, monkeypatch)
    told = command("jobs", "show", job[:8])
    assert (told.returncode, job in told.stdout) == (0, True), told.stderr


# --- what is wrong with a file ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "not JSON|cannot be read"),
        ("{", "not JSON"),
        ('{"cells": {}}', "at least one cell"),
        ('{"cells": {"a b": {}}}', "no name of a cell"),
        ('{"cells": {"a": {}}, "new": "b"}', '"new" names no cell'),
        ('{"cells": {"a": {}}, "other": 1}', "unknown keys: other"),
        ('{"cells": {"a": {"database_ulr": "x"}}}', "unknown settings: database_ulr"),
        ('{"cells": {"a": {"database_url": "$NOT_SET_ANYWHERE"}}}', "NOT_SET_ANYWHERE, which is not set"),
        ('{"cells": {"a": {"database_url": "postgresql://x/y", "redis_url": null}}}', "NEXUS_REDIS_URL is not set"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_file_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Cells(text)


def test_a_cell_must_be_prepared_and_keep_its_database(deploy: Callable[..., Sandbox], tmp_path: Path) -> None:
    with two_cells(deploy, tmp_path) as made:
        told = document(made.one, made.two)
        told["cells"]["three"] = told["cells"]["two"]  # type: ignore[index]
        swapped = document(made.two, made.one) | {"directory": "two"}
        for wrong, why in (
            (told | {"new": "three"}, "not prepared"),
            (swapped | {"new": "one"}, "not prepared|not the"),
        ):
            cells = Cells(json.dumps(wrong))
            with pytest.raises(ConfigurationError, match=why):
                Nexus(cells=cells).remember("fresh", "Something.")
            cells.close()
        cells = Cells(json.dumps(told))
        with pytest.raises(ConfigurationError, match="the same one"):
            cells.prepare()
        cells.close()
        with pytest.raises(NotFound):
            move(made.cells, "nobody", "one")


def test_preparing_names_the_cell_that_has_no_schema(deploy: Callable[..., Sandbox], tmp_path: Path) -> None:
    name = f"x{uuid.uuid4().hex[:12]}"
    with two_cells(deploy, tmp_path) as made:
        administer(made.one.servers, f"CREATE DATABASE {name}")
        told = document(made.one, made.two)
        told["cells"]["two"] |= {"database_url": made.one.servers.database_url.replace("/nexus?", f"/{name}?")}  # type: ignore[index]
        cells = Cells(json.dumps(told))
        try:
            with pytest.raises(SchemaOutdated, match="cell two is empty") as refused:
                cells.prepare()
            assert "`NEXUS_CELL=two nexus db upgrade`" in str(refused.value)
        finally:
            cells.close()
            administer(made.one.servers, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_cell_with_more_namespaces_than_a_statement_has_parameters_is_prepared(both: TwoCells) -> None:
    both.one.sql("INSERT INTO placements (namespace, cell) VALUES ('n3', 'two')")
    with both.one.deployment.database.transaction() as tx:
        assert directory.place_all(tx, [f"n{number}" for number in range(66_000)], "one") == ["n3"]
    assert both.one.sql("SELECT count(*) FROM placements WHERE cell = 'one' AND namespace LIKE 'n%'") == [(65_999,)]


def test_cells_never_give_two_rows_the_same_id(both: TwoCells) -> None:
    for number in range(20):
        both.nexus.remember("old", f"Old {number}.")
        both.nexus.remember("fresh", f"Fresh {number}.")
    one, two = ([i for (i,) in here.sql("SELECT id FROM memories")] for here in (both.one, both.two))
    assert {i % 256 for i in two} == {1}
    assert {i % 256 for i in one[1:]} == {0}
    assert min(two) > min(one)
    assert not set(one) & set(two)


def test_every_method_without_a_namespace_asks_all_cells() -> None:
    methods = {
        name: inspect.signature(method).parameters
        for name, method in vars(Nexus).items()
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method)
    }
    anywhere = {
        name
        for name, given in methods.items()
        if "namespace" not in given or given["namespace"].default is not inspect.Parameter.empty
    }
    assert anywhere == set(routing._GATHERED)


# --- processes of one cell --------------------------------------------------------------------------------------------
@pytest.fixture
def three(deploy: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The deployment of a process with ``NEXUS_CELL=three``, which is not the cell of new namespaces."""
    with two_cells(deploy, tmp_path) as made:
        named: Any = document(made.one, made.two)
        here = deploy()
        named["cells"]["three"] = document(here, here)["cells"]["one"]  # type: ignore[index]
        made.file.write_text(json.dumps(named))
        with closing(Cells(str(made.file))) as cells:
            cells.prepare()
        for name in ("DATABASE_URL", "REDIS_URL", "KEY_PREFIX"):
            monkeypatch.delenv(f"NEXUS_{name}", raising=False)
        monkeypatch.setenv("NEXUS_CELLS", str(made.file))
        monkeypatch.setenv("NEXUS_CELL", "three")
        with closing(Deployment()) as process:
            yield process
        here.sql(AS_MADE)


def _all_cells(monkeypatch: pytest.MonkeyPatch) -> tuple[Nexus, Cells]:
    monkeypatch.delenv("NEXUS_CELL")
    nexus = Nexus()
    assert nexus.cells is not None
    return nexus, nexus.cells


@pytest.mark.parametrize(
    "make",
    [
        lambda nexus, _folder: nexus.remember("made", "Eva lives in Porto."),
        lambda nexus, _folder: nexus.create_namespace("made"),
        lambda nexus, _folder: nexus.write_topic("made", "home.md", content="Eva lives in Porto."),
        lambda nexus, folder: nexus.import_markdown("made", folder),
        lambda nexus, folder: nexus.import_("made", folder / "export.jsonl"),
        lambda nexus, _folder: (
            nexus.deployment.buffer.append("made", "s", {"messages": [], "end": False}, "ingest"),
            store_buffer(nexus.deployment),
        ),
    ],
    ids=["message", "namespace", "topic", "markdown", "export", "buffer"],
)
def test_a_namespace_that_a_process_of_one_cell_makes_is_found_by_all(
    three: Deployment, make: Callable[[Nexus, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first write of another client would make a second one, and an erasure would reach only that."""
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "home.md").write_text("Eva lives in Porto.")
    Nexus(three).create_namespace("source")
    Nexus(three).export("source", folder / "export.jsonl")
    make(Nexus(three), folder)
    nexus, cells = _all_cells(monkeypatch)
    nexus.remember("made", "Tom lives in Ghent.")
    assert cells.name_of("made") == "three"
    assert [one.namespace for one in nexus.namespaces()].count("made") == 1
    cells.close()


def test_a_process_of_one_cell_makes_no_second_namespace(
    three: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = Nexus(three)
    with monkeypatch.context() as patched:
        nexus, cells = _all_cells(patched)
        nexus.remember("acme", "Eva lives in Porto.")  # in two, the cell of new namespaces
        Nexus(cells.directory).remember("before", "It was made before there were cells.")
    for name in ("acme", "before"):
        with pytest.raises(NamespaceMoved, match="lives in the cell"):
            own.remember(name, "Tom lives in Ghent.")
    for session in ("s", "t"):
        three.buffer.append("acme", session, {"messages": [{"content": "Tom lives in Ghent."}], "end": False}, "ingest")
    caplog.clear()
    assert store_buffer(three).elsewhere == 2
    assert caplog.text.count("of acme stay in the buffer") == 1  # one for thousands of sessions
    assert own.namespaces() == []
    buffers.store_all(cells)
    assert len(nexus.session("acme", "s").said) == 1
    cells.close()


@pytest.mark.usefixtures("three")
def test_a_process_with_a_wrong_file_makes_no_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages would be stored in the database of another cell, where no client looks for them."""
    named = json.loads((tmp_path / "cells.json").read_text())
    wrong = {**named["cells"], "three": named["cells"]["two"]}
    (tmp_path / "cells.json").write_text(json.dumps({**named, "cells": wrong}))
    with closing(Deployment()) as process:
        with pytest.raises(ConfigurationError, match="not the one that was registered"):
            Nexus(process).remember("acme", "Eva lives in Porto.")
        process.buffer.append("acme", "s", {"messages": [], "end": False}, "ingest")
        assert store_buffer(process).elsewhere == 1
    (tmp_path / "cells.json").write_text(json.dumps(named))
    nexus, cells = _all_cells(monkeypatch)
    assert nexus.namespaces() == []
    cells.close()


def test_without_the_directory_a_process_of_one_cell_buffers_only_what_is_new(
    three: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cells.json"
    named, own = json.loads(file.read_text()), Nexus(three)
    assert own.remember("known", "Eva lives in Porto.").stored == 1
    file.write_text(json.dumps({**named, "cells": {**named["cells"], "one": {**named["cells"]["one"], **_AWAY}}}))
    assert own.remember("late", "Tom lives in Ghent.").buffered == 1
    assert own.remember("known", "Tom lives in Ghent.").stored == 1
    assert store_buffer(three).elsewhere == 1
    assert len(own.memories("known")) == 2
    with pytest.raises(NamespaceMoving, match="not known now"):
        own.create_namespace("other")
    file.write_text(json.dumps(named))
    assert store_buffer(three).stored == 1
    _, cells = _all_cells(monkeypatch)
    assert cells.name_of("late") == "three"
    cells.close()


@pytest.mark.parametrize("routed", [False, True])
def test_threads_that_make_many_namespaces_at_once_do_not_wait_for_each_other(
    three: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, routed: bool
) -> None:
    """Each holds a connection, and asks the directory by another. With one pool, all stood for 30 s, and buffered."""
    if routed:
        file = tmp_path / "cells.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"new": "one", "directory": "one"}))
        nexus, _ = _all_cells(monkeypatch)
    else:
        nexus = Nexus(three)
    with ThreadPoolExecutor(40) as threads:
        stored = sum(threads.map(lambda n: nexus.remember(f"made-{n}", "Eva lives in Porto.").stored, range(40)))
    assert stored == 40
    if nexus.cells:
        nexus.cells.close()


_AWAY = {"database_url": NOWHERE}


def test_a_directory_that_refuses_a_process_of_one_cell_is_no_outage(three: Deployment, tmp_path: Path) -> None:
    """A message of a new namespace is refused with the cause. What is buffered of others is stored."""
    file = tmp_path / "cells.json"
    named, own = json.loads(file.read_text()), Nexus(three)
    assert own.remember("known", "Eva lives in Porto.").stored == 1
    url = three.endpoints.database_url
    refusing = {"database_url": url.replace(f"/{url.partition('?')[0].rpartition('/')[2]}?", "/missing?")}
    file.write_text(json.dumps({**named, "cells": {**named["cells"], "one": {**named["cells"]["one"], **refusing}}}))
    with pytest.raises(ConfigurationError, match="does not exist"):
        own.remember("late", "Tom lives in Ghent.")
    for name in ("late", "known"):
        three.buffer.append(name, "s", {"messages": [{"content": "Tom lives in Ghent."}], "end": False}, "ingest")
    report = store_buffer(three)
    assert (report.stored, report.elsewhere) == (1, 1)


def test_the_hook_writes_to_the_home_of_its_cell(three: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and commands of the cell read the buffer there."""
    monkeypatch.setenv("NEXUS_HOME", str(three.settings.home / "of-the-user"))
    monkeypatch.setattr(hook, "_store_in_background", lambda: None)
    for name in ("SessionStart", "UserPromptSubmit", "SessionEnd"):
        event = {"hook_event_name": name, "session_id": "s", "cwd": "/", "prompt": "Deploys happen on Tuesdays."}
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(event).encode())))
        hook.main(["--namespace", "shop"])
    assert store_buffer(three).stored == 1
    assert context_file.asked_for(str(three.settings.home)).keys() == {"shop"}
    Nexus(three).write_topic("shop", "deploys.md", content="Deploys happen on Tuesdays.")
    context_cache.refresh(three)
    assert "Tuesdays" in context_file.take(str(three.settings.home), "shop")
