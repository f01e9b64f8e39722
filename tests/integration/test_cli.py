"""The command line as people and scripts meet it: real servers, real workers, exit codes and documents."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from nexus_tasks import __version__, embedded
from nexus_tasks.cli import words
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.types import WaitingJob
from tests import commandline
from tests.databases import durable
from tests.sandbox import Sandbox, eventually, sandbox
from tests.standin import StandIn, faults

CHAT = [
    ("mon", "user", "ann", "Deploys happen on Tuesdays.", "2026-09-14T08:30:00Z", "mon-1"),
    ("mon", "assistant", "assistant", "Noted: deploys happen on Tuesdays.", "2026-09-14T08:31:00Z", "mon-2"),
    ("mon", "user", "ann", "I like [bold red]markup[/] :smile: in my notes.", "2026-09-14T08:32:00Z", "mon-3"),
    ("tue", "user", "bob", "I live in Hamburg with my partner Lena.", "2026-09-15T09:00:00Z", "tue-1"),
    ("tue", "user", "ann", "We use Postgres 17 in production.", "2026-09-15T09:01:00Z", "tue-2"),
]
MARKUP = "[bold red]markup[/] :smile:"
WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def nexus(*arguments: str) -> Ran:
    """Run a command in this process."""
    ran = commandline.nexus(*arguments)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def read(*arguments: str) -> Any:
    """The document of a read command that must succeed and keep quiet."""
    ran = nexus(*arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return ran.document


def process(
    *arguments: str, env: Mapping[str, str], stdout: int = subprocess.PIPE, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nexus_tasks.cli.main", *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=False,
    )


def jsonl(folder: Path, rows: list[tuple[str, ...]] = CHAT) -> str:
    keys = ("session", "role", "author", "content", "occurred_at", "id")
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return str(path)


# --- a deployment with a worker, its conversation derived -------------------------------------------------------------
@pytest.fixture(scope="module", autouse=True)
def acme(servers: ServerAddresses) -> Iterator[Sandbox]:
    with sandbox(servers) as made:
        made.worker()
        ran = nexus("ingest", jsonl(made.folder), "--namespace", "acme", "--wait", "--json")
        assert ran.code == 0, ran.err
        assert ran.document == {
            "namespaces": ["acme"],
            "session_keys": ["mon", "tue"],
            "messages": 5,
            "stored": 5,
            "duplicates": 0,
            "enqueued": 7,
            "buffered": 0,
            "derived": 5,
        }
        assert "derived 5 of 5" in ran.err
        yield made


def test_ingesting_again_stores_and_queues_nothing(acme: Sandbox) -> None:
    again = nexus("ingest", jsonl(acme.folder), "--namespace", "acme")
    assert again.code == 0
    assert "Stored 0 messages" in again.out
    assert "5 were stored already" in again.out
    receipt = nexus("ingest", jsonl(acme.folder), "--namespace", "acme", "--wait", "--json").document
    assert (receipt["stored"], receipt["duplicates"], receipt["enqueued"], receipt["derived"]) == (0, 5, 0, 0)


def test_malformed_input_stores_nothing(acme: Sandbox) -> None:
    path = acme.folder / "bad.jsonl"
    path.write_text('{"content": "fine"}\n{"content": 7}\n')
    ran = nexus("ingest", str(path), "--namespace", "spoiled", "--json")
    assert ran.code == 1
    assert ran.document["error"]["type"] == "InvalidInput"
    assert "line 2" in ran.document["error"]["message"]
    assert "nothing was stored" in ran.document["error"]["remedy"]
    assert "spoiled" not in [one["namespace"] for one in read("namespaces", "list")["namespaces"]]
    missing = nexus("ingest", str(acme.folder / "none"), "--namespace", "spoiled")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("error: ")
    assert missing.err.count("\n") == 1


def test_search() -> None:
    found = read("search", "when do we deploy?", "--namespace", "acme", "--limit", "3")
    assert set(found) == {"query", "namespace", "results", "missing_embeddings"}
    assert (found["query"], found["namespace"], len(found["results"])) == ("when do we deploy?", "acme", 3)
    for hit in found["results"]:
        assert set(hit) == {
            *("id", "external_id", "level", "content", "score", "why", "confidence", "occurred_at", "session_key"),
            *("observer", "subject", "evidence", "event_from", "event_to", "claimed_at", "standing"),
            "more_evidence",
        }
        assert WHEN.fullmatch(hit["occurred_at"])
    fact = read("search", "deploys", "--namespace", "acme", "--level", "explicit", "--subject", "ann")["results"][0]
    assert fact["content"] == "Deploys happen on Tuesdays."
    assert (fact["observer"], fact["subject"], fact["session_key"]) == ("assistant", "ann", "mon")
    assert fact["evidence"] == [{"id": fact["evidence"][0]["id"], "external_id": "mon-1", "role": "derived_from"}]
    before = read("search", "deploys", "--namespace", "acme", "--as-of", "2026-01-01")
    assert before["results"] == []


def test_context() -> None:
    options = ("context", "--namespace", "acme", "--session", "mon", "--query", "deploy", "--max-tokens", "200")
    block = read(*options)
    assert set(block) == {"namespace", "text", "tokens", "max_tokens", "sections", "citations", "counted_by"}
    assert block["tokens"] <= block["max_tokens"] == 200
    assert {name for section in block["sections"] for name in section} == {"name", "tokens", "ids"}
    cited = {f"m{number}" for section in block["sections"] for number in section["ids"]}
    assert cited == set(block["citations"])
    assert {key for citation in block["citations"].values() for key in citation} == {"id", "external_id"}
    text = nexus(*options)
    assert text.out == block["text"] + "\n"  # nothing wrapped: it goes into a prompt
    assert f"{block['tokens']} of 200 tokens" in text.err
    messages = json.loads(nexus(*options, "--format", "anthropic").out)
    assert messages[0]["content"][0]["text"] == block["text"]
    assert json.loads(nexus(*options, "--format", "json").out)["namespace"] == "acme"


def test_memories() -> None:
    listed = read("memories", "list", "--namespace", "acme", "--level", "explicit", "--level", "raw")
    assert set(listed) == {"namespace", "memories"}
    assert {memory["level"] for memory in listed["memories"]} == {"explicit", "raw"}
    [fact] = [m for m in listed["memories"] if MARKUP in m["content"] and m["level"] == "explicit"]
    shown = read("memories", "show", f"m{fact['id']}", "--namespace", "acme")
    assert shown["evidence"][0]["external_id"] == "mon-3"
    assert {"supports", "superseded", "superseded_by", "valid_from"} <= set(shown)
    human = nexus("memories", "show", str(fact["id"]), "--namespace", "acme")
    assert MARKUP in human.out
    assert "assistant about ann" in human.out
    assert MARKUP in nexus("memories", "list", "--namespace", "acme").out
    assert MARKUP in nexus("search", "markup", "--namespace", "acme").out
    gone = nexus("memories", "show", "999999", "--namespace", "acme", "--json")
    assert (gone.code, gone.document["error"]["type"]) == (1, "NotFound")


def test_sessions() -> None:
    nexus("remember", "Lunch is at noon.", "--namespace", "talks", "--author", "ann", "--session", "daily")
    [session] = read("sessions", "list", "--namespace", "talks")["sessions"]
    assert (session["session_key"], session["messages"], session["open"]) == ("daily", 1, True)
    ended = read("sessions", "end", "daily", "--namespace", "talks")
    assert ended["job_id"]
    assert read("sessions", "show", "daily", "--namespace", "talks")["said"][0]["content"] == "Lunch is at noon."
    outcome = read_wait("digest", "daily", "--namespace", "talks")
    assert outcome["status"] in ("completed", "unchanged")
    assert {"job_id", "status", "reasons"} <= set(outcome)
    assert read("sessions", "end", "daily", "--namespace", "talks")["job_id"] is None
    assert "nothing is new" in nexus("sessions", "end", "daily", "--namespace", "talks").out
    assert "Lunch is at noon." in nexus("sessions", "show", "daily", "--namespace", "talks").out
    rebuilt = read_wait("digest", "daily", "--namespace", "talks", "--rebuild")
    assert (rebuilt["status"], rebuilt["reasons"]) == ("completed", ["manual_rebuild"])
    dreamt = read_wait("dream", "talks")
    assert (dreamt["status"], dreamt["reasons"], dreamt["details"]["sessions"]) == ("completed", ["manual"], 0)
    assert "Dream of talks: completed, 0 sessions digested." in nexus("dream", "talks", "--wait").out


def read_wait(*arguments: str) -> Any:
    return read(*arguments, "--wait", "--timeout", "30")


def test_namespaces() -> None:
    made = read("namespaces", "create", "team", "--observer", "ann", "--observer", "bob", "--budget", "1.5")
    assert made["observers"] == ["ann", "bob"]
    assert (made["budget_usd_per_day"], made["concurrency"]) == (1.5, None)
    changed = read("namespaces", "set", "team", "--concurrency", "2", "--unset", "budget")
    assert (changed["budget_usd_per_day"], changed["concurrency"]) == (None, 2)
    assert read("namespaces", "show", "team") == changed
    assert "team" in [one["namespace"] for one in read("namespaces", "list")["namespaces"]]
    assert "ann, bob" in nexus("namespaces", "show", "team").out
    assert "ann, bob" in nexus("namespaces", "list").out
    assert nexus("namespaces", "set", "nobody", "--budget", "1", "--json").document["error"]["type"] == "NotFound"


def test_status() -> None:
    found = read("status", "--namespace", "acme")
    assert set(found) == {"jobs", "namespaces", "left_out", "paused", "held_threads", "quarantined"}
    [one] = found["namespaces"]
    assert {
        *("namespace", "jobs", "memories", "underived", "oldest_underived_seconds", "waits", "spend_today_usd"),
        "model_calls_today",
    } <= set(one)
    assert one["jobs"] == {"waiting": 0, "pending": 0, "running": 0, "dead": 0}
    assert set(one["memories"]) == {
        *("raw", "explicit", "derived", "contradiction", "summary_short", "summary_long"),
    }
    assert (one["memories"]["raw"], one["underived"], one["oldest_underived_seconds"]) == (5, 0, None)
    human = nexus("status").out
    assert "5 messages" in human
    assert "all messages are derived" in human


def test_a_wait_is_shown_with_its_reason() -> None:
    nexus("remember", "The office closes at six.", "--namespace", "slow")

    def waits() -> Any:
        return read("status", "--namespace", "slow")["namespaces"][0]["waits"]

    [waiting] = eventually(waits)
    assert {"kind", "scope", "reason", "due_in_seconds"} <= set(waiting)
    assert waiting["reason"] == "ripeness"
    assert re.search(r"derive_memory m\d+ · assistant: \d+ of 512 tokens, due in \d+ s", nexus("status").out)


def test_jobs() -> None:
    listed = read("jobs", "list", "--namespace", "acme", "--status", "completed", "--limit", "3")["jobs"]
    assert len(listed) == 3
    for job in listed:
        assert {
            *("id", "kind", "scope", "status", "attempts", "queued_at", "started_at", "finished_at"),
        } <= set(job)
        assert WHEN.fullmatch(job["finished_at"])
    shown = read("jobs", "show", listed[0]["id"][:8])
    assert shown["id"] == listed[0]["id"]
    assert listed[0]["id"] in nexus("jobs", "show", listed[0]["id"]).out
    assert listed[0]["id"] in nexus("jobs", "list", "--namespace", "acme").out
    assert nexus("jobs", "show", "nonesuch", "--json").document["error"]["type"] == "NotFound"
    assert nexus("jobs", "resume").out == "Nothing was paused.\n"
    assert nexus("jobs", "resume", "dig", "--json").document["error"]["type"] == "InvalidInput"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.043, "43 ms"), (9, "9 s"), (59.6, "1 min"), (3_599, "1 h"), (7_800, "2 h 10 min"), (259_200, "3 days")],
)
def test_spans_in_words(seconds: float, said: str) -> None:
    assert words.span(seconds) == said


def test_waits_scopes_and_money_in_words() -> None:
    waiting = WaitingJob(
        kind="derive_memory", scope="{}", reason="ripeness", detail="312 of 512 tokens", due_in_seconds=9.0
    )
    assert words.wait(waiting) == "312 of 512 tokens, due in 9 s"
    waiting = replace(waiting, reason="retry", detail="Transient", due_in_seconds=0.0)
    assert words.wait(waiting) == "waits before it tries again (Transient), due in 1 s"
    waiting = replace(waiting, reason="budget", detail="", due_in_seconds=18_000.0)
    assert words.wait(waiting) == "waits because today's budget is spent, due in 5 h"
    assert words.scope('{"memory_id":17,"namespace":"acme","observer":"assistant"}') == "m17 · assistant"
    assert [words.money(usd) for usd in (0, 0.000181, 1.5)] == ["$0.00", "$0.000181", "$1.50"]
    assert words.count(2_000, "memory", "memories") == "2,000 memories"


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "x"),
        ("search", "x", "--namespace", "acme", "--level", "facts"),
        ("search", "x", "--namespace", "acme", "--limit", "0"),
        ("search", "x", "--namespace", "acme", "--as-of", "yesterday"),
        ("memories", "show", "first", "--namespace", "acme"),
        ("namespaces", "set", "acme", "--unset", "observers"),
        ("ingest", "f", "--namespace", "n", "--format", "yaml"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    ran = nexus(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage" in ran.err


def test_help_and_version_need_no_servers() -> None:
    assert nexus("--version").out == f"nexus-tasks {__version__}\n"
    shown = nexus("--help").out
    commands = (
        "demo up down db ingest remember search context memories sessions namespaces digest dream status jobs doctor"
    )
    assert all(f" {name} " in shown for name in commands.split())


def test_doctor_sends_a_canary(acme: Sandbox) -> None:
    acme.beat()
    with durable(acme.servers):
        ran = nexus("doctor", "--canary")
    assert ran.code == 0, ran.out
    printed = " ".join(ran.out.split())
    assert re.search(r"ok canary reflect_namespace of nexus-doctor: \w+ after [\d,]+ ms", printed)
    assert re.search(rf"ok workers 1: w0-\w+@{acme.name}", printed)


def test_db(servers: ServerAddresses, acme: Sandbox) -> None:
    assert read("db", "check")["ok"] is True
    assert "up to date" in nexus("db", "upgrade").out
    empty = process("db", "check", "--json", env=acme.environment | {"NEXUS_DATABASE_URL": servers.database_url})
    assert empty.returncode == 1
    assert json.loads(empty.stdout)["error"]["type"] == "SchemaOutdated"
    assert "nexus db upgrade" in json.loads(empty.stdout)["error"]["remedy"]


# --- what goes wrong --------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_jobs_that_give_up_make_the_wait_3(servers: ServerAddresses) -> None:
    rows = [("mon", "user", "ann", "I live in Rome.", "2026-09-14T08:30:00Z", "1")]
    rows += [("tue", "user", "bob", "I like POISON in my tea.", "2026-09-14T08:30:00Z", "2")]
    with StandIn() as claude, sandbox(servers, **claude.environment(), NEXUS_DERIVE_MAX_WAIT="0") as made:
        claude.when("POISON", faults.refused())
        made.worker()
        options = ("--namespace", "risky", "--keep-open", "--wait")
        ran = nexus("ingest", jsonl(made.folder, rows), *options, "--json")
        assert (ran.code, ran.document["stored"], ran.document["derived"]) == (3, 2, 1)
        assert "1 job gave up" in ran.err
        [letter] = read("jobs", "list", "--status", "dead")["jobs"]
        assert "refused" in letter["error"]
        assert "Traceback" in nexus("jobs", "show", letter["id"][:8]).out
        assert nexus("ingest", jsonl(made.folder, rows), *options).code == 0  # an old letter is not this wait's
        again = read("jobs", "retry", letter["id"][:8])
        assert again["id"] == letter["id"]
        eventually(lambda: nexus("jobs", "show", again["job_id"], "--json").document.get("status") == "dead")
        assert nexus("jobs", "retry", letter["id"], "--json").document["error"]["type"] == "NotFound"
        dropped = read("jobs", "drop", again["job_id"])
        assert dropped == {"id": again["job_id"], "kind": "derive_memory", "status": "dropped"}
        refused = nexus("digest", "tue", "--namespace", "risky", "--wait", "--json")
        assert (refused.code, refused.document["error"]["type"]) == (3, "JobFailed")


def test_without_a_worker_one_is_told_and_the_time_runs_out(servers: ServerAddresses) -> None:
    with sandbox(servers) as made:
        ran = nexus("ingest", jsonl(made.folder), "--namespace", "lonely", "--wait", "--timeout", "0.2", "--json")
        assert (ran.code, ran.document["stored"], ran.document["derived"]) == (3, 5, 0)
        assert "celery -A nexus_tasks worker" in ran.err
        assert "Time is up: 5 messages are not derived" in ran.err
        late = nexus("digest", "mon", "--namespace", "lonely", "--wait", "--timeout", "0.2", "--json")
        assert (late.code, late.document["error"]["type"]) == (3, "WaitTimeout")
        found = nexus("doctor", "--canary", "--json")
        wrong = {check["name"]: check["remedy"] for check in found.document["checks"] if not check["ok"]}
        assert (found.code, set(wrong)) == (1, {"workers", "canary", "durability"})
        assert "celery -A nexus_tasks worker" in wrong["workers"]


@pytest.mark.long
def test_servers_that_are_away(acme: Sandbox) -> None:
    env = acme.environment | {
        "NEXUS_DATABASE_URL": "postgresql://me:s3cret@127.0.0.1:1/x?sslpassword=s3cret",
        "NEXUS_REDIS_URL": "redis://:s3cret@127.0.0.1:1/0",
        "NEXUS_BROKER_URL": "",  # the same Redis, also where the tests run with another broker
    }
    ran = process("search", "x", "--namespace", "acme", "--json", env=env)
    error = json.loads(ran.stdout)["error"]
    assert ran.returncode == 1
    assert "NEXUS_DATABASE_URL" in error["remedy"]
    doctor = process("doctor", "--canary", "--json", env=env)
    document = json.loads(doctor.stdout)
    assert doctor.returncode == 1
    assert {check["name"] for check in document["checks"] if not check["ok"]} == {"postgres", "redis", "broker"}
    assert "s3cret" not in doctor.stdout + doctor.stderr
    assert document["database_url"].startswith("postgresql+psycopg://me:***@127.0.0.1:1/x")


def test_a_setting_that_does_not_parse(acme: Sandbox) -> None:
    env = acme.environment | {"NEXUS_LEASE_SECONDS": "long"}
    ran = process("status", env=env)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "NEXUS_LEASE_SECONDS" in ran.stderr
    doctor = process("doctor", env=env)
    assert doctor.returncode == 1
    assert "NEXUS_LEASE_SECONDS" in doctor.stdout


def test_the_unexpected_is_one_line_and_its_traceback_is_there_to_be_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with patch("nexus_tasks.cli.memories.connect", side_effect=RuntimeError("first line\nsecond line")):
        ran = nexus("memories", "list", "--namespace", "acme")
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert "RuntimeError: first line Set NEXUS_LOG_LEVEL=DEBUG" in ran.err
        with caplog.at_level("DEBUG", "nexus_tasks.cli"):
            document = nexus("memories", "list", "--namespace", "acme", "--json").document
    assert document["error"]["type"] == "RuntimeError"
    assert "Traceback" in caplog.text


def test_a_reader_that_hangs_up_is_no_error_to_talk_about(acme: Sandbox) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = process("memories", "list", "--namespace", "acme", "--json", env=acme.environment, stdout=writing)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, "")


# --- on a terminal ----------------------------------------------------------------------------------------------------
def terminal(*arguments: str, env: Mapping[str, str], columns: int = 80) -> str:
    """What a command shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "nexus_tasks.cli.main", *arguments],
        env={**env, "TERM": "xterm-256color", "COLUMNS": str(columns)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how the end of a terminal reads
        while select.select([ours], [], [], 60)[0] and (data := os.read(ours, 65_536)):
            shown += data
    os.close(ours)
    assert child.wait(60) == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.long
def test_a_terminal_gets_lines_that_fit(acme: Sandbox) -> None:
    env = {name: value for name, value in acme.environment.items() if name != "NO_COLOR"}
    coloured = terminal("memories", "list", "--namespace", "acme", env=env)
    assert re.search(r"\x1b\[[0-9;]*36m", coloured)
    plain = terminal("jobs", "list", env=env | {"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured + plain)
    assert max(map(len, bare.splitlines())) <= 80
    assert MARKUP in " ".join(bare.split())
    assert "derive_memory" in plain


# --- the embedded stack -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="nx-"))
    try:
        yield base
        assert not processes(base)
    finally:
        for one in processes(base):
            one.kill()
        for folder in (base, base / "demo"):
            embedded.stop(folder)
        shutil.rmtree(base)


def processes(home: Path) -> list[psutil.Process]:
    """The living children of commands that use ``home`` or a home inside it."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if "nexus_tasks.cli" in " ".join(one.cmdline()):
                place = one.environ().get("NEXUS_HOME", "")
                if place and Path(place).is_relative_to(home) and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
    return found


def embedded_env(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "ANTHROPIC_", "CELERY_"))}
    return kept | {"NEXUS_HOME": str(home), "NEXUS_MODEL": "offline"} | more


@pytest.mark.long
def test_embedded_wait_brings_its_own_worker(home: Path) -> None:
    env = embedded_env(home)
    said = process("remember", "Tea is at four.", "--namespace", "notes", env=env)
    assert said.returncode == 0, said.stderr
    assert "nexus up" in said.stderr
    assert said.stderr.count("Started the embedded Redis and Postgres in ") == 1
    assert "`nexus down` stops them." in said.stderr
    assert said.stdout == "Remembered.\n"
    waited = process("ingest", jsonl(home), "--namespace", "me", "--wait", "--json", env=env)
    assert waited.returncode == 0, waited.stderr
    assert json.loads(waited.stdout)["derived"] == 5
    assert "Started the embedded" not in waited.stderr, "the servers run already"
    assert not processes(home)


def test_ctrl_c_during_a_wait_is_130_and_leaves_no_worker(home: Path) -> None:
    path = home / "open.jsonl"
    path.write_text('{"content": "To be continued."}\n')
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nexus_tasks.cli.main",
            "ingest",
            str(path),
            "--namespace",
            "me",
            "--keep-open",
            "--wait",
        ],
        env=embedded_env(home, NEXUS_DERIVE_MAX_WAIT="600"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith(b"derived"):
            break
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=90)
    assert (child.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert b"Interrupted. What is stored stays. The jobs that are left go on when a worker runs: `nexus up`." in err
    assert not processes(home)


def test_ctrl_c_while_a_file_is_read_says_that_nothing_was_stored(home: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "nexus_tasks.cli.main", "ingest", "-", "--namespace", "me", "--session", "s"],
        env=embedded_env(home),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(b'{"content": "I like tea."}\n' * 50_000)  # more than a pipe holds, so the command reads it now
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=90)[1] == b"Interrupted. Nothing was stored.\n"
    assert child.returncode == 130


def test_doctor_on_the_embedded_stack(home: Path) -> None:
    ran = process("doctor", "--json", env=embedded_env(home))
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["ok"]) == (0, True), ran.stdout
    assert set(document) == {"ok", "checks", "database_url", "redis_url", "model", "embedder", "home"}
    assert (document["model"], document["home"]) == ("offline", str(home))
    assert all(set(check) <= {"name", "ok", "found", "remedy"} for check in document["checks"])


HOSTILE = {
    "NEXUS_MODEL": "anthropic",
    "ANTHROPIC_API_KEY": "sk-ant-never-used",
    "NEXUS_ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
    "NEXUS_DATABASE_URL": "postgresql://production.invalid/db",
    "CELERY_BROKER_URL": "redis://production.invalid/0",
    "NEXUS_LEASE_SECONDS": "nonsense",
}


@pytest.mark.long
def test_demo_costs_nothing_whatever_is_exported(home: Path) -> None:
    first = process("demo", env=embedded_env(home, **HOSTILE))
    assert first.returncode == 0, first.stderr
    for said in (
        *("offline", "70 stored", "67 facts", "said by maya on", "Deploys happen on Tuesdays.", "earlier", "now"),
        *("Digest of session launch", "When do we deploy?", "score", "of 200 tokens", "70 derive_memory", "$0.00"),
    ):
        assert said in first.stdout, said
    assert max(map(len, first.stdout.splitlines())) <= 80
    assert not processes(home)
    assert embedded.running(home / "demo") is None


@pytest.mark.long  # ingesting again, without a demo: `test_ingesting_again_stores_and_queues_nothing`
def test_demo_repeats(home: Path) -> None:
    first = process("demo", env=embedded_env(home))
    assert first.returncode == 0, first.stderr
    again = process("demo", env=embedded_env(home))
    assert "0 stored, 70 were known" in again.stdout
    assert "Deploys now happen on Thursdays." in again.stdout


@pytest.mark.long
def test_demo_cleans_up_when_interrupted(home: Path) -> None:
    for sign, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        child = subprocess.Popen(
            [sys.executable, "-m", "nexus_tasks.cli.main", "demo"],
            env=embedded_env(home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert eventually(lambda: embedded.running(home / "demo"))
        time.sleep(0.2)
        child.send_signal(sign)
        _, err = child.communicate(timeout=90)
        assert (child.returncode, err) == (code, b"")
        assert embedded.running(home / "demo") is None
        assert not processes(home)
