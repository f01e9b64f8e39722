"""Erasure: what falls with a memory and what stands, also while jobs run; and that no trace is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from sqlalchemy import select, text

from nexus_tasks import Nexus, embedded
from nexus_tasks.cognition import derive as deriving
from nexus_tasks.cognition import erasure as forgetting
from nexus_tasks.errors import InvalidInput, NotFound, StorageUnavailable
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.services import erasure
from nexus_tasks.storage import observations as logs
from nexus_tasks.storage.engine import _SETTINGS, Database
from nexus_tasks.storage.erasure import context, targets, vacuum
from nexus_tasks.storage.erasure.vacuum import WORDLESS, rewrite_tables
from nexus_tasks.storage.models import Base, SessionRow
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks import ticks
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import JobOutcome
from tests import commandline
from tests.integration.inline import (
    NAMESPACE,
    dump,
    facts,
    observations,
    pending,
    say,
    statements,
    time_passes,
    waiting,
    work,
)
from tests.integration.jobkinds import BODIES, play_kept
from tests.integration.jobkinds import work as work_kinds
from tests.integration.reflecting import again, insight, judge, know, made, read, relation
from tests.integration.reflecting import run as run_reflection
from tests.sandbox import Sandbox, engine, eventually
from tests.standin import Call, StandIn, faults

SECRET = "zanzibarium"  # a word that nothing else says
TALK = (
    {"content": "I drink green tea every morning.", "author": "ann", "id": "m1"},
    {"content": f"My code name is {SECRET}.", "author": "ann", "id": f"ext-{SECRET}"},
    {"content": "My sister Eva lives in Porto.", "author": "ann", "id": "m3"},
)


def contents() -> set[str]:
    return {one.content for one in Nexus().memories(NAMESPACE, limit=1_000)}


def traces(here: Sandbox, word: str = SECRET) -> list[str]:
    """Where ``word`` is still found: rows of any table, statistics, keys and values of Redis."""
    found = [f"{table}: {row}" for table, rows in dump(here).items() for row in rows if word in row.casefold()]
    statistics = "SELECT tablename || '.' || attname FROM pg_stats WHERE schemaname = 'public' AND "
    about = "concat(most_common_vals, histogram_bounds, most_common_elems)"
    found += [f"statistics: {row}" for (row,) in here.sql(f"{statistics} {about} ILIKE :w", w=f"%{word}%")]
    client = here.redis()
    keys = sorted(set(client.scan_iter(f"{here.name}:*", count=1_000)))
    asking, reading = client.pipeline(transaction=False), client.pipeline(transaction=False)
    for key in keys:
        asking.type(key)
    for key, kind in zip(keys, asking.execute(), strict=True):
        read = {"string": reading.get, "hash": reading.hgetall, "set": reading.smembers, "none": reading.get}
        if kind in read:
            read[kind](key)
        else:
            (reading.lrange if kind == "list" else reading.zrange)(key, 0, -1)
    values = zip(keys, reading.execute(raise_on_error=False), strict=True)  # a key may expire, and be of another type
    return found + [f"redis: {key}" for key, value in values if word in f"{key} {value}".casefold()]


def test_nothing_is_left_of_an_erased_message_and_the_rest_stands(here: Sandbox) -> None:
    _, target, _ = say(*TALK, end=True)
    work()
    here.sql("ANALYZE")
    before = {fact.content: fact.id for fact in facts() if SECRET not in fact.content.casefold()}
    assert any(SECRET in one.casefold() for one in contents())
    assert traces(here)
    receipt = Nexus().forget(NAMESPACE, memory_id=target)
    assert target in receipt.ids
    assert receipt.deleted["memories"] == len(receipt.ids)
    assert len(receipt.requeued) == 1  # the digest
    assert traces(here) == []
    assert here.sql("SELECT held FROM perspectives WHERE held IS NOT NULL") == [], "nothing waits for a person"
    assert Nexus().status(NAMESPACE).namespaces[0].reviews == ()
    assert {fact.content: fact.id for fact in facts()} == before
    done = work()
    assert [(one["kind"], one["status"]) for one in done] == [("digest_session", "completed")]
    assert traces(here) == []
    digest = Nexus().session(NAMESPACE, "chat").digests["summary_long"].content
    assert "green tea" in digest
    with pytest.raises(NotFound):
        Nexus().memory(NAMESPACE, target)
    with pytest.raises(NotFound):
        Nexus().forget(NAMESPACE, memory_id=target)


def test_a_flushed_redis_does_not_forget_what_is_to_be_made_anew(here: Sandbox) -> None:
    _, target, _ = say(*TALK, end=True)
    work()
    Nexus().forget(NAMESPACE, memory_id=target)
    here.flush()
    Reconciler(engine).round()
    assert [(one["kind"], one["status"]) for one in work()] == [("digest_session", "completed")]


def test_every_table_is_erased_from_or_holds_no_words() -> None:
    tables = {table.name for table in Base.metadata.sorted_tables}
    erased = {
        "memories",
        "evidence",
        "embeddings",
        "session_digests",
        "derivations",
        "digest_requests",
        "sessions",
        "saved_answers",
        "open_questions",
        "batch_requests",
        "dead_letters",
        "job_runs",
        "wanted_jobs",
        "perspectives",
        "reflection_changes",
        "observation_logs",
        "observation_chunks",
        "observation_reflections",
        "observation_generations",
        "extractions",
        "topics",
        "topic_sources",
        "webhook_deliveries",
    }
    assert tables == erased | WORDLESS


def test_the_statistics_of_an_emptied_table_go_too(here: Sandbox) -> None:
    """ANALYZE leaves the statistics of a table without rows as they are."""
    say(*({"content": f"{SECRET} {n} is mine", "author": SECRET} for n in range(40)), session=SECRET)
    here.sql("ANALYZE")
    assert traces(here)
    Nexus().forget(NAMESPACE, everything=True)
    for key in here.redis().scan_iter(f"{here.name}:celery:*"):
        here.redis().delete(key)
    assert traces(here) == []


def test_a_session_is_erased_with_its_name(here: Sandbox) -> None:
    say(*TALK, session=f"chat-{SECRET}", end=True)
    say("I moved to Lisbon in March.", session="other", end=True)
    work()
    receipt = Nexus().forget(NAMESPACE, session_key=f"chat-{SECRET}")
    assert receipt.requeued == ()
    for key in here.redis().scan_iter(f"{here.name}:celery:*"):  # messages on their way name their sessions
        here.redis().delete(key)
    assert traces(here) == []
    assert [one.session_key for one in Nexus().sessions(NAMESPACE)] == ["other"]
    assert any("Lisbon" in fact.content for fact in facts())
    with pytest.raises(NotFound):
        Nexus().forget(NAMESPACE, session_key=f"chat-{SECRET}")


@pytest.mark.parametrize("kind", ["digest_session", "extract_session", "observe_session"])
def test_the_dead_letters_of_an_erased_session_go_with_it(here: Sandbox, kind: str) -> None:
    """They name the session, and their errors may quote it. Those of another session stay."""
    for key in ("chat", "other"):
        say("I like tea.", session=key)
        here.sql(
            "INSERT INTO dead_letters"
            " (job_id, namespace_id, kind, scope, args, error_type, message, traceback, errors, crashes)"
            " SELECT :key, id, :kind, '{}', jsonb_build_object('namespace', name, 'session_key', CAST(:key AS text)),"
            " 'ValueError', 'x', 'x', 1, 0 FROM namespaces",
            key=key,
            kind=kind,
        )
    assert Nexus().forget(NAMESPACE, session_key="chat").deleted["dead_letters"] == 1
    assert here.sql("SELECT job_id FROM dead_letters") == [("other",)]


def test_the_letters_of_other_jobs_stay_and_lose_what_they_may_quote(here: Sandbox) -> None:
    """Their rows are dead, so without its letter such a job could never be retried."""
    first, target = say("I like tea.", f"My code name is {SECRET}.", end=True)
    say("I like rum.", session="other", end=True)
    work()
    letters: dict[str, tuple[str, dict[str, Any]]] = {
        "extraction": ("extract_session", {"session_key": "chat"}),
        "notes": ("reflect_observations", {"session_key": "chat"}),
        "sibling": ("derive_memory", {"memory_id": first, "observer": "assistant"}),
        "vectors": ("embed_memories", {}),
        "own": ("derive_memory", {"memory_id": target, "observer": "assistant"}),
        "elsewhere": ("extract_session", {"session_key": "other"}),
    }
    for job_id, (kind, args) in letters.items():
        here.sql(
            "INSERT INTO dead_letters"
            " (job_id, namespace_id, kind, scope, args, error_type, message, traceback, errors, crashes)"
            " SELECT :job_id, id, :kind, '{}', CAST(:args AS jsonb), 'ValueError', 'quoted', 'quoted', 1, 0"
            " FROM namespaces",
            job_id=job_id,
            kind=kind,
            args=json.dumps({"namespace": NAMESPACE, **args}),
        )
    Nexus().forget(NAMESPACE, memory_id=target)
    left = here.sql("SELECT job_id, message = 'quoted', traceback = 'quoted' FROM dead_letters")
    assert {job_id: quoted for job_id, *quoted in left} == {
        "extraction": [False, False],
        "notes": [False, False],
        "sibling": [False, False],
        "vectors": [False, False],
        "elsewhere": [True, True],
    }
    Nexus().forget(NAMESPACE, session_key="chat")
    assert sorted(here.sql("SELECT job_id FROM dead_letters")) == [("elsewhere",), ("vectors",)]


def test_a_session_with_more_messages_than_a_statement_has_parameters_is_erased(here: Sandbox) -> None:
    say("said 1", observers=[])
    here.sql(
        "INSERT INTO memories (namespace_id, session_id, level, content, tokens, occurred_at, seq, role, author)"
        " SELECT namespace_id, id, 'raw', 'said ' || n, 2, now(), n, 'user', 'ann'"
        " FROM sessions, generate_series(2, 33000) AS n"
    )
    assert Nexus().forget(NAMESPACE, session_key="chat").deleted["memories"] == 33_000
    assert here.sql("SELECT count(*) FROM postings") == [(0,)]


def test_jobs_and_erasures_lock_in_one_order(here: Sandbox) -> None:
    """Session, messages, perspectives, facts. Otherwise an erasure and a derivation meet deadlocks."""

    def order(made: list[str], **marks: str) -> list[str]:
        told = [" ".join(one.split()) for one in made]
        first = {name: next(i for i, one in enumerate(told) if mark in one) for name, mark in marks.items()}
        return sorted(first, key=first.__getitem__)

    session, perspectives = "FROM sessions WHERE", "FROM perspectives WHERE"
    say("I moved to Lisbon.", "I drink green tea.")
    with statements(here) as made:
        work("derive_memory")
    made = [one for one in made if "saved_answers" not in one]  # a transaction of its own
    locks = [one for one in made if "FOR " in one or "INSERT INTO memories" in one]
    assert order(
        locks,
        session=session,
        messages="SELECT id FROM memories WHERE id",
        perspectives=perspectives,
        facts="INSERT INTO memories",
    ) == ["session", "messages", "perspectives", "facts"]
    ids = [one.id for one in Nexus().session(NAMESPACE, "chat").said]

    def forget() -> None:
        Nexus().forget(NAMESPACE, memory_id=ids[0])

    def replace() -> None:
        both = [{"author": "ann", "content": f"I moved to {place}.", "id": place} for place in ("Porto", "Faro")]
        Nexus().ingest(NAMESPACE, "other", both)
        work("derive_memory")
        changed = [{**one, "content": "I moved again."} for one in both]
        made.clear()
        Nexus().ingest(NAMESPACE, "other", changed, replace=True)

    for erase in (forget, replace):
        with statements(here) as made:
            erase()
        locks = [one for one in made if "FOR " in one and "FOR KEY SHARE" not in one]
        assert order(
            locks, session=session, messages="FROM memories WHERE", perspectives=perspectives, facts="OF memories"
        ) == ["session", "messages", "perspectives", "facts"]


def test_the_erasure_of_a_namespace_looks_through_no_postings_of_others(here: Sandbox) -> None:
    say("I like tea.")
    with statements(here) as made:
        Nexus().forget(NAMESPACE, everything=True)
    assert not [one for one in made if "DELETE FROM postings" in one]
    assert here.sql("SELECT count(*) FROM postings") == [(0,)]


def test_the_notes_of_an_erased_session_are_looked_at_once(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked = logs.erase_covering, list[int]()

    def counted(tx: Any, session: SessionRow, seq: int) -> dict[str, int]:
        looked.append(seq)
        return real(tx, session, seq)

    monkeypatch.setattr(logs, "erase_covering", counted)
    say(*(f"Line {n}." for n in range(20)))
    Nexus().forget(NAMESPACE, session_key="chat")
    assert looked == [1]
    assert here.sql("SELECT count(*) FROM memories") == [(0,)]


@pytest.mark.usefixtures("here")
def test_a_session_is_erased_before_it_was_derived_and_its_jobs_go_with_it() -> None:
    say(*TALK, session="one")
    assert [*pending(), *waiting()]
    Nexus().forget(NAMESPACE, session_key="one")
    assert [*pending(), *waiting()] == []
    assert contents() == set()


def test_everything_is_erased_but_the_name_the_settings_and_the_bill(claude: Any, standin: StandIn) -> None:
    here = claude()
    standin.answer("derive", lambda _: observations((f"Ann is {SECRET}", [1])))
    Nexus().create_namespace(NAMESPACE, budget_usd_per_day=5)
    say(*TALK, end=True)
    work("derive_memory")
    spent = Nexus().status(NAMESPACE).namespaces[0].spend_today_usd
    assert spent > 0
    assert [*pending(), *waiting()]
    receipt = Nexus().forget(NAMESPACE, everything=True)
    assert receipt.deleted["sessions"] == 1
    assert traces(here) == []
    assert [*pending(), *waiting()] == []
    after = Nexus().status(NAMESPACE).namespaces[0]
    assert after.spend_today_usd == spent
    assert set(after.memories.values()) == {0}
    assert Nexus().namespace(NAMESPACE).budget_usd_per_day == 5
    assert Nexus().forget(NAMESPACE, everything=True).deleted == {}


# --- what falls, and what stands --------------------------------------------------------------------------------------
def test_a_fact_that_others_said_too_stays_without_the_evidence(claude: Any, standin: StandIn) -> None:
    claude()
    first, second = say({"content": "Tea for me.", "author": "ann"}, {"content": "Ann likes tea.", "author": "bob"})
    standin.answer("derive", lambda _: observations(("Ann likes tea", [first, second])))
    work("derive_memory")
    [fact] = facts()
    Nexus().forget(NAMESPACE, memory_id=first)
    [left] = facts()
    assert (left.id, left.content) == (fact.id, "Ann likes tea")
    assert [edge.id for edge in Nexus().memory(NAMESPACE, fact.id).evidence] == [second]
    assert pending() == []


def test_a_fact_that_stays_is_dated_placed_and_counted_by_what_it_has_left(claude: Any, standin: StandIn) -> None:
    claude()
    for day, session in ((1, "first"), (5, "second")):
        said = {"content": "Tea for me.", "author": "ann", "occurred_at": datetime(2026, 1, day, tzinfo=UTC)}
        [source] = say(said, session=session)
        standin.answer("derive", lambda _, source=source: observations(("Ann likes tea", [source])))
        work("derive_memory")
    [fact] = facts()
    first, second = (edge.id for edge in Nexus().memory(NAMESPACE, fact.id).evidence)
    told = ("session_key", "occurred_at", "valid_from", "times_reinforced")
    january = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 5)]
    assert [getattr(fact, name) for name in told] == ["first", january[0], january[0], 1]
    Nexus().forget(NAMESPACE, memory_id=first)
    [left] = facts()
    assert (left.id, *(getattr(left, name) for name in told)) == (fact.id, "second", january[1], january[1], 0)
    assert [edge.id for edge in Nexus().memory(NAMESPACE, fact.id).evidence] == [second]


def test_a_fact_worded_by_what_is_erased_is_derived_anew_from_the_rest(claude: Any, standin: StandIn) -> None:
    here = claude()
    first, second = say(f"I like {SECRET} tea.", "Tea, again.")
    standin.answer("derive", lambda _: observations((f"Ann likes {SECRET} tea", [first, second])))
    work("derive_memory")
    standin.answer("derive", lambda _: observations(("Ann likes tea", [second])))
    receipt = Nexus().forget(NAMESPACE, memory_id=first)
    assert len(receipt.requeued) == 1
    assert facts() == []
    work("derive_memory")
    assert [fact.content for fact in facts()] == ["Ann likes tea"]
    assert traces(here) == []


def test_a_fact_with_words_of_an_erased_message_that_it_does_not_cite_is_derived_anew(
    claude: Any, standin: StandIn
) -> None:
    """The model saw the message for context, and wrote a name of it in place of "he"."""
    here = claude()

    def told(call: Call) -> dict[str, Any]:
        who = f"Dr. {SECRET.title()}" if SECRET in call.text.casefold() else "A doctor"
        ids = {text: int(i) for i, text in re.findall(r"^\[(\d+)\] \S+ ann: (.*)$", call.text, re.M)}
        return observations(*((f"{who} wants Ann to {what}", [i]) for said, what in DOCTOR if (i := ids.get(said))))

    standin.answer("derive", told)
    target = say(f"I see Dr. {SECRET.title()}.")[0]
    work("derive_memory")
    say(*(said for said, _ in DOCTOR))
    work("derive_memory")
    smoke, walk = facts()
    assert SECRET in smoke.content.casefold()
    corrected = Nexus().revise(NAMESPACE, walk.id, "I walk already.", author="ann")
    receipt = Nexus().forget(NAMESPACE, memory_id=target)
    assert {smoke.id, walk.id} <= set(receipt.ids)
    assert traces(here) == []
    work("derive_memory")
    assert [fact.content for fact in facts()] == [corrected.content, "A doctor wants Ann to stop smoking"]
    assert traces(here) == []


@pytest.mark.parametrize("cites_it", [True, False])
@pytest.mark.parametrize(
    ("erased", "left", "name", "likes"),
    [
        pytest.param("Вчера я видел Ивана.", "Он любит кофе.", "Иван", " любит кофе", id="Russian"),
        pytest.param("Вчера я встретил Олю.", "Она любит кофе.", "Оля", " любит кофе", id="Russian, a short name"),
        pytest.param("J'ai vu la maison d'Ugo.", "Il aime le café.", "Ugo", " aime le café", id="French"),
        pytest.param("Spotkałem Adama.", "On lubi kawę.", "Adam", " lubi kawę", id="Polish"),
        pytest.param("Dün Mehmet'le tanıştım.", "Kahve seviyor.", "Mehmet", " kahve seviyor", id="Turkish"),
        pytest.param("저는 김철수입니다.", "그는 커피를 좋아해요.", "김철수", "는 커피를 좋아한다", id="Korean"),
        pytest.param("נתתי ליוסף ספר.", "הוא אוהב קפה.", "יוסף", " אוהב קפה", id="Hebrew"),
        pytest.param("ฉันชื่อสมชายครับ", "เขาชอบกาแฟ", "สมชาย", "ชอบกาแฟ", id="Thai"),
        pytest.param("我叫王明。", "他明天去见国王，喜欢咖啡。", "王明", "喜欢咖啡", id="Chinese"),
        pytest.param("タナカに会った。", "彼はカタログとバナナが好き。", "タナカ", "はバナナが好き", id="Japanese"),
    ],
)
def test_a_fact_with_a_word_of_an_erased_message_in_another_form_goes(
    claude: Any, standin: StandIn, erased: str, left: str, name: str, likes: str, cites_it: bool
) -> None:
    claude()
    first, second = say(erased, left)
    standin.answer("derive", lambda _: observations((name + likes, [first, second][not cites_it :])))
    work("derive_memory")
    assert [fact.content for fact in facts()] == [name + likes]
    assert len(Nexus().forget(NAMESPACE, memory_id=first).requeued) == 1
    assert facts() == []


def test_a_fact_goes_whose_name_is_at_the_end_of_a_long_erased_message(claude: Any, standin: StandIn) -> None:
    """A prompt shows the beginning and the end of a long message. An erasure read the first 10,000 characters."""
    claude()
    name = SECRET.title()
    target, kept = say(f"{'It was windy. ' * 1_000} I see Dr. {name}.", "He wants me to walk.")

    def told(call: Call) -> dict[str, Any]:
        return observations((f"{f'Dr. {name}' if name in call.text else 'A doctor'} wants Ann to walk", [kept]))

    standin.answer("derive", told)
    work("derive_memory")
    assert name in str(facts())
    Nexus().forget(NAMESPACE, memory_id=target)
    assert name not in str(facts())


@pytest.mark.parametrize("purpose", ["derive", "facts"])
def test_a_fact_goes_although_a_long_chat_is_between_its_message_and_the_erased_one(
    claude: Any, standin: StandIn, purpose: str
) -> None:
    """One prompt shows hundreds of short messages."""
    here = claude()

    def told(call: Call) -> dict[str, Any]:
        who = f"Dr. {SECRET.title()}" if SECRET in call.text.casefold() else "A doctor"
        ids = [int(i) for i in re.findall(r"^\[(\d+)\] \S+ ann: He wants me to walk", call.text, re.M)]
        if call.purpose != purpose or not ids:
            return {"facts" if call.purpose == "facts" else "observations": []}
        if purpose == "derive":
            return observations((f"{who} wants Ann to walk", ids))
        fact = {"category": "preference", "confidence": 9, "content": f"{who} wants Ann to walk", "sources": ids}
        return {"facts": [fact]}

    standin.answer("derive", told)
    standin.answer("facts", told)
    target, *_ = say(f"I see Dr. {SECRET.title()}.", *(f"{n} yes ok" for n in range(150)), "He wants me to walk.")
    Nexus().extract(NAMESPACE, "chat")
    work()
    time_passes(here)
    work()
    assert SECRET in str(facts()).casefold()
    Nexus().forget(NAMESPACE, memory_id=target)
    assert SECRET not in str(facts()).casefold()
    assert traces(here) == []


def test_an_insight_with_words_of_an_erased_fact_on_which_it_does_not_rest_goes(claude: Any, standin: StandIn) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    drinks = ("tea", "coffee", "water", "milk", SECRET)
    tea, coffee, water, milk, secret = know(*(f"I drink {what}." for what in drinks))
    all_of_it = insight([tea, coffee, water], f"Ann drinks all, even {SECRET}.")
    judge(standin, insights=[all_of_it, insight([tea, coffee, milk], "Ann drinks tea, coffee and milk.")])
    run_reflection()
    assert len(made(here, "derived")) == 2
    [said] = Nexus().memory(NAMESPACE, secret).evidence
    Nexus().forget(NAMESPACE, memory_id=said.id)
    assert [content for content, *_ in made(here, "derived")] == ["Ann drinks tea, coffee and milk."]
    assert traces(here) == []


DOCTOR = (("He wants me to stop smoking.", "stop smoking"), ("He wants me to walk.", "walk"))


def test_a_fact_that_stays_loses_labels_and_a_time_that_only_the_erased_message_told(
    claude: Any, standin: StandIn
) -> None:
    here = claude()
    left, target = say("I am afraid of the surgery.", f"It is my {SECRET} surgery, on 3 May 2026.")
    told = {"content": "Ann is afraid of a surgery", "sources": [left, target], "labels": ["health", "surgery", SECRET]}
    standin.answer("derive", lambda _: observations(told | {"occurred_at": "2026-05-03"}))
    work("derive_memory")
    [fact] = facts()
    assert (SECRET in fact.labels, fact.event) == (True, "2026-05-03")
    Nexus().forget(NAMESPACE, memory_id=target)
    assert [(one.id, one.labels, one.event) for one in facts()] == [(fact.id, ("health", "surgery"), None)]
    assert traces(here) == []


def test_a_correction_loses_labels_that_only_the_erased_message_told(claude: Any, standin: StandIn) -> None:
    here = claude()
    [said] = say(f"I have a {SECRET} surgery.")
    told = {"content": "Ann has a surgery", "sources": [said], "labels": ["health", SECRET]}
    standin.answer("derive", lambda _: observations(told))
    work("derive_memory")
    [fact] = facts()
    Nexus().revise(NAMESPACE, fact.id, "I have no surgery.")
    Nexus().forget(NAMESPACE, memory_id=said)
    assert [(one.content, one.labels) for one in facts()] == [("I have no surgery.", ("health",))]
    assert traces(here) == []


def test_a_fact_with_a_label_that_an_erased_message_near_it_has_stays_without_the_label(
    claude: Any, standin: StandIn
) -> None:
    """Before, the fact was deleted and derived again: it lost its pin, and what had superseded it."""
    claude()
    said, target = say("I eat no peanuts.", "My health is good.")
    told = {"content": "Ann eats no peanuts", "sources": [said], "labels": ["food", "health"]}
    standin.answer("derive", lambda _: observations(told))
    work("derive_memory")
    [fact] = facts()
    Nexus().pin(NAMESPACE, fact.id)
    assert Nexus().forget(NAMESPACE, memory_id=target).ids == (target,)
    assert [(one.id, one.labels, one.pinned) for one in facts()] == [(fact.id, ("food",), True)]
    assert pending() == []


def test_the_erasure_of_a_correction_leaves_other_corrections(claude: Any, standin: StandIn) -> None:
    """A correction has the labels of what it corrects. With one of them it was deleted, and the old fact held again."""
    claude()
    lives, works = say("I live in Lisbon.", "I work at Acme.")
    standin.answer(
        "derive",
        lambda _: observations(
            {"content": "Ann lives in Lisbon", "sources": [lives], "labels": ["home"]}, ("Ann works at Acme", [works])
        ),
    )
    work("derive_memory")
    lisbon, acme = facts()
    porto = Nexus().revise(NAMESPACE, lisbon.id, "I live in Porto.", author="ann")
    other = Nexus().revise(NAMESPACE, acme.id, "I work from home.", author="ann")
    source = next(one for one in Nexus().memory(NAMESPACE, other.id).evidence if one.role == "derived_from")
    Nexus().forget(NAMESPACE, memory_id=source.id)
    assert [one.id for one in facts()] == [acme.id, porto.id]


def test_what_was_corrected_is_not_derived_again(claude: Any, standin: StandIn) -> None:
    """The model now words it in another way, so that nothing knows the corrected fact."""
    claude()
    target, said = say(f"I see Dr. {SECRET.title()}.", "He wants me to walk.")
    standin.answer("derive", lambda _: observations((f"Dr. {SECRET} wants Ann to walk", [target, said])))
    work("derive_memory")
    [fact] = facts()
    Nexus().revise(NAMESPACE, fact.id, "I walk already.", author="ann")
    Nexus().forget(NAMESPACE, memory_id=target)
    standin.answer("derive", lambda _: observations(("A doctor wants Ann to walk", [said])))
    work("derive_memory")
    assert [one.content for one in facts()] == ["I walk already."]


def test_a_fact_that_an_erased_one_had_superseded_is_derived_again_when_it_has_words_of_it(
    claude: Any, standin: StandIn
) -> None:
    claude()
    said, target = say("He works at Acme.", f"{SECRET.title()} now works at Beta.")
    standin.answer(
        "derive",
        lambda _: observations((f"{SECRET.title()} works at Acme", [said]), (f"{SECRET} works at Beta", [target])),
    )
    work("derive_memory")
    acme, beta = facts()
    judge(standin, relation("contradicts", beta.id, acme.id, "new"))
    run_reflection()
    assert [one.id for one in facts()] == [beta.id]
    Nexus().forget(NAMESPACE, memory_id=target)
    standin.answer("derive", lambda _: observations(("Somebody works at Acme", [said])))
    work("derive_memory")
    assert [one.content for one in facts()] == ["Somebody works at Acme"]


def test_the_corrections_of_a_perspective_cost_an_erasure_no_statement_a_message(claude: Any, standin: StandIn) -> None:
    here = claude()
    [said] = say("I live in Lisbon.", session="other")
    standin.answer("derive", lambda _: observations({"content": "Ann", "sources": [said], "labels": ["home"]}))
    work("derive_memory")
    Nexus().revise(NAMESPACE, facts()[0].id, "I live in Porto.", author="ann")
    first, *_ = say(*(f"Number {n}." for n in range(300)))
    standin.answer("derive", lambda _: observations(("Ann counts", [first])))
    work("derive_memory")
    assert len(facts()) == 2
    with statements(here) as found:
        Nexus().forget(NAMESPACE, session_key="chat")
    assert len(found) < 300


def test_a_fact_keeps_the_time_that_its_own_words_tell(claude: Any, standin: StandIn) -> None:
    claude()
    first, second = say("My surgery is on 3 May 2026.", "On 3 May 2026 I have that surgery.")
    told = {"content": "Ann has a surgery on 3 May 2026", "sources": [first, second], "occurred_at": "2026-05-03"}
    standin.answer("derive", lambda _: observations(told))
    work("derive_memory")
    [fact] = facts()
    Nexus().forget(NAMESPACE, memory_id=second)
    assert [(one.id, one.event) for one in facts()] == [(fact.id, "2026-05-03")]


def test_a_fact_that_an_erased_message_contradicted_is_as_sure_as_before(claude: Any, standin: StandIn) -> None:
    """It was weakened although both may hold. Below a confidence of 0.70 no context shows a fact."""
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    porto, lisbon, oslo = know("I live in Porto.", "I live in Lisbon.", "I live in Oslo.")

    def sure() -> list[float]:
        return [round(read(here, i)["confidence"], 2) for i in (porto, lisbon)]

    judge(standin, relation("contradicts", lisbon, porto), relation("contradicts", oslo, porto))
    run_reflection()
    again(here)
    judge(standin, relation("contradicts", oslo, lisbon))
    run_reflection()
    assert sure() == [0.6, 0.75]
    [said] = Nexus().memory(NAMESPACE, oslo).evidence
    Nexus().forget(NAMESPACE, memory_id=said.id)
    assert sure() == [0.75, 0.9]
    [(first,), (second,)] = here.sql("SELECT id FROM reflections ORDER BY id")
    for reflection in (second, first):
        Nexus().undo(NAMESPACE, reflection)
    assert sure() == [0.9, 0.9]


def test_what_an_erased_memory_had_superseded_holds_again(claude: Any, standin: StandIn) -> None:
    claude()
    first, second = say("We deploy on Tuesdays.", "We deploy on Thursdays now.")
    standin.answer(
        "derive",
        lambda _: observations(("Deploys are on Tuesdays", [first]), ("Deploys are on Thursdays", [second])),
    )
    work("derive_memory")
    old, new = facts()
    standin.answer(
        "reflect",
        lambda _: {
            "relations": [
                {
                    "kind": "contradicts",
                    "new_id": new.id,
                    "old_id": old.id,
                    "holds": "new",
                    "rationale": "changed",
                }
            ],
            "insights": [],
        },
    )
    from nexus_tasks import reflect_perspective

    reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    work("reflect_perspective")
    assert [fact.id for fact in facts()] == [new.id]
    Nexus().forget(NAMESPACE, memory_id=second)
    [left] = facts()
    assert left.id == old.id
    assert left.confidence == old.confidence
    assert {one.level for one in Nexus().memories(NAMESPACE)} == {"raw", "explicit"}


def test_a_fact_that_holds_again_is_compared_with_what_was_said_meanwhile(claude: Any, standin: StandIn) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    tuesday, thursday, friday = know(*(f"I fire the kiln on {day}." for day in ("Tuesday", "Thursday", "Friday")))
    judge(standin, relation("contradicts", thursday, tuesday, "new"), relation("contradicts", friday, thursday, "new"))
    run_reflection()
    assert [fact.id for fact in facts()] == [friday]
    Nexus().forget(NAMESPACE, memory_id=Nexus().session(NAMESPACE, "chat").said[1].id)
    assert [fact.id for fact in facts()] == [tuesday, friday]
    assert here.sql("SELECT again FROM perspectives") == [([tuesday],)]
    judge(standin, relation("contradicts", tuesday, friday, "old"))
    assert run_reflection()["superseded"] == 1
    assert [fact.id for fact in facts()] == [friday]
    assert here.sql("SELECT again FROM perspectives") == [([],)]


def test_erasing_a_session_keeps_the_runs_of_jobs_that_only_look_like_it(here: Sandbox) -> None:
    """A namespace, or an observer, has the session's name."""
    for session in ("chat", "assistant", NAMESPACE):
        say("I like tea.", session=session, end=True)
    work("derive_memory", "digest_session")
    for session in ("assistant", NAMESPACE):
        Nexus().forget(NAMESPACE, session_key=session)
    left = here.sql("SELECT kind, count(*) FROM job_runs GROUP BY 1 ORDER BY 1")
    assert left == [("derive_memory", 3), ("digest_session", 1)]


def test_a_session_whose_digest_was_erased_is_digested_from_its_beginning(here: Sandbox) -> None:
    """Also when the job that was to make its digest again has given up."""
    _, erased = say("I moved to Lisbon.", "I bought a piano.", end=True)
    work()
    Nexus().forget(NAMESPACE, memory_id=erased)
    here.sql("UPDATE digest_requests SET dead = true")
    here.flush()
    say("I bought a boat.", end=True)
    work()
    digest = Nexus().session(NAMESPACE, "chat").digests["summary_long"].content
    assert "Lisbon" in digest
    assert "boat" in digest


def test_digests_fall_through_earlier_digests(here: Sandbox) -> None:
    _, target, _ = say(*TALK, end=True)
    work()
    say("I moved to Lisbon in March.", end=True)
    work()
    digests = here.sql("SELECT count(*) FROM memories WHERE level LIKE 'summary%'")[0][0]
    assert digests == 4
    Nexus().forget(NAMESPACE, memory_id=target)
    assert here.sql("SELECT count(*) FROM memories WHERE level LIKE 'summary%'")[0][0] == 0
    work()
    assert "Lisbon" in Nexus().session(NAMESPACE, "chat").digests["summary_long"].content


@pytest.mark.usefixtures("here")
def test_erasing_a_fact_leaves_what_was_said() -> None:
    say(*TALK)
    work("derive_memory")
    [fact] = [one for one in facts() if "Porto" in one.content]
    receipt = Nexus().forget(NAMESPACE, memory_id=fact.id)
    assert receipt.ids == (fact.id,)
    assert pending() == []
    assert len(Nexus().memories(NAMESPACE, levels=["raw"])) == 3


# --- while jobs run ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("context", [False, True], ids=["a message asked about", "one that was context"])
def test_a_job_in_flight_keeps_nothing_of_what_is_erased(claude: Any, standin: StandIn, context: bool) -> None:
    here = claude()
    standin.answer("derive", lambda _: observations())
    said = [f"The word is {SECRET}."]
    if context:
        [target] = say(*said)
        work("derive_memory")
        said = []
    *_, tea, cake = say(*said, "And I like tea.", "And cake.")
    target = here.sql("SELECT min(id) FROM memories")[0][0]
    erased: list[Any] = []

    def answered(call: Call) -> Any:
        if erased:
            assert SECRET not in "".join(call.parts)
            return observations(("Ann likes cake", [cake]))
        erased.append(Nexus().forget(NAMESPACE, memory_id=target))
        return observations((f"Ann said {SECRET} and likes tea", [tea]), ("Ann likes cake", [cake]))

    standin.answer("derive", answered)
    work("derive_memory")
    assert erased
    assert facts() == []
    assert traces(here) == []
    assert "retry" in {claim.wait_reason for claim in waiting()}
    time_passes(here)
    work("derive_memory")
    assert [fact.content for fact in facts()] == ["Ann likes cake"]
    assert traces(here) == []


@pytest.mark.parametrize("context", [False, True], ids=["a message asked about", "one that was context"])
def test_a_run_with_its_answer_in_hand_commits_nothing_of_what_is_erased(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch, context: bool
) -> None:
    here = claude()
    standin.answer("derive", lambda _: observations())
    [target] = say(f"The word is {SECRET}.")
    if context:
        work("derive_memory")
    *_, tea = say("And I like tea.")
    told = ("Ann likes tea", [tea])
    standin.answer(
        "derive",
        lambda call: observations((f"Ann said {SECRET}", [tea])) if SECRET in call.parts[0] else observations(told),
    )
    drafts, erased = deriving._drafts, list[Any]()

    def late(*arguments: Any) -> Any:
        if not erased:
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
        return drafts(*arguments)

    monkeypatch.setattr(deriving, "_drafts", late)
    work("derive_memory")
    assert erased
    assert facts() == []
    assert traces(here) == []
    time_passes(here)
    work("derive_memory")
    assert [fact.content for fact in facts()] == ["Ann likes tea"]


def test_an_answer_that_was_paid_for_and_not_used_goes_with_what_it_quotes(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = claude()
    target, tea = say(f"The word is {SECRET}.", "I like tea.")
    standin.answer("derive", lambda _: observations((f"Ann said {SECRET}", [target]), ("Ann likes tea", [tea])))
    with monkeypatch.context() as patch:
        patch.setattr(deriving, "_drafts", lambda *_: 1 / 0)  # dies with its answer in hand
        work("derive_memory")
    assert any(trace.startswith("saved_answers") for trace in traces(here))
    Nexus().forget(NAMESPACE, memory_id=target)
    assert traces(here) == []


def test_a_dead_letter_that_quotes_what_is_erased_goes_too(claude: Any, standin: StandIn) -> None:
    here = claude()
    [target] = say(f"The word is {SECRET}.")
    standin.when(SECRET, faults.refused(f"I say nothing about {SECRET}."))
    work("derive_memory")
    assert here.sql("SELECT count(*) FROM dead_letters WHERE message LIKE '%' || :w || '%'", w=SECRET) == [(1,)]
    Nexus().forget(NAMESPACE, memory_id=target)
    assert traces(here) == []


def test_a_dead_letter_that_comes_after_the_erasure_quotes_nothing(claude: Any, standin: StandIn) -> None:
    """The server refuses the request, in the words of the request, after the message in it was erased."""
    here = claude()
    [target] = say(f"The word is {SECRET}.")
    erased = list[Any]()

    def refuses(call: Call) -> bool:
        if SECRET in call.text and not erased:
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
        return SECRET in call.text

    standin.when(refuses, faults.status(400, "invalid_request_error", f"I read nothing about {SECRET}."))
    work("derive_memory")
    assert erased
    assert here.sql("SELECT error_type FROM dead_letters") == [("Permanent",)]
    assert traces(here) == []


@pytest.mark.parametrize(
    "fault",
    [
        faults.status(500, "api_error", f"I read nothing about {SECRET}."),
        faults.status(429, "rate_limit_error", f"I read nothing about {SECRET}.", headers={"Retry-After": "3000"}),
        faults.status(401, "authentication_error", f"I read nothing about {SECRET}."),
    ],
    ids=["retried", "throttled", "paused"],
)
def test_a_waiting_job_that_fails_after_the_erasure_quotes_nothing(
    claude: Any, standin: StandIn, fault: faults.Fault
) -> None:
    """A throttled job waits for an hour, and one of a paused kind until somebody resumes it."""
    here = claude()
    [target] = say(f"The word is {SECRET}.")
    erased = list[Any]()

    def refuses(call: Call) -> bool:
        if SECRET in call.text and not erased:
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
        return SECRET in call.text

    standin.when(refuses, fault)
    work("derive_memory")
    assert erased
    assert [claim.kind for claim in waiting()] == ["derive_memory"]
    assert traces(here) == []


def test_a_waiting_job_shows_the_words_of_the_server_while_nothing_is_erased(claude: Any, standin: StandIn) -> None:
    claude()
    say(f"The word is {SECRET}.")
    standin.when(SECRET, faults.status(500, "api_error", f"I read nothing about {SECRET}."))
    work("derive_memory")
    [job] = [one for one in Nexus().jobs(namespace=NAMESPACE) if one.kind == "derive_memory"]
    assert SECRET in (job.error or "")


def test_a_digest_in_flight_keeps_nothing_of_what_is_erased(claude: Any, standin: StandIn) -> None:
    here = claude()
    standin.answer("derive", lambda _: observations())
    _, target, _ = say(*TALK, end=True)
    work("derive_memory")
    time_passes(here)
    erased: list[Any] = []

    def answered(_: Call) -> Any:
        if not erased:
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
            return {"short": SECRET, "long": f"Ann is {SECRET}."}
        return {"short": "Tea.", "long": "Ann likes tea."}

    standin.answer("digest", answered)
    work()
    assert traces(here) == []
    time_passes(here)
    work()
    assert Nexus().session(NAMESPACE, "chat").digests["summary_long"].content == "Ann likes tea."


@pytest.mark.parametrize(
    "erase", [{"everything": True}, {"session_key": f"chat-{SECRET}"}], ids=["of the namespace", "of the session"]
)
@pytest.mark.parametrize("kind", ["derive", "digest"])
def test_a_run_in_flight_writes_nothing_of_an_erased(
    claude: Any, standin: StandIn, kind: str, erase: dict[str, Any]
) -> None:
    """Neither its effects nor a run row, whose scope would name the session or the observer."""
    here = claude()
    say(*TALK, session=f"chat-{SECRET}", end=True)
    erased: list[Any] = []

    def answered(_: Call) -> Any:
        if not erased:
            erased.append(Nexus().forget(NAMESPACE, **erase))
        return observations((f"Ann is {SECRET}", [1])) if kind == "derive" else {"short": SECRET, "long": SECRET}

    standin.answer("derive", lambda _: observations())
    standin.answer(kind, answered)
    for _ in range(3):
        work()
        time_passes(here)
    assert erased
    assert [*pending(), *waiting()] == []
    for key in here.redis().scan_iter(f"{here.name}:celery:*"):  # messages on their way name their sessions
        here.redis().delete(key)
    assert traces(here) == []


def test_a_run_of_a_job_kind_of_ones_own_writes_no_row_for_an_erased_namespace(here: Sandbox) -> None:
    Nexus().create_namespace(NAMESPACE)
    BODIES[SECRET] = lambda *_: Nexus().forget(NAMESPACE, everything=True) and JobOutcome(status="completed")
    try:
        play_kept.delay(namespace=NAMESPACE, name=SECRET)
        assert [one["status"] for one in work_kinds()] == ["superseded"]
    finally:
        BODIES.clear()
    assert here.sql("SELECT scope FROM job_runs") == []


@pytest.mark.usefixtures("here")
def test_an_erasure_that_meets_a_deadlock_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from nexus_tasks.cognition import erasure as forgetting
    from nexus_tasks.errors import Transient

    [target] = say("One.")
    real: Callable[..., Any] = forgetting.forget_memory
    failures = [Transient("deadlock"), Transient("deadlock")]

    def flaky(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(forgetting, "forget_memory", flaky)
    assert Nexus().forget(NAMESPACE, memory_id=target).ids == (target,)


# --- asking for it ----------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("here")
def test_exactly_one_thing_is_erased_at_a_time() -> None:
    say("One.")
    for wrong in ({}, {"memory_id": 1, "everything": True}, {"memory_id": 1, "session_key": "chat"}):
        with pytest.raises(InvalidInput, match="one of"):
            Nexus().forget(NAMESPACE, **wrong)
    with pytest.raises(NotFound):
        Nexus().forget("nobody", everything=True)
    assert contents() == {"One."}


@pytest.mark.usefixtures("here")
def test_the_command_prints_the_receipt() -> None:
    ids = say(*TALK)
    told = commandline.nexus("forget", "--namespace", NAMESPACE, "--memory", str(ids[0]), "--json")
    assert told.returncode == 0, told.stderr
    receipt = json.loads(told.stdout)
    assert receipt["ids"] == [ids[0]]
    assert receipt["deleted"] == {"derivations": 1, "memories": 1}
    told = commandline.nexus("forget", "--namespace", NAMESPACE, "--session", "chat")
    assert "2 memories erased" in told.stdout
    assert commandline.nexus("forget", "--namespace", NAMESPACE).returncode == 2
    assert commandline.nexus("forget", "--namespace", NAMESPACE, "--all", "--session", "x").returncode == 2


# --- on the disk ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "older", ["SELECT 1", "INSERT INTO namespaces (name) VALUES ('passing')"], ids=["reads", "writes"]
)
def test_a_table_that_an_older_transaction_keeps_rows_of_is_not_said_to_be_rewritten(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """Such as an export, which takes hours when its reader is slow."""
    database = here.deployment.database

    def in_the_file() -> bool:
        query = "SELECT strpos(encode(pg_read_binary_file(pg_relation_filepath('memories')), 'escape'), :w) > 0"
        return bool(here.sql(query, w=SECRET)[0][0])

    say(*TALK)
    begun = Database.snapshot if "SELECT" in older else Database.transaction
    with here.another() as other, begun(other.database) as tx:
        tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        tx.execute(text(older))
        Nexus(here.deployment).forget(NAMESPACE, everything=True)
        monkeypatch.setattr(vacuum, "OLDER_SECONDS", 0.2)
        assert {"memories", "pg_statistic"} <= set(rewrite_tables(database, files=True))
        here.sql("CHECKPOINT")
        assert in_the_file()
        tx.rollback()
    monkeypatch.undo()
    eventually(lambda: rewrite_tables(database, files=True) == [])
    assert not in_the_file()


def test_erasures_at_the_same_time_share_a_rewrite_and_leave_the_tables_to_others_between_two(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant who erased one memory after the other let all others wait for seconds, again and again."""
    rewritten = list[tuple[float, float]]()

    def slow(*_: Any, **__: Any) -> list[str]:
        began = time.monotonic()
        time.sleep(0.3)
        rewritten.append((began, time.monotonic()))
        return ["memories"]

    def forget(memory_id: int) -> float:
        receipt = Nexus(here.deployment).forget(NAMESPACE, memory_id=memory_id)
        assert receipt.not_rewritten == ("memories",)
        return time.monotonic()

    monkeypatch.setattr(vacuum, "rewrite_tables", slow)
    monkeypatch.setattr(erasure, "SHORT", 0.2)
    ids = say(*(f"Ann has seen town {n}." for n in range(8)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(forget, ids))
    assert len(rewritten) <= 3
    [(_, first_end), (second_begin, _), *_] = rewritten
    assert second_begin - first_end > 0.9


def test_an_erasure_rewrites_the_tables_itself_when_the_rewrite_that_it_waited_for_has_failed(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, results = threading.Event(), iter([[], StorageUnavailable("away"), ["memories"]])

    def rewrite(*_: Any, **__: Any) -> list[str]:
        begun.set()
        time.sleep(3)
        found = next(results)
        if isinstance(found, StorageUnavailable):
            raise found
        return list(found)

    def forget(memory_id: int) -> tuple[str, ...] | str:
        try:
            return Nexus(here.deployment).forget(NAMESPACE, memory_id=memory_id).not_rewritten
        except StorageUnavailable:
            return "failed"

    monkeypatch.setattr(vacuum, "rewrite_tables", rewrite)
    monkeypatch.setattr(erasure, "REST", 0.0)
    first, *others = say("Ann has seen Rome.", "Ann has seen Oslo.", "Ann has seen Bern.")
    with ThreadPoolExecutor(3) as pool:
        told = pool.submit(forget, first)
        assert begun.wait(20)
        waited = list(pool.map(forget, others))
    assert told.result() == ()
    assert sorted(waited, key=str) == [("memories",), "failed"]


def test_vector_indexes_are_not_built_while_nobody_can_read(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """81,000 vectors took 14 s: longer than a read waits for the table when others use the processors too."""

    def indexes() -> list[tuple[Any, ...]]:
        return here.sql(
            "SELECT indexrelid, pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid"
            " WHERE c.relname LIKE 'ix\\_vectors\\_%' AND indisvalid"
        )

    seen = list[tuple[str, int]]()

    def renew(database: Database, table: str, *, files: bool) -> None:
        seen.append((table, len(indexes())))
        plain(database, table, files=files)

    plain = vacuum._renew
    monkeypatch.setattr(vacuum, "_renew", renew)
    monkeypatch.setattr(upkeep, "MOST_UNINDEXED", 2)
    database = here.deployment.database
    say(*TALK)
    work()
    assert len(upkeep.run(database).indexed) == 1
    [(before, definition)] = indexes()
    assert rewrite_tables(database, files=True) == []
    assert ("embeddings", 0) in seen
    [(after, again)] = indexes()
    assert after != before
    assert again == definition
    # Another process builds indexes now.
    with database.dedicated_connection() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": upkeep._LOCK})
        rewrite_tables(database, files=True)
    assert indexes() == [(after, definition)]
    # A transaction uses the index for longer than an erasure waits.
    monkeypatch.setattr(upkeep, "IN_USE_SECONDS", 0.2)
    with here.another() as other, other.database.transaction() as tx, upkeep.without_vector_indexes(database):
        assert indexes() == []
        tx.execute(text("UPDATE embeddings SET model = model WHERE false"))
    assert upkeep.run(database).indexed
    assert len(indexes()) == 1
    # Its connection breaks. All that the erasure was asked for is done, so nothing is raised.
    with upkeep.without_vector_indexes(database):
        held = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database = {0}"
        assert here.sql(held.format("(SELECT oid FROM pg_database WHERE datname = current_database())")) == [(True,)]
    assert upkeep.run(database).indexed


@pytest.mark.usefixtures("here")
def test_a_session_of_hundreds_of_messages_with_facts_is_erased() -> None:
    """The ids of so many memories make a long statement, and no session with 300 messages and their facts could go."""
    say(*(f"I moved to Lisbon{number} in March." for number in range(400)))
    work("derive_memory")
    assert len(facts()) == 400
    receipt = Nexus().forget(NAMESPACE, session_key="chat")
    assert receipt.deleted["memories"] == 800
    assert facts() == []


def texts_whose_words_are_read(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """The texts that ``module`` splits into words from now on."""
    read, split = list[str](), module.word_forms

    def reading(said: str) -> set[str]:
        read.append(said)
        return set(split(said))

    monkeypatch.setattr(module, "word_forms", reading)
    return read


def test_a_message_is_read_once_although_many_facts_cite_it(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 171 facts of long messages that took longer than a transaction may be idle: nothing could be erased."""
    claude()
    target, _ = ids = say(f"My boat is the {SECRET}.", "I sail it every day. " + "Wind! " * 50)
    told = [(f"Ann sails the {SECRET} in {month}.", [ids[1]]) for month in ("May", "June", "July", "August")]
    standin.answer("derive", lambda _: observations(*told))
    work("derive_memory")
    assert len(facts()) == 4
    read = texts_whose_words_are_read(monkeypatch, context)
    Nexus().forget(NAMESPACE, memory_id=target)
    assert facts() == []
    assert sum("Wind!" in one for one in read) == 2  # as a source, and as a message near the erased one


@pytest.mark.parametrize("way", ["expire", "replace"])
def test_texts_between_scattered_messages_are_read_once_although_they_are_near_many_erased_ones(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Expiry held the session's locks for minutes when 100 messages of 20,000 were erased: it read 4,000 facts each."""
    here = claude()
    monkeypatch.setattr(context, "NEAR", 2)
    soon = {"expires_at": "2099-01-01T00:00:00Z", "erase_expired": True} if way == "expire" else {}
    said = [
        {"author": "ann", "id": f"m{n}", "content": f"I sail{n} it."}
        | (soon | {"content": f"My boat is the {SECRET} {n}."} if n % 10 == 0 else {})
        for n in range(60)
    ]
    Nexus().ingest(NAMESPACE, "chat", said)
    ids = [one.id for one in Nexus().session(NAMESPACE, "chat").said]
    told = [(f"Ann sailed{n} the {SECRET}", [ids[n]]) for n in range(60) if n % 10]
    standin.answer("derive", lambda call: observations(*(one for one in told if f"[{one[1][0]}]" in call.text)))
    work("derive_memory")
    assert len(facts()) == len(told)
    standin.answer("derive", lambda _: observations())
    read, split = list[str](), context.word_forms

    def reading(text: str) -> set[str]:
        read.append(text)
        return split(text)

    monkeypatch.setattr(context, "word_forms", reading)
    if way == "replace":
        edited = [{"author": "ann", "content": "My boat has a name.", "id": f"m{n}"} for n in range(0, 60, 10)]
        Nexus().ingest(NAMESPACE, "chat", edited, replace=True)
    else:
        here.sql("UPDATE memories SET expires_at = now() - interval '1 minute' WHERE erase_expired")
        assert ticks._erase_expired(here.deployment) == 6
    assert facts() == []
    assert max(Counter(one for one in read if "Ann sailed" in one).values()) == 1
    assert max(Counter(one for one in read if "I sail7 " in one).values()) <= 2  # as a source, and as another message


def test_an_erasure_that_reads_many_texts_is_never_idle_for_long(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 facts near it, a message could not be erased: Postgres ended the transaction each time."""
    here = claude()
    target, *others = say(f"My boat is the {SECRET}.", *(f"I sail{n} it." for n in range(150)))
    told = [(f"Ann sailed{n} the {SECRET}", [one]) for n, one in enumerate(others)]
    standin.answer("derive", lambda call: observations(*(one for one in told if f"[{one[1][0]}]" in call.text)))
    work("derive_memory")
    assert len(facts()) == len(told)
    standin.answer("derive", lambda _: observations())
    split = context.word_forms

    def slowly(text: str) -> set[str]:
        time.sleep(0.01)
        return split(text)

    monkeypatch.setattr(context, "word_forms", slowly)
    monkeypatch.setattr(context, "_FACTS_AT_ONCE", 20)
    short = tuple(re.sub(r"(idle_in_transaction_session_timeout) = \d+", r"\1 = 600", one) for one in _SETTINGS)
    monkeypatch.setattr("nexus_tasks.storage.engine._SETTINGS", short)
    with here.another():
        Nexus().forget(NAMESPACE, memory_id=target)
    assert facts() == []


@pytest.mark.parametrize("away", [5, 120])
def test_an_erasure_is_never_idle_for_long_while_the_words_of_long_messages_take_long(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    """Four erasures at a time among messages of 54,000 characters failed, because each had a share of the processor."""
    here = claude()
    ids = say(f"My boat is the {SECRET}.", *("Wind." for _ in range(away)), "I sail it.", *("Rain." for _ in range(10)))
    standin.answer("derive", lambda _: observations((f"Ann sails the {SECRET}", [ids[away + 1]])))
    work("derive_memory")
    assert len(facts()) == 1
    standin.answer("derive", lambda _: observations())
    split = context.word_forms

    def slowly(text: str) -> set[str]:
        time.sleep(0.1)
        return split(text)

    monkeypatch.setattr(context, "word_forms", slowly)
    monkeypatch.setattr(context, "_AWAKE_EVERY", 0.2)
    short = tuple(re.sub(r"(idle_in_transaction_session_timeout) = \d+", r"\1 = 600", one) for one in _SETTINGS)
    monkeypatch.setattr("nexus_tasks.storage.engine._SETTINGS", short)
    with here.another():
        Nexus().forget(NAMESPACE, memory_id=ids[0])
    assert facts() == []


def test_messages_that_many_facts_cite_together_are_read_once(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 60 facts of two messages of 290,000 characters, Postgres ended the transaction of each try."""
    claude()
    ids = say(f"My boat is the {SECRET}. " + "Wind! " * 50, "I sail it every day. " + "Waves! " * 50)
    told = [(f"Ann sails the {SECRET} in {month}.", ids) for month in ("May", "June", "July", "August")]
    standin.answer("derive", lambda _: observations(*told))
    work("derive_memory")
    assert len(facts()) == 4
    read = texts_whose_words_are_read(monkeypatch, forgetting)
    Nexus().forget(NAMESPACE, memory_id=ids[0])
    assert facts() == []
    assert [sum(word in one for one in read) for word in ("Wind!", "Waves!")] == [1, 1]


def test_a_table_that_is_in_use_is_waited_for_without_holding_up_others(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All later transactions wait behind one that wants a whole table. Each search waited for 10 s during an export."""
    database = here.deployment.database
    monkeypatch.setattr(vacuum, "_older_have_ended", lambda _: True)  # the export begins while tables are rewritten
    monkeypatch.setattr(vacuum, "IN_USE_SECONDS", 3.0)
    monkeypatch.setattr(Base.metadata, "tables", {"memories": Base.metadata.tables["memories"]})
    slowest = 0.0
    with here.another() as other, Database.snapshot(other.database) as tx, ThreadPoolExecutor(1) as pool:
        tx.execute(text("SELECT count(*) FROM memories"))
        rewriting = pool.submit(rewrite_tables, database, files=True)
        while not rewriting.done():
            began = time.monotonic()
            here.sql("SELECT count(*) FROM memories")
            slowest = max(slowest, time.monotonic() - began)
    assert rewriting.result() == ["memories"]
    assert slowest < 1.5


@pytest.mark.long
def test_no_file_of_an_embedded_home_holds_what_was_erased(tmp_path: Path) -> None:
    """Write-ahead logs apart: docs/erasure.md says so."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEXUS_", "ANTHROPIC_", "CELERY_"))}
    home = tmp_path / "home"
    environment = kept | {"NEXUS_HOME": str(home), "NEXUS_MODEL": "offline"}

    def nexus(*arguments: str) -> Any:
        command = [sys.executable, "-m", "nexus_tasks.cli.main", *arguments, "--json"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert told.returncode == 0, told.stdout + told.stderr
        return json.loads(told.stdout)

    def files() -> list[str]:
        every = [path for path in home.rglob("*") if path.is_file() and "pg_wal" not in path.parts]
        return [str(path) for path in every if SECRET.encode() in path.read_bytes().lower()]

    said = tmp_path / "said.jsonl"
    said.write_text("".join(json.dumps(dict(one)) + "\n" for one in TALK))
    try:
        nexus("ingest", str(said), "--namespace", NAMESPACE, "--wait", "--timeout", "180")
        [target] = [
            one["id"]
            for one in nexus("memories", "list", "--namespace", NAMESPACE, "--level", "raw")["memories"]
            if SECRET in one["content"]
        ]
        assert files() or nexus("search", SECRET, "--namespace", NAMESPACE)["results"]
        addresses = embedded.running(home)
        assert addresses
        with redis.Redis.from_url(addresses.redis_url) as client:
            client.set("an error that quotes", SECRET)  # a job's error is deleted, and stays in the append-only file
            client.delete("an error that quotes")
        receipt = nexus("forget", "--namespace", NAMESPACE, "--memory", str(target))
        assert "not_rewritten" not in receipt
    finally:
        embedded.stop(home)
    assert files() == []


def test_no_context_file_names_an_erased_session(here: Sandbox) -> None:
    home, keys = str(here.folder), ("alpha-key", "beta-key")
    for key in keys:
        Nexus().ingest("acme", key, [{"content": "I was here."}], observers=[])
        context_file.put_session(home, "acme", key, "Said.")
    Nexus().forget("acme", session_key="alpha-key")
    assert [key for _, key in context_file.sessions_asked_for(home)] == ["beta-key"]
    Nexus().forget("acme", everything=True)
    assert context_file.sessions_asked_for(home) == {}


@pytest.mark.parametrize("ask", ["digest", "extract", "dream"])
def test_work_that_is_asked_for_while_its_session_is_erased_is_no_error(here: Sandbox, ask: str) -> None:
    """Before, the caller got the raw error of a foreign key."""
    say("I live in Porto.")
    nexus, blocked = Nexus(here.deployment), "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        with here.deployment.database.transaction() as tx:
            [session] = tx.scalars(select(SessionRow)).all()
            targets.lock_session(tx, session.id)
            tx.execute(text("DELETE FROM derivations"))
            tx.execute(text("DELETE FROM memories"))
            tx.execute(text("DELETE FROM sessions"))
            args = [NAMESPACE] if ask == "dream" else [NAMESPACE, session.session_key]
            asked = pool.submit(getattr(nexus, ask), *args)
            eventually(lambda: asked.done() or here.sql(blocked))
            assert not asked.done()
        asked.result(60)
    work()
    for table in ("digest_requests", "extractions", "dead_letters"):
        assert here.sql(f"SELECT count(*) FROM {table}") == [(0,)], table
