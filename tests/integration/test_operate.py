"""What an operator does to jobs when not everything is as it should be: odd ids, a Redis that is away, many tenants."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu import Queue
from sqlalchemy.orm.session import SessionTransaction

from nexus_tasks import Nexus, derive_memory, digest_session
from nexus_tasks.cli.jobs import _full_id
from nexus_tasks.errors import ConfigurationError, InvalidInput, NotFound, Permanent, QueueUnavailable
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.reserved import drop_revoked, report_reserved
from nexus_tasks.services import jobs, status
from tests.commandline import nexus
from tests.integration import inline
from tests.integration.claiming import Bench
from tests.integration.jobkinds import BODIES, Play, attempts, play, play_once, work
from tests.sandbox import Sandbox, app, engine


@pytest.fixture
def bench(here: Sandbox) -> Iterator[Bench]:  # noqa: ARG001
    Nexus().create_namespace("acme")
    yield Bench(engine.claims)
    BODIES.clear()


def bury(name: str = "a") -> str:
    """A job that gives up; its id."""

    def body(*_: Any) -> Any:
        raise Permanent("never")

    BODIES[name] = body
    asked = play.delay(name=name)
    work()
    BODIES.clear()
    return str(asked.id)


# --- ids --------------------------------------------------------------------------------------------------------------
def test_an_id_that_is_none_names_no_job(bench: Bench) -> None:
    play.delay()
    for job_id in ("", "nonesuch", "a\0b", "\udcff", "'; --", "x" * 10_000):
        assert _full_id(Nexus(), job_id) == job_id, "as an abbreviation an empty one would fit the only job"
        for act in (Nexus().job, Nexus().retry_job, Nexus().drop_job):
            with pytest.raises(NotFound):
                act(job_id)
    assert bench.claims.counts("acme") == {"pending": 1}


@pytest.mark.usefixtures("bench")
def test_an_empty_namespace_is_not_all_of_them(here: Sandbox) -> None:
    bury()
    for read in (
        lambda: Nexus().jobs(namespace=""),
        lambda: Nexus().status(""),
        lambda: jobs.list_jobs(here.deployment, "", None, 10),
    ):
        with pytest.raises((InvalidInput, NotFound)):
            read()


def test_an_empty_filter_does_not_select_all_jobs(bench: Bench) -> None:
    bury()
    play.delay(name="queued")
    client = Nexus()
    for act in (
        lambda: client.drop_jobs(kind=""),
        lambda: client.drop_jobs(kind="", status="dead"),
        lambda: client.drop_jobs(status=""),
        lambda: client.retry_jobs(kind=""),
        lambda: client.retry_jobs(error=""),
        lambda: client.jobs(kind=""),
    ):
        with pytest.raises(InvalidInput):
            act()
    assert bench.claims.counts("acme") == {"pending": 1}
    told = nexus("jobs", "drop", "--kind", "", "--yes", "--json")
    assert (told.returncode, json.loads(told.stdout)["error"]["type"]) == (1, "InvalidInput")
    told = nexus("db", "reembed", "--namespace", "", "--json")
    assert (told.returncode, json.loads(told.stdout)["error"]["type"]) == (1, "NotFound")


def test_a_job_in_a_queue_of_its_own_can_be_seen_and_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play.task, "kind", replace(play.kind, queue="extra"))
    app.amqp.queues.add(Queue("extra", routing_key="extra"))
    try:
        asked = play.delay()
        assert [job.id for job in Nexus().jobs(namespace="acme")] == [asked.id]
        assert Nexus().drop_job(asked.id).status == "dropped"
    finally:
        app.amqp.queues.pop("extra")
    assert bench.claims.counts("acme") == {}


# --- retrying ---------------------------------------------------------------------------------------------------------
def test_a_letter_that_cannot_be_retried_now_stays_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bury()
    with monkeypatch.context() as patch:
        patch.setattr(Claims, "claim", away)
        with pytest.raises(QueueUnavailable):
            Nexus().retry_job(job_id)
    with monkeypatch.context() as patch:
        patch.setattr(engine._get(), "_kinds", dict)  # a release that does not know the kind
        with pytest.raises(ConfigurationError, match="imports"):
            Nexus().retry_job(job_id)
    assert [job.id for job in Nexus().jobs(namespace="acme", status="dead")] == [job_id]
    again = Nexus().retry_job(job_id)
    with pytest.raises(NotFound):
        Nexus().retry_job(job_id)
    assert bench.claims.counts("acme") == {"pending": 1}
    work()
    assert again.wait(5).status == "completed"


def test_a_retry_that_is_cut_off_is_no_letter_without_a_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bury()
    with monkeypatch.context() as patch:
        patch.setattr(SessionTransaction, "commit", away)
        with pytest.raises(QueueUnavailable):
            Nexus().retry_job(job_id)
    assert [job.id for job in Nexus().jobs(namespace="acme", status="dead")] == [job_id]
    bench.jump(jobs.RETRY_DELAY + 1)
    assert len(bench.sweep_due()) == 1
    work()
    assert len(attempts()) == 2
    assert bench.claims.counts("acme") == {}


def away(*_: Any, **__: Any) -> Any:
    raise QueueUnavailable


# --- status -----------------------------------------------------------------------------------------------------------
def test_who_waits_behind_a_crowd_is_told_why(bench: Bench) -> None:
    for name in ("bulk", "idle"):
        Nexus().create_namespace(name)
    bench.claims.claim([bench.request("mine", delay=90_000.0, wait_reason="budget")])
    crowd = 1_100
    bench.claims.claim([bench.request(str(i), namespace="bulk", delay=60.0 + i) for i in range(crowd)])
    found = {one.namespace: one for one in Nexus().status().namespaces}
    assert found["bulk"].jobs.waiting == crowd
    assert len(found["bulk"].waits) == status.MOST_JOBS
    assert [wait.reason for wait in found["acme"].waits] == ["budget"]
    assert found["idle"].waits == ()


# --- what no table takes, and what only looks different ---------------------------------------------------------------
def test_an_error_that_no_table_could_hold_is_a_readable_letter(bench: Bench) -> None:
    def body(*_: Any) -> Any:
        raise Permanent("not\0printable")

    BODIES["a"] = body
    asked = play.delay()
    work()
    letter = Nexus().job(asked.id)
    assert (letter.status, letter.error[:12]) == ("dead", "notprintable")
    assert bench.claims.counts("acme") == {}


def test_an_argument_that_no_table_could_hold_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        play.delay(name="a\0")
    play.delay(name="a\\u0000")
    assert bench.claims.counts("acme") == {"pending": 1}


def test_a_name_is_one_however_its_accents_are_composed(here: Sandbox) -> None:
    composed, apart = (unicodedata.normalize(form, "Café") for form in ("NFC", "NFD"))
    assert composed != apart
    for name in (composed, apart):
        inline.say({"author": name, "content": f"I said {len(name)} letters."}, session=name)
    assert here.sql("SELECT count(*) FROM sessions") == [(1,)]
    assert here.sql("SELECT count(DISTINCT author) FROM memories WHERE level = 'raw'") == [(1,)]
    first = digest_session.delay(namespace="acme", session_key=composed)
    assert digest_session.delay(namespace="acme", session_key=apart).id == first.id
    for name in (composed, apart):
        assert len(Nexus().search("acme", "letters", subject=name, session_key=name, levels=["raw"])) == 2
    assert "letters" in Nexus().context("acme", session_key=composed).text
    assert Nexus().context("acme", session_key=apart) == Nexus().context("acme", session_key=composed)
    inline.work("derive_memory")
    assert "letters" in Nexus().context("acme", subject=composed, profile=False).text
    for query in (None, "letters"):
        blocks = [Nexus().context("acme", subject=name, profile=False, query=query) for name in (composed, apart)]
        assert blocks[0] == blocks[1]


# --- messages past the task class -------------------------------------------------------------------------------------
def test_a_message_with_bad_arguments_keeps_no_sweep_from_its_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = play_once.request_for(Play())
    reserved = [
        Received(id="bad", task=play, kwargs={"nonsense": 1}),
        Received(id=good.id, task=play_once, kwargs={}),
    ]
    monkeypatch.setattr(state, "reserved_requests", reserved)
    monkeypatch.setattr(state, "active_requests", [])
    bench.claims.claim([good])
    bench.jump(11)
    report_reserved(bench.claims)
    assert bench.sweep_lost("reflect") == []


class Received(SimpleNamespace):
    """A message that a worker holds back."""

    __hash__ = object.__hash__  # type: ignore[assignment]


# --- what Postgres wants ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["drop", "revoke"])
def test_what_is_dropped_is_not_asked_for_again(here: Sandbox, how: str) -> None:
    inline.say("I moved to Lisbon.")
    [claim] = [one for one in inline.waiting() + inline.pending() if one.kind == "derive_memory"]
    if how == "drop":
        Nexus().drop_job(claim.job_id)
    else:
        drop_revoked(engine, derive_memory.kind, claim.job_id, claim.args)
    assert here.sql("SELECT state FROM derivations") == [("dead",)]
    assert Reconciler(engine).round() == 0


def test_what_is_wanted_again_is_asked_for_past_its_marker(here: Sandbox) -> None:
    inline.say("I moved to Lisbon.", end=True)
    inline.time_passes(here)
    inline.work()
    assert here.sql("UPDATE derivations SET state = 'wanted' WHERE state = 'done' RETURNING 1") == [(1,)]
    assert Reconciler(engine).round() == 1


def test_a_rerun_that_is_dropped_with_its_running_job_has_a_run_row(here: Sandbox, bench: Bench) -> None:  # noqa: ARG001
    asked = list[Any]()

    def body(run: Any, _arguments: Any) -> None:
        asked.append(play.delay(reason="again"))
        Nexus().drop_job(run.primary.job_id)
        run.check()

    BODIES["a"] = body
    asked.append(play.delay(reason="first"))
    work()
    assert len({one.id for one in asked}) == 2
    assert [one.wait(5).status for one in asked] == ["dropped"] * 2
    rows = here.sql("SELECT job_id, status FROM job_runs")
    assert sorted(rows) == sorted((one.id, "dropped") for one in asked)
