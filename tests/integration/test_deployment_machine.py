"""Write, erase, correct, work, die, restore and copy in any order, in one deployment: a model says what must be there.

Three processes with two homes share a database and a Redis, as on two machines. Any call may be cut off at any of
its statements, commits, commands to Redis and writes of files: by the death of its process, or by a connection that
breaks before the step or after it. The model keeps what each client was told. Between the steps no read returns what
was erased, leaves out what was stored, or shows a message twice. At the end all that waits is stored and each job is
done: then every message that was said has one fact, and no table, key or file has a word that was erased.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import redis
from celery.exceptions import TaskPredicate
from sqlalchemy import make_url, text

from nexus_tasks import Message, Nexus
from nexus_tasks.deployment import Deployment, use
from nexus_tasks.errors import NexusError, NotFound
from nexus_tasks.idempotency.worker.orphans import return_orphans
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.integrations.coding_agents import hook
from nexus_tasks.services.buffer_flush import store_buffer
from tests.cutting import Cuts, Died
from tests.integration.inline import due_at_once, pending, run_claim, work
from tests.integration.test_forget import traces
from tests.integration.test_observation import SMALL
from tests.machine import RandomMachine
from tests.sandbox import Sandbox
from tests.standin import Call, StandIn
from tests.standin.answers import LINE, default_answer
from tests.transcripts.generate import Transcript

NAMESPACES = ("acme", "quay")
SESSIONS = ("chat", "notes")  # notes: observed
CLIENTS = {"one": "home", "another": "home", "two": "second home"}  # a process → the home with its session buffer
WORD = re.compile(r"w\d+x\d+zz")

T = TypeVar("T")


@dataclass
class Said:
    """A message: where it was sent, and what became of it."""

    namespace: str
    session: str
    id: str | None
    word: str
    there: bool | None = None  # whether it must be there in the end; None: it may be
    stored: bool = False  # it is in Postgres, and not only in a buffer
    homes: set[str] = field(default_factory=set)  # whose buffers may have it
    corrected: bool = False  # its fact was replaced by a correction

    @property
    def text(self) -> str:
        return f"Near the {self.word} stood a {self.word[::-1]}."


class Machine(RandomMachine):
    """Random steps, and the model of what they must have done."""

    def __init__(self, here: Sandbox, standin: StandIn, cuts: Cuts, socket: Path, seed: int) -> None:
        super().__init__(seed)
        self.here, self.standin, self.cuts, self.socket = here, standin, cuts, socket
        self.seed = seed
        self.said, self.homes = list[Said](), {name: here.folder / name for name in CLIENTS.values()}
        self.words, self.copies = 0, list[str]()
        self.agent = f"agent{seed}"  # the session of a coding agent, in each namespace
        self.transcripts = {name: Transcript(f"{name}{seed}", began=datetime.now(UTC)) for name in NAMESPACES}
        self.kept = {name: list[Said]() for name in NAMESPACES}  # what a transcript has
        self.postgres_backup: list[Said] | None = None
        self.redis_backup: dict[bytes, tuple[bytes, int]] | None = None
        self.back()
        here.flush()
        for purpose in ("derive", "reflect", "observe", "condense"):
            standin.answer(purpose, answer)
        self.made = dict[str, Deployment]()
        for home in self.homes.values():
            shutil.rmtree(home, ignore_errors=True)
        for name in CLIENTS:
            self.start(name)
        for namespace in NAMESPACES:
            self.nexus("one").create_namespace(namespace)
            self.nexus("one").forget(namespace, everything=True)

    def start(self, name: str) -> None:
        """Start a client's process, in place of the one before."""
        if name in self.made:
            self.made[name].close()
        os.environ["NEXUS_HOME"] = str(self.homes[CLIENTS[name]])
        self.made[name] = Deployment()

    def close(self) -> None:
        for deployment in self.made.values():
            deployment.close()

    def nexus(self, client: str) -> Nexus:
        return Nexus(self.made[client])

    def steps(self) -> Mapping[Callable[[], None], int]:
        return {
            self.ingest: 12,
            self.ingest_again: 3,
            self.replace: 2,
            self.read: 4,
            self.forget: 4,
            self.revise: 1,
            self.undo: 1,
            self.end_session: 1,
            self.turn: 4,
            self.transcript_is_rewritten: 1,
            self.ask_for_job: 2,
            self.work: 6,
            self.time_passes: 3,
            self.flush: 2,
            self.postgres_goes_away: 1,
            self.back: 2,
            self.ingest_in_an_outage: 2,
            self.copy: 1,
            self.redis_is_flushed: 1,
            self.back_redis_up: 1,
            self.restore_redis: 1,
            self.back_postgres_up: 1,
            self.restore_postgres: 1,
        }

    def call(self, what: str, client: str, call: Callable[[], T], *, faulty: bool = True) -> T | None:
        """The answer of a call, which may be cut off; ``None`` when it was refused or ended."""
        kind = self.luck.choice(["died", "before", "after"]) if faulty and self.luck.random() < 0.4 else ""
        step = self.luck.randint(1, self.luck.choice([5, 20, 80]))
        ended = "done"
        answer = None
        try:
            with use(self.made[client]), self.cuts.at(kind, step):
                answer = call()
        except (NexusError, TaskPredicate) as error:
            ended = type(error).__name__
            self.log.append(f"  refused: {ended}: {str(error)[:150]}")
        except Died:
            ended = "died"
            self.start(client)
        if self.cuts.where:
            self.log.append(f"  {kind} at {self.cuts.where[:150]}")
        self.happened[f"{what}: {ended}{' after ' + kind if self.cuts.where else ''}"] += 1
        return answer

    # --- outages ------------------------------------------------------------------------------------------------------
    def postgres_goes_away(self) -> None:
        self.note("away")
        self.socket.unlink(missing_ok=True)
        self.here.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        self.here.deployment.database.engine.dispose()  # the test's own connections

    def back(self) -> None:
        if not self.socket.exists():
            self.note("back")
            self.socket.symlink_to(str(make_url(self.here.database_url).query["host"]))

    def redis_is_flushed(self) -> None:
        self.note("flush redis")
        self.here.flush()

    def back_redis_up(self) -> None:
        self.note("back redis up")
        client = redis.Redis.from_url(self.here.servers.redis_url)
        keys = list(client.scan_iter(f"{self.here.name}:*", count=1_000))
        self.redis_backup = {key: (value, max(client.pttl(key), 0)) for key in keys if (value := client.dump(key))}

    def restore_redis(self) -> None:
        if self.redis_backup is None:
            return
        self.note("restore redis")
        self.here.flush()
        client = redis.Redis.from_url(self.here.servers.redis_url)
        for key, (value, milliseconds) in self.redis_backup.items():
            client.restore(key, milliseconds, value)

    def tables(self) -> Iterator[tuple[str, str]]:
        """Each table, and its columns that are no function of others."""
        yield from self.here.sql(
            "SELECT quote_ident(table_name), string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position)"
            " FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER'"
            " AND table_name <> 'alembic_version' GROUP BY table_name"
        )

    def back_postgres_up(self) -> None:
        self.note("back postgres up")
        self.here.sql("DROP SCHEMA IF EXISTS saved CASCADE")
        self.here.sql("CREATE SCHEMA saved")
        with self.here.deployment.database.transaction() as tx:
            tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            for table, columns in self.tables():
                tx.execute(text(f"CREATE TABLE saved.{table} AS SELECT {columns} FROM public.{table}"))
        self.postgres_backup = copy.deepcopy(self.said)

    def restore_postgres(self) -> None:
        """Restore as the page on operating says: with all processes stopped, and an empty Redis."""
        if self.postgres_backup is None:
            return
        self.note("restore postgres")
        self.back()
        with self.here.deployment.database.transaction() as tx:
            tx.execute(text("SET LOCAL session_replication_role = replica"))
            found = list(self.tables())
            tx.execute(text(f"TRUNCATE {', '.join(table for table, _ in found)}"))
            for table, columns in found:
                tx.execute(
                    text(
                        f"INSERT INTO public.{table} ({columns}) OVERRIDING SYSTEM VALUE"
                        f" SELECT {columns} FROM saved.{table}"
                    )
                )
        self.here.flush()
        for name in CLIENTS:
            self.start(name)
        restored = copy.deepcopy(self.postgres_backup)
        for one in restored:
            if not one.stored and one.there:
                one.there = None  # it was in a buffer, and may have been stored since
        for one in self.said[len(restored) :]:
            one.there, one.stored = None, False
        for one, now in zip(restored, self.said, strict=False):
            one.homes |= now.homes
        self.said = restored + self.said[len(restored) :]
        # The hook has noted how far it has read, so it does not read again what is lost.
        words = {one.word: one for one in restored if one.stored}
        self.kept = {name: [words[one.word] for one in kept if one.word in words] for name, kept in self.kept.items()}

    # --- calls --------------------------------------------------------------------------------------------------------
    def somewhere(self) -> tuple[str, str, str]:
        return self.luck.choice(list(CLIENTS)), self.luck.choice(NAMESPACES), self.luck.choice(SESSIONS)

    def word(self) -> str:
        self.words += 1
        return f"w{self.words}x{self.seed}zz"

    def ingest(self) -> None:
        client, namespace, session = self.somewhere()
        many = self.luck.choice([1, 1, 2, 4])
        new = [Said(namespace, session, f"m{len(self.said) + n}", self.word()) for n in range(many)]
        self.said += new
        self.tell(client, new)

    def ingest_in_an_outage(self) -> None:
        self.postgres_goes_away()
        for _ in range(self.luck.choice([1, 3])):
            self.ingest()
        self.back()

    def ingest_again(self) -> None:
        if kept := [one for one in self.said if one.there is not False and one.id]:
            self.tell(self.luck.choice(list(CLIENTS)), [self.luck.choice(kept)])

    def tell(self, client: str, told: Sequence[Said]) -> None:
        first = told[0]
        self.note("ingest", client, first.namespace, first.session, *[f"{one.id}={one.word}" for one in told])
        messages = [Message(content=one.text, author="ann", id=one.id) for one in told]
        observe = first.session == "notes" or None
        answer = self.call(
            "ingest",
            client,
            lambda: self.nexus(client).ingest(first.namespace, first.session, messages, observe=observe),
        )
        for one in told:
            if answer is None or answer.buffered:
                one.homes.add(CLIENTS[client])
            if answer is not None:
                one.there = True
                one.stored = one.stored or not answer.buffered

    def replace(self) -> None:
        """Replace a message's text. A message of which a buffer may have the old text is left alone."""
        kept = [one for one in self.said if one.there and one.stored and one.id and not one.homes]
        if not kept:
            return
        client, old = self.luck.choice(list(CLIENTS)), self.luck.choice(kept)
        new = Said(old.namespace, old.session, old.id, self.word())
        self.said.append(new)
        self.note("replace", client, old.namespace, old.session, f"{old.id}={old.word}", "by", new.word)
        message = Message(content=new.text, author="ann", id=new.id)
        done = self.call(
            "replace", client, lambda: self.nexus(client).ingest(old.namespace, old.session, [message], replace=True)
        )
        if done:
            old.there, new.there, new.stored = False, True, True
        else:
            old.there = None
            old.id = new.id = None  # which of the two is stored is not known, so neither is sent again

    def forget(self) -> None:
        client, namespace, session = self.somewhere()
        if (buffered := [one for one in self.said if one.there and one.homes]) and self.luck.random() < 0.5:
            one = self.luck.choice(buffered)
            namespace, session = one.namespace, one.session
            client = self.luck.choice([name for name, home in CLIENTS.items() if home in one.homes])
        chosen: dict[str, Any]
        match self.luck.choice(["message", "message", "session", "everything"]):
            case "message":
                known = [one for one in self.said if one.there and one.stored and one.namespace == namespace]
                if not known or not self.socket.exists():
                    return
                reached = [self.luck.choice(known)]
                found = self.here.sql("SELECT id FROM memories WHERE level = 'raw' AND content = :c", c=reached[0].text)
                assert found, f"lost: {reached[0]}"
                chosen = {"memory_id": found[0][0]}
            case "session":
                session = self.luck.choice([session, self.agent])
                reached = [one for one in self.said if (one.namespace, one.session) == (namespace, session)]
                chosen = {"session_key": session}
            case _:
                reached = [one for one in self.said if one.namespace == namespace]
                chosen = {"everything": True}
        self.note("forget", client, namespace, chosen, *[one.word for one in reached if one.there is not False])
        done = self.call("forget", client, lambda: self.nexus(client).forget(namespace, **chosen))
        for one in reached:
            if one.there is False:
                continue
            if "memory_id" not in chosen and done is not None:
                one.homes.discard(CLIENTS[client])
            one.there = False if done is not None and not one.homes else None
        for name, kept in self.kept.items():  # what may be erased does not have to be there after the next turn
            self.kept[name] = [one for one in kept if one not in reached]

    def revise(self) -> None:
        client, namespace, _ = self.somewhere()
        found = self.here.sql(
            "SELECT m.id, m.content FROM memories m JOIN namespaces n ON n.id = m.namespace_id"
            " WHERE m.level = 'explicit' AND m.valid_to IS NULL AND n.name = :n ORDER BY m.id",
            n=namespace,
        )
        if not found:
            return
        fact, content = self.luck.choice(found)
        new = Said(namespace, "corrections", None, self.word())
        self.said.append(new)
        self.note("revise", client, namespace, fact, content, "to", new.word)
        for one in self.said:
            one.corrected = one.corrected or one.word in content
        done = self.call("revise", client, lambda: self.nexus(client).revise(namespace, fact, new.text))
        if done is not None:
            new.there = new.stored = True

    def undo(self) -> None:
        client, namespace, _ = self.somewhere()
        found = self.here.sql(
            "SELECT r.id FROM reflections r JOIN namespaces n ON n.id = r.namespace_id WHERE n.name = :n ORDER BY 1",
            n=namespace,
        )
        if not found:
            return
        reflection = self.luck.choice(found)[0]
        self.note("undo", client, namespace, reflection)
        for one in self.said:  # a correction is a message, and an undone one may go
            if one.namespace == namespace and one.session == "corrections" and one.there:
                one.there = None
        self.call("undo", client, lambda: self.nexus(client).undo(namespace, reflection))

    def end_session(self) -> None:
        client, namespace, session = self.somewhere()
        self.note("end session", client, namespace, session)
        self.call("end session", client, lambda: self.nexus(client).end_session(namespace, session))

    def turn(self) -> None:
        """A turn of a coding agent, whose hook runs on the first machine."""
        client, namespace = self.luck.choice(["one", "another"]), self.luck.choice(NAMESPACES)
        transcript = self.transcripts[namespace]
        prompt, reply = (Said(namespace, self.agent, None, self.word()) for _ in range(2))
        self.said += [prompt, reply]
        self.kept[namespace] += [prompt, reply]
        self.note("turn", client, namespace, prompt.word, reply.word)
        transcript.prompt(prompt.text)
        self.tell_hook(client, namespace, "UserPromptSubmit", prompt=prompt.text)
        transcript.answer(reply.text)
        self.tell_hook(client, namespace, "Stop", last_assistant_message=reply.text)
        if self.luck.random() < 0.2:
            self.tell_hook(client, namespace, "SessionEnd", reason="exit")

    def tell_hook(self, client: str, namespace: str, event: str, **fields: str) -> None:
        """Call the hook. It ends with 0 whatever happens; an event that it was told without a cut is in the buffer."""
        path = self.here.folder / f"{namespace}.jsonl"
        self.transcripts[namespace].write(path)
        given = {"hook_event_name": event, "session_id": self.agent, "transcript_path": str(path), "cwd": "/"} | fields
        os.environ["NEXUS_HOME"] = str(self.homes[CLIENTS[client]])
        before, sys.stdin = sys.stdin, TextIOWrapper(BytesIO(json.dumps(given).encode()))
        try:
            self.call("hook", client, lambda: hook.main(["--namespace", namespace]))
        finally:
            sys.stdin = before
        for one in self.kept[namespace]:
            if one.there is not False and not one.stored:
                one.homes.add(CLIENTS[client])
                if not self.cuts.where:
                    one.there = True

    def transcript_is_rewritten(self) -> None:
        """A compaction leaves the last lines. What a buffer still has to read in the file stays."""
        namespace = self.luck.choice(NAMESPACES)
        kept = self.kept[namespace]
        if len(kept) < 4 or any(one.homes for one in kept):
            return
        self.note("rewrite transcript", namespace)
        transcript = self.transcripts[namespace]
        lines, many = transcript.lines, self.luck.choice([2, 4])
        transcript.name += "'"  # the lines to come get other ids
        transcript.lines = [line for line in lines if any(one.word in line for one in kept[-many:])]
        self.kept[namespace] = kept[-many:]

    def ask_for_job(self) -> None:
        client, namespace, session = self.somewhere()
        nexus = self.nexus(client)
        what, ask = self.luck.choice(
            [
                ("digest", lambda: nexus.digest(namespace, session, rebuild=True)),
                ("extract", lambda: nexus.extract(namespace, session)),
                ("dream", lambda: nexus.dream(namespace)),
            ]
        )
        self.note(what, client, namespace, session)
        self.call(what, client, ask)

    def read(self) -> None:
        client, namespace, session = self.somewhere()
        session = self.luck.choice([session, self.agent])
        self.note("read", client, namespace, session)
        told = self.call("read", client, lambda: self.nexus(client).session(namespace, session), faulty=False)
        if told is not None:
            self.compare(namespace, session, [one.content for one in told.said], in_the_end=False)
        found = self.call(
            "context", client, lambda: self.nexus(client).context(namespace, session_key=session), faulty=False
        )
        if found is not None:
            self.nothing_erased(found.text)

    def compare(self, namespace: str, session: str, texts: Sequence[str], *, in_the_end: bool) -> None:
        said = [one for one in self.said if (one.namespace, one.session) == (namespace, session)]
        assert len(texts) == len(set(texts)), f"doubled: {texts}"
        self.nothing_erased("\n".join(texts))
        lost = {one.text for one in said if one.there and (in_the_end or one.stored)} - set(texts)
        assert not lost, f"lost: {lost}"

    def nothing_erased(self, shown: str) -> None:
        words = set(WORD.findall(shown))
        erased = [one for one in self.said if one.there is False and one.word in words]
        assert not erased, f"erased: {erased}"

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def work(self) -> None:
        """Run some of the jobs that wait."""
        client = self.luck.choice(list(CLIENTS))
        self.note("work", client)
        for _ in range(self.luck.choice([1, 3, 10])):
            with use(self.made[client]):
                waiting = pending()
            if waiting:
                claim = self.luck.choice(waiting)
                self.log.append(f"  {claim.kind} {claim.scope}")
                self.call("work", client, lambda claim=claim: run_claim(claim))  # type: ignore[misc]

    def time_passes(self) -> None:
        """Let leases and waits end, and do what the sweep and reconcile do then."""
        client = self.luck.choice(list(CLIENTS))
        self.note("time passes", client)
        due = self.waits_end()
        self.call("time passes", client, lambda: self.sweep(client, due))

    def waits_end(self) -> int:
        """Let all leases and waits be over. Returns how many jobs wait for a time."""
        index = f"{self.here.name}:leases"
        if running := self.here.redis().zrange(index, 0, -1):
            self.here.redis().zadd(index, {str(claim): 0 for claim in running}, xx=True)
        return due_at_once(self.here)

    def sweep(self, client: str, due: int) -> None:
        engine = self.made[client].engine
        return_orphans(engine, due_in=0.0, seconds=2.0)
        if due:
            engine.claims.sweep_due(due)
        Reconciler(engine).round()

    # --- what an operator does ----------------------------------------------------------------------------------------
    def flush(self) -> None:
        client = self.luck.choice(list(CLIENTS))
        self.note("flush", client)
        self.store(client)

    def store(self, client: str, *, faulty: bool = True) -> None:
        buffer = self.made[client].buffer
        done = self.call("flush", client, lambda: store_buffer(self.made[client], wait=True), faulty=faulty)
        if done is not None and not buffer.pending():
            for one in self.said:
                if CLIENTS[client] in one.homes:
                    one.homes.discard(CLIENTS[client])
                    one.stored = one.stored or one.there is True

    def copy(self) -> None:
        """Export a namespace, and import it under another name, where it is the same."""
        client, namespace, _ = self.somewhere()
        name = f"copy{self.happened['copy']}"
        self.note("copy", client, namespace, name)
        exported = StringIO()
        if self.call("export", client, lambda: self.nexus(client).export(namespace, exported)) is None:
            return
        imported = self.call("import", client, lambda: self.nexus(client).import_(name, StringIO(exported.getvalue())))
        if imported is not None:
            nexus = self.nexus(client)
            with suppress(NexusError):
                sessions = [one.session_key for one in nexus.sessions(name)]
                for session in sessions:
                    self.compare(
                        namespace, session, [one.content for one in nexus.session(name, session).said], in_the_end=False
                    )
        self.copies.append(name)

    # --- the end ------------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Let all outages end, store and do what waits, and compare everything with the model."""
        self.note("settle")
        self.back()
        for client in CLIENTS:
            self.start(client)
        for name in self.copies:
            with suppress(NotFound):
                self.nexus("one").forget(name, everything=True)
        for client in CLIENTS:
            self.store(client, faulty=False)
            buffer = self.made[client].buffer
            assert not buffer.pending()
            refused = buffer.quarantined()
            assert not refused, refused
        self.idle()
        for client in CLIENTS:
            for namespace in NAMESPACES:
                for session in (*SESSIONS, self.agent, "corrections"):
                    found = list[str]()
                    with suppress(NotFound):
                        found = [one.content for one in self.nexus(client).session(namespace, session).said]
                    self.compare(namespace, session, found, in_the_end=True)
        self.facts_are_right()
        for one in self.said:
            if one.there is False:
                # Autovacuum may renew the statistics before a message is replaced, which does not renew them.
                left = [trace for trace in traces(self.here, one.word) if not trace.startswith("statistics: ")]
                assert not left, (one, left)
        erased = {one.word for one in self.said if one.there is False}
        for home in self.homes.values():
            for file in home.rglob("*"):
                if file.is_file():
                    assert not erased & set(WORD.findall(file.read_text(errors="replace"))), file

    def idle(self) -> None:
        with use(self.made["one"]):
            for _ in range(40):
                work()
                self.sweep("one", self.waits_end())
                if self.here.sql("SELECT 1 FROM dead_letters WHERE resolved_at IS NULL"):
                    self.nexus("one").retry_jobs()
                elif not pending() and not self.waiting():
                    return
            raise AssertionError(f"These never end: {[(one.kind, one.wait_reason) for one in self.waiting()]}")

    def waiting(self) -> list[Any]:
        return self.made["one"].claims.waiting()

    def facts_are_right(self) -> None:
        """Each message has one fact, and each fact has a message."""
        for namespace in NAMESPACES:
            facts = self.nexus("one").memories(namespace, levels=["explicit"], limit=1_000)
            contents = [fact.content for fact in facts]
            assert len(contents) == len(set(contents)), f"doubled: {contents}"
            told = Counter(word for content in contents for word in WORD.findall(content))
            for one in self.said:
                if one.namespace == namespace and one.there and one.session in SESSIONS and not one.corrected:
                    assert told[one.word] == 1, f"{told[one.word]} facts of {one}"
        left = self.here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'")
        assert left == [(0,)]


def answer(call: Call) -> Any:
    """Facts, insights and notes that say the words of what they rest on."""
    if call.purpose == "derive":
        return default_answer(call)
    lines = list(LINE.finditer("\n".join(call.parts)))[-2:]
    told = " and ".join(dict.fromkeys(word for line in lines for word in WORD.findall(line["text"])))
    sources = [int(line["id"]) for line in lines]
    if call.purpose == "reflect":
        insight = {"content": f"Ann thinks of {told}.", "support": sources, "rationale": told}
        return {"relations": [], "insights": [insight] if len(sources) == 2 and told else []}
    notes = [{"time": None, "priority": "high", "content": f"Ann saw {told}.", "sources": sources}] if told else []
    task = {"current_task": f"Find {told}.", "suggested_response": None}
    return {
        "days" if call.purpose == "observe" else "condensed": [{"date": "2026-01-01", "notes": notes}] if notes else [],
        **task,
    }


@pytest.fixture
def run(
    claude: Callable[..., Sandbox], standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int, int], None]]:
    """A function that makes random steps of a seed."""
    here = claude(**SMALL)
    monkeypatch.setattr(hook, "_store_in_background", lambda: None)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    socket = tmp_path / "postgres"
    url = make_url(here.database_url)
    os.environ["NEXUS_DATABASE_URL"] = url.set(query={"host": str(socket)}).render_as_string(hide_password=False)
    happened = Counter[str]()
    with psycopg.connect(host=url.query["host"], user=url.username, dbname="postgres", autocommit=True) as admin:  # type: ignore[arg-type]
        execute = psycopg.Cursor.execute

        def end_backend(pid: int) -> None:
            execute(admin.cursor(), "SELECT pg_terminate_backend(%s, 5000)", [pid])

        cuts = Cuts(monkeypatch, end_backend)

        def steps(seed: int, many: int) -> None:
            machine = Machine(here, standin, cuts, socket, seed)
            try:
                machine.run(many)
            finally:
                happened.update(machine.happened)

        yield steps
    print(dict(sorted(happened.items())))
    here.sql("DROP SCHEMA IF EXISTS saved CASCADE")


def test_nothing_is_lost_and_nothing_comes_back(run: Callable[[int, int], None]) -> None:
    for seed in range(2):
        run(seed, 30)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_nothing_comes_back_for_long(run: Callable[[int, int], None]) -> None:
    for seed in range(100, 120):
        run(seed, 60)
