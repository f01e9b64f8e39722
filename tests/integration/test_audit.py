"""The audit log: written with what it describes, never changed, without content."""

from __future__ import annotations

import getpass
import io
import socket
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput, NexusError, NotFound
from nexus_tasks.storage import audit
from nexus_tasks.storage.namespaces import NamespaceSettings
from tests.integration.inline import say, work
from tests.integration.test_forget import SECRET
from tests.sandbox import Sandbox


def test_every_erasure_and_export_has_its_entry(here: Sandbox, tmp_path: Path) -> None:
    nexus = Nexus()
    first, _ = say(f"I live in {SECRET}.", "I drink tea.", session=f"chat-{SECRET}")
    say("I have a cat.", session="pets")
    work("derive_memory")
    erased = [
        nexus.forget("acme", memory_id=first),
        nexus.forget("acme", session_key=f"chat-{SECRET}"),
    ]
    exported = nexus.export("acme", tmp_path / "acme.jsonl")
    nexus.export("acme", io.StringIO())
    nexus.export_markdown("acme", tmp_path / "markdown")
    erased.append(nexus.forget("acme", everything=True))
    entries = nexus.audit("acme")[::-1]
    assert [one.action for one in entries] == [
        *("erase.memory", "erase.session"),
        *("export.begin", "export.end") * 3,
        "erase.namespace",
    ]
    assert [one.counts for one in entries if one.action.startswith("erase.")] == [one.deleted for one in erased]
    assert entries[3].counts == exported.rows
    for one in entries:
        assert (one.actor, one.user, one.host) == ("operator", getpass.getuser(), socket.gethostname())
    assert SECRET not in str(here.sql("SELECT log::text FROM audit_log AS log"))
    assert [one.action for one in nexus.audit(action="erase", limit=2)] == ["erase.namespace", "erase.session"]
    assert nexus.audit("other") == []
    assert nexus.audit(action="eras") == []
    assert [one.id for one in nexus.audit(since=entries[2].at, until=entries[3].at)] == [entries[2].id]
    with pytest.raises(InvalidInput):
        nexus.audit(limit=1_001)


def test_what_did_not_happen_has_no_entry(here: Sandbox, tmp_path: Path) -> None:  # noqa: ARG001 - the deployment
    nexus = Nexus()
    say("I live in Porto.")
    for wrong in ({"memory_id": 10**9}, {"session_key": "nobody"}):
        with pytest.raises(NotFound):
            nexus.forget("acme", **wrong)  # type: ignore[arg-type]
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(InvalidInput):
        nexus.export("acme", tmp_path / "there.jsonl", overwrite=False)
    assert nexus.audit() == []


def test_an_erasure_that_cannot_be_logged_does_not_happen(here: Sandbox) -> None:
    nexus = Nexus()
    say("I live in Porto.")
    here.sql("ALTER TABLE audit_log RENAME TO elsewhere")
    try:
        with pytest.raises(NexusError):
            nexus.forget("acme", everything=True)
        assert here.sql("SELECT count(*) FROM memories") == [(1,)]
    finally:
        here.sql("ALTER TABLE elsewhere RENAME TO audit_log")


def test_a_cut_off_export_has_begun(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    nexus = Nexus()
    say("I live in Porto.")

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError

    with pytest.raises(OSError):
        nexus.export("acme", Full())
    assert [one.action for one in nexus.audit()] == ["export.begin"]


def test_no_entry_changes_or_goes_and_the_log_outlives_its_namespace(here: Sandbox) -> None:
    nexus = Nexus()
    say("I live in Porto.")
    nexus.create_token("acme", "agent")
    nexus.forget("acme", everything=True)
    before = here.sql("SELECT * FROM audit_log ORDER BY id")
    for change in (
        "UPDATE audit_log SET action = 'nothing'",
        "UPDATE audit_log SET count = count + 1",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
    ):
        with pytest.raises(NexusError, match="append-only"):
            here.sql(change)
    assert [one.name for one in nexus.tokens("acme")] == ["agent"]  # as the settings, tokens stay
    here.sql("DELETE FROM namespaces")
    assert here.sql("SELECT * FROM audit_log ORDER BY id") == before
    assert len(nexus.audit("acme")) == 2


def test_a_jobs_erasure_is_a_workers(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of somebody's own may call the client."""
    nexus = Nexus()
    say("I live in Porto.", session="chat")
    say("I have a cat.", session="pets")
    find = here.deployment.namespace

    def find_and_forget(name: str) -> NamespaceSettings | None:
        if audit._actor.get() == audit.WORKER:
            nexus.forget("acme", session_key="chat")
            monkeypatch.undo()
        return find(name)

    monkeypatch.setattr(here.deployment, "namespace", find_and_forget)
    work("derive_memory")
    nexus.forget("acme", session_key="pets")
    assert [one.actor for one in nexus.audit()] == ["operator", "worker"]
