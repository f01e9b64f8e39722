"""An erasure reaches what waits in this machine's session buffer: nothing of it is stored afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.buffer import session as session_files
from nexus_tasks.buffer.buffer import Recovery
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import BufferError, NotFound
from nexus_tasks.services import buffer_flush
from tests.commandline import nexus
from tests.integration.test_buffered import away, buffer, said, turns  # noqa: F401
from tests.integration.test_hook import call
from tests.sandbox import Sandbox
from tests.transcripts.generate import Transcript

SECRET = "zanzibarium"


def flush() -> None:
    buffer_flush.store_buffer(default_deployment(), wait=True)


def erase(how: str) -> None:
    """Erase the session ``chat`` of ``acme``, or more."""
    if how == "session":
        Nexus().forget("acme", session_key="chat")
    elif how == "namespace":
        Nexus().forget("acme", everything=True)
    else:
        assert nexus("forget", "--namespace", "acme", "--session", "chat", "--yes").returncode == 0


@pytest.mark.parametrize("how", ["session", "namespace", "command"])
@pytest.mark.parametrize("known", [True, False])
def test_a_message_that_waits_in_the_buffer_does_not_come_back(here: Sandbox, how: str, known: bool) -> None:
    client = Nexus()
    if known:
        client.ingest("acme", "chat", turns("I like tea."))
    client.ingest("other", "chat", turns("kept"))
    with away("NEXUS_DATABASE_URL"):
        client.ingest("acme", "chat", turns(f"I like {SECRET}."))
        client.ingest("other", "chat", turns("kept too"))
    erase(how)
    flush()
    assert said(here) == ["kept", "kept too"]
    assert not any(SECRET.encode() in path.read_bytes() for path in here.folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["session", "namespace", "command"])
def test_an_erasure_warns_of_entries_that_another_name_of_the_database_has_buffered(
    here: Sandbox, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are stored under the other name after the erasure."""
    Nexus().ingest("acme", "chat", turns("I like tea."))
    others = default_deployment().buffer.of("127.0.0.1/nexus")
    others.append("acme", "chat", {"role": "user", "author": "ann", "content": f"I like {SECRET}."})
    others.append("other", "chat", {"role": "user", "author": "ann", "content": "Nothing of it is erased."})
    erase(how)
    assert caplog.text.count("does not reach") == caplog.text.count("1 buffered entries of acme") == 1
    assert nexus("buffer", "flush", "--of", "127.0.0.1/nexus").returncode == 0
    assert f"I like {SECRET}." in said(here)
    caplog.clear()
    erase("session")
    assert (said(here), caplog.text) == (["Nothing of it is erased."], "")


@pytest.mark.parametrize("died", ["stored", "acknowledged"])
def test_a_crash_before_the_erasure_loses_nothing_and_the_next_erasure_takes_all(here: Sandbox, died: str) -> None:
    client = Nexus()
    with away("NEXUS_DATABASE_URL"):
        client.ingest("acme", "chat", turns("one", SECRET))
    killed = {
        "stored": "from nexus_tasks.buffer import SessionBuffer as owner; name = 'acknowledge'",
        "acknowledged": "from nexus_tasks.services import erasure as owner; name = '_committed'",
    }
    script = f"""
import os, signal
from nexus_tasks import Nexus
{killed[died]}
setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
Nexus().forget("acme", session_key="chat")
"""
    ended = subprocess.run([sys.executable, "-c", script], env=here.environment, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert said(here) == ["one", SECRET]
    assert SessionBuffer(here.folder / "buffer").pending() == (died == "stored")
    client.forget("acme", session_key="chat")
    flush()
    assert said(here) == []


def test_a_message_whose_entry_a_crash_has_left_in_the_buffer_does_not_come_back(
    here: Sandbox,
    buffer: SessionBuffer,  # noqa: F811
) -> None:
    for text in ("one", SECRET):
        buffer.append("acme", "chat", text)
    buffer.append("acme", "chat", "two", "sketch")  # of a newer release, so the segment stays in the buffer
    flush()
    target = next(one.id for one in Nexus().memories("acme") if one.content == SECRET)
    Nexus().forget("acme", memory_id=target)
    flush()
    assert said(here) == ["one"]
    [left] = [entry.payload for one in buffer.recover().segments for entry in one.entries]
    assert left == "two"
    Nexus().forget("acme", session_key="chat")
    assert not buffer.pending()


def test_the_quarantine_of_an_erased_session_is_emptied(
    here: Sandbox,
    buffer: SessionBuffer,  # noqa: F811
) -> None:
    for session in ("chat", "other"):
        buffer.append("acme", session, {"content": SECRET, "role": "nobody"})
        buffer.append("acme", session, "fine")
    buffer.of("elsewhere:5432/db").append("acme", "chat", {"content": "of another deployment", "role": "nobody"})
    flush()
    assert buffer.quarantined() == 2
    Nexus().forget("acme", session_key="chat")
    assert [damage.session for damage, _ in buffer.quarantine()] == ["other"]
    Nexus().forget("acme", everything=True)
    assert buffer.quarantined() == 0
    assert not any(SECRET.encode() in path.read_bytes() for path in here.folder.rglob("*") if path.is_file())
    assert buffer.of("elsewhere:5432/db").pending(), "its deployment is not this one"


def test_the_quarantine_of_a_session_is_found_in_each_spelling_of_its_name(
    here: Sandbox,  # noqa: ARG001 - it sets up the servers
    buffer: SessionBuffer,  # noqa: F811
) -> None:
    for session in ("cafe\u0301", " caf\u00e9 "):  # stored as one session
        buffer.append("acme", session, {"content": SECRET, "role": "nobody"})
        buffer.append("acme", session, "fine")
    flush()
    assert buffer.quarantined() == 2
    Nexus().forget("acme", session_key="caf\u00e9")
    assert buffer.quarantined() == 0


def test_an_event_of_a_hook_does_not_come_back_for_want_of_its_erased_message(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The entry of a told event stays while another event of its segment waits for the transcript."""
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    made.prompt(SECRET)
    made.write(path)
    call(capsys, "UserPromptSubmit", path, prompt=SECRET)
    call(capsys, "PostToolUse", path, tool_name="Bash", tool_input={"command": "ls"}, tool_response={"stdout": "a"})
    flush()
    assert said(here) == [SECRET]
    [(namespace, target)] = here.sql("SELECT n.name, m.id FROM memories m JOIN namespaces n ON n.id = m.namespace_id")
    Nexus().forget(namespace, memory_id=target)
    flush()
    assert said(here) == ["Bash: a"]


def test_an_event_that_was_written_while_the_clock_was_ahead_is_stored_before_an_erasure(
    here: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = Transcript(began=datetime.now(UTC)), tmp_path / "t.jsonl"
    made.prompt(SECRET)
    made.write(path)
    call(capsys, "UserPromptSubmit", path, prompt=SECRET)
    flush()
    with monkeypatch.context() as patch:
        patch.setattr(session_files, "time", lambda: time.time() + 7_200)
        call(capsys, "PostToolUse", path, tool_name="Bash", tool_input={"command": "ls"}, tool_response={"stdout": "a"})
    [(namespace, target)] = here.sql("SELECT n.name, m.id FROM memories m JOIN namespaces n ON n.id = m.namespace_id")
    Nexus().forget(namespace, memory_id=target)
    flush()
    assert said(here) == ["Bash: a"]


def test_nothing_is_erased_while_the_buffer_cannot_be_stored(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Nexus()
    client.ingest("acme", "chat", turns("one"))
    with away("NEXUS_DATABASE_URL"):
        client.ingest("acme", "chat", turns("two"))
    with pytest.raises(NotFound):
        client.forget("nowhere", everything=True)
    assert SessionBuffer(here.folder / "buffer").pending(), "the messages of another namespace wait on"

    def unreadable(_: SessionBuffer) -> Recovery:
        raise BufferError("The folder cannot be read.")

    with monkeypatch.context() as broken:
        broken.setattr(SessionBuffer, "recover", unreadable)
        with pytest.raises(BufferError):
            client.forget("acme", everything=True)
    assert said(here) == ["one"]
    client.forget("acme", everything=True)
    flush()
    assert said(here) == []
