"""What operators see and do in a backlog: the cost of looking, bulk retries and drops, pauses, and whole letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus_tasks import Nexus, digest_session
from nexus_tasks.cognition import digest
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, NotFound, Permanent, UnsupportedOption
from nexus_tasks.idempotency.claim import Claim, Claimed
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.types import JOB_STATUSES
from tests.commandline import nexus
from tests.integration import inline
from tests.integration.claiming import Bench, tagged
from tests.integration.jobkinds import BODIES, WITH_KINDS, attempts, play, play_once, work
from tests.sandbox import Sandbox, app, engine, eventually

CROWD = 2_500


@pytest.fixture
def bench(here: Sandbox) -> Iterator[Bench]:  # noqa: ARG001
    Nexus().create_namespace("acme")
    yield Bench(engine.claims)
    BODIES.clear()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the claims that are read from here on."""
    found: list[str] = []
    parse = Claim.parse

    def counted(key: str, fields: Any) -> Claim:
        found.append(key)
        return parse(key, fields)

    monkeypatch.setattr(Claim, "parse", counted)
    return found


def crowd(bench: Bench, many: int = CROWD, **options: Any) -> list[Request]:
    """Claims of the namespace `bulk`: half of them wait for a budget."""
    Nexus().create_namespace("bulk")
    made = [
        bench.request(f"{i}", namespace="bulk", delay=60.0 * (i % 2), wait_reason="budget", **options)
        for i in range(many)
    ]
    for start in range(0, many, 500):
        bench.claims.claim(made[start : start + 500])
    return made


def fails(name: str = "a", error: Callable[[], BaseException] = lambda: Permanent("never")) -> None:
    def body(*_: Any) -> Any:
        raise error()

    BODIES[name] = body


def bury(*names: str, **options: Any) -> list[str]:
    """Jobs that give up; their ids, in order."""
    asked = []
    for name in names:
        fails(name)
        asked.append(str(play.delay(name=name, **options).id))
        work()  # one after the other, so that their order is known
    BODIES.clear()
    return asked


@pytest.mark.usefixtures("here")
def test_a_drop_spares_the_job_that_comes_after_the_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    first = str(play.delay(name="a").id)
    storage, later = default_deployment().engine.storage, list[str]()
    withdraw = storage.withdraw

    def ends_meanwhile(claims: Any) -> None:
        withdraw(claims)
        if not later:
            work()
            later.append(str(play.delay(name="a").id))

    monkeypatch.setattr(storage, "withdraw", ends_meanwhile)
    with pytest.raises(NotFound):
        Nexus().drop_job(first)
    assert Nexus().job(later[0]).status == "pending"


@pytest.mark.usefixtures("here")
def test_resuming_a_kind_that_is_not_paused_says_so() -> None:
    assert nexus("jobs", "resume", "derive_memory").stdout == "Nothing was paused.\n"
    default_deployment().claims.pause("derive_memory", "401")
    assert nexus("jobs", "resume", "derive_memory").stdout == "Resumed: derive_memory.\n"


# --- finding and listing ----------------------------------------------------------------------------------------------
def test_a_job_is_found_by_its_id_among_thousands_and_no_other_is_read(bench: Bench, parsed: list[str]) -> None:
    one = crowd(bench)[CROWD // 2]
    found = Nexus().job(one.id)
    assert (found.id, found.namespace, found.status) == (one.id, "bulk", "waiting")
    with pytest.raises(NotFound):
        Nexus().job("00000000-no-such-job")
    assert parsed == [bench.key(one)]


def test_a_job_is_found_by_each_of_its_ids_until_it_ends(bench: Bench) -> None:
    one = bench.request("one")
    claim = bench.run(one)
    [ticket] = bench.claims.claim([tagged(one, "again")])
    assert ticket.outcome is Claimed.RERUN
    index = ClaimIndex(bench.claims)
    assert [index.find(i).key for i in (one.id, ticket.job_id)] == [claim.key] * 2  # type: ignore[union-attr]
    bench.claims.wait([claim], "retry", 0.0)  # the next run serves both
    bench.audit()
    assert index.find(ticket.job_id) is not None
    [again] = bench.sweep_due()
    running = bench.run(one, "t2", claim=False)
    assert again.job_id == running.job_id == one.id
    bench.claims.finish([running], ["completed"])
    assert (index.find(one.id), index.find(ticket.job_id)) == (None, None)
    bench.audit()


def test_a_job_that_redis_lost_under_its_run_is_found_again(bench: Bench) -> None:
    one = bench.request("one")
    claim = bench.run(one)
    bench.flush()
    bench.claims.renew([claim], lease=10.0)
    assert ClaimIndex(bench.claims).find(one.id) is not None
    bench.audit()


@pytest.mark.usefixtures("here")
def test_the_beginning_of_an_id_is_enough_for_a_command() -> None:
    inline.say("I drink green tea.")
    inline.work()
    [run] = Nexus().jobs(status="completed")
    [letter] = bury("dead", namespace=inline.NAMESPACE)
    waiting = play.delay(name="b", namespace=inline.NAMESPACE).id
    for job_id, status in ((run.id, "completed"), (letter, "dead"), (waiting, "pending")):
        shown = nexus("jobs", "show", job_id[:8], "--json")
        assert json.loads(shown.stdout)["id"] == job_id, shown.stderr
        assert json.loads(shown.stdout)["status"] == status
    assert nexus("jobs", "show", waiting[:2]).returncode != 0  # too short to be found by index


def test_the_jobs_of_a_namespace_are_listed_behind_thousands_of_another(bench: Bench, parsed: list[str]) -> None:
    crowd(bench)
    mine = [bench.request(str(i), delay=90_000.0 * (i % 2), wait_reason="retry") for i in range(4)]
    bench.claims.claim(mine)
    parsed.clear()
    assert {job.id for job in Nexus().jobs(namespace="acme")} == {one.id for one in mine}
    assert [job.id for job in Nexus().jobs(namespace="acme", status="waiting")] == [mine[1].id, mine[3].id]
    assert len(parsed) == 6
    assert len(Nexus().jobs(limit=10)) == len(Nexus().jobs(limit=10, offset=CROWD - 10)) == 10
    assert len(parsed) == 26


def test_listings_go_on_where_the_last_one_ended_over_queue_letters_and_runs(bench: Bench) -> None:
    letters = bury("x", "y")
    waiting = [bench.request(f"w{i}", kind="play", delay=60.0) for i in range(3)]
    bench.claims.claim(waiting)
    pending = [play.delay(name=f"p-{i}").id for i in range(3)]
    other = play_once.delay().id
    every = [job.id for job in Nexus().jobs(namespace="acme", kind="play")]
    assert set(every[:3]) == {one.id for one in waiting}
    assert set(every[3:6]) == set(pending)
    assert every[6:] == letters[::-1]
    for step in (1, 2, 3):
        pages = [Nexus().jobs(namespace="acme", kind="play", limit=step, offset=i) for i in range(0, 9, step)]
        assert [job.id for page in pages for job in page] == every
    assert [job.id for job in Nexus().jobs(kind="play_once")] == [other]


def test_every_way_to_end_is_a_status_of_the_listing(here: Sandbox) -> None:
    inline.say("I moved to Lisbon in March.", end=True)
    inline.work()
    [(first,)] = here.sql("SELECT id FROM namespaces")
    for status in JOB_STATUSES:
        here.sql(
            "INSERT INTO job_runs (job_id, namespace_id, kind, scope, status, reasons, details) VALUES"
            " (:id, :namespace, 'thing', '{}', :status, '{}', '{}')",
            id=f"run-{status}",
            namespace=first,
            status=status,
        )
        told = nexus("jobs", "list", "--status", status, "--kind", "thing", "--json")
        assert told.returncode == 0, told.stderr
        listed = [job["id"] for job in json.loads(told.stdout)["jobs"]]
        assert listed == ([] if status in ("waiting", "pending", "running") else [f"run-{status}"])
    with pytest.raises(InvalidInput, match="none of"):
        Nexus().jobs(status="asleep")


# --- status -----------------------------------------------------------------------------------------------------------
def test_status_of_many_namespaces_shows_the_busiest_and_counts_the_rest(here: Sandbox, parsed: list[str]) -> None:
    bench = Bench(engine.claims)
    here.sql("INSERT INTO namespaces (name) SELECT 'tenant-' || n FROM generate_series(1, 200) n")
    bench.claims.claim([bench.request(str(i), namespace=f"tenant-{i}") for i in range(1, 201)])
    bench.claims.claim([bench.request(f"more-{i}", namespace="tenant-77", delay=60.0) for i in range(300)])
    parsed.clear()
    found = Nexus().status()
    assert (len(found.namespaces), found.left_out) == (20, 180)
    assert (found.jobs.pending, found.jobs.waiting) == (200, 300)
    busiest = next(one for one in found.namespaces if one.namespace == "tenant-77")
    assert dict(busiest.waiting_for) == {"delay": 300}
    assert len(parsed) <= 20 * 20
    told = nexus("status").stdout
    assert "200 namespaces, jobs: 300 waiting, 200 pending" in told
    assert "nexus status --namespace NS" in told


@pytest.mark.long
def test_status_names_the_jobs_that_run_the_longest_first_with_their_worker(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    worker = here.worker(*WITH_KINDS)
    first = play.delay(name="first", plan=("hold",))
    eventually(lambda: attempts("first"))
    second = play.delay(name="second", plan=("hold",))
    eventually(lambda: attempts("second"))
    [found] = Nexus().status("acme").namespaces
    assert [run.id for run in found.runs] == [first.id, second.id]
    assert found.runs[0].for_seconds >= found.runs[1].for_seconds >= 0
    assert [run.worker.pid for run in found.runs if run.worker] == [worker.process.pid] * 2
    shown = Nexus().job(first.id)
    assert shown.worker == found.runs[0].worker
    assert f"(process {worker.process.pid})" in nexus("status").stdout


# --- what is known of a failure ---------------------------------------------------------------------------------------
@pytest.mark.usefixtures("bench")
def test_the_text_of_the_last_error_is_shown_while_the_job_is_tried_again() -> None:
    fails("a", lambda: ZeroDivisionError("the sum of \x00nothing\n" + "x" * 2_000))
    asked = play.delay()
    work()
    found = Nexus().job(asked.id)
    assert (found.status, found.reason, found.detail) == ("waiting", "retry", "ZeroDivisionError")
    assert found.error is not None
    assert found.error.startswith("ZeroDivisionError: the sum of nothing xxx")
    assert len(found.error) == 500
    assert Nexus().jobs(namespace="acme")[0].error == found.error


def test_the_text_of_an_error_is_erased_with_what_it_may_quote(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    [said] = inline.say("My number is 555-0101.", end=True)
    inline.say("I like tea.", session="other", end=True)

    def quotes(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("cannot read 555-0101")

    monkeypatch.setattr(digest, "digest", quotes)
    inline.work("derive_memory")
    for key in ("chat", "other"):
        digest_session.delay(namespace=inline.NAMESPACE, session_key=key, reason="manual_digest")
    inline.work("digest_session")
    errors = [job.error for job in Nexus().jobs(namespace=inline.NAMESPACE, kind="digest_session", status="waiting")]
    assert len(errors) == 2
    assert all("555-0101" in (error or "") for error in errors)
    Nexus().forget(inline.NAMESPACE, memory_id=said)
    assert "555-0101" not in repr(Bench(engine.claims).content())
    assert here


@pytest.mark.long
def test_runs_and_letters_name_the_worker_that_ran_them(here: Sandbox) -> None:
    inline.say("I moved to Lisbon in March.")
    worker = here.worker(*WITH_KINDS)
    dead = play.delay(namespace=inline.NAMESPACE, plan=("permanent",))
    [run] = eventually(lambda: Nexus().jobs(namespace=inline.NAMESPACE, status="completed", kind="derive_memory"))
    letter = eventually(lambda: (shown := Nexus().job(dead.id)).status == "dead" and shown)
    for found in (run, Nexus().job(run.id), letter):
        assert found.worker is not None
        assert found.worker.pid == worker.process.pid
        assert found.worker.node.endswith(here.name)
        assert found.worker.host


# --- retrying ---------------------------------------------------------------------------------------------------------
def test_a_rebuild_that_gave_up_is_a_rebuild_when_it_is_retried(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.say("I moved to Lisbon in March.", end=True)
    inline.work()
    with monkeypatch.context() as patch:

        def refused(*_: Any, **__: Any) -> Any:
            raise Permanent("refused")

        patch.setattr(digest, "digest", refused)
        asked = digest_session.delay(namespace=inline.NAMESPACE, session_key="chat", reason="manual_rebuild")
        inline.work("digest_session")
    letter = Nexus().job(asked.id)
    assert (letter.status, letter.force, letter.reasons, letter.urgency) == ("dead", True, ("manual_rebuild",), "live")
    before = here.sql("SELECT max(generation) FROM session_digests")
    again = Nexus().retry_job(asked.id)
    inline.work("digest_session")
    outcome = again.wait(5)
    assert (outcome.status, outcome.reasons) == ("completed", ("manual_rebuild",))
    assert here.sql("SELECT max(generation) FROM session_digests") > before


@pytest.mark.parametrize(("said", "urgency"), [(None, "dream"), ("live", "live")])
def test_a_dream_that_gave_up_stays_a_dream_unless_the_operator_says_otherwise(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, said: Any, urgency: str
) -> None:
    assert here
    inline.say("I moved to Lisbon in March.", end=True)
    inline.work()

    def refused(*_: Any, **__: Any) -> Any:
        raise Permanent("refused")

    monkeypatch.setattr(digest, "digest", refused)
    asked = digest_session.delay(namespace=inline.NAMESPACE, session_key="chat", reason="dream_digest")
    inline.work("digest_session")
    assert Nexus().job(asked.id).urgency == "dream"
    again = Nexus().retry_job(asked.id, urgency=said)
    shown = Nexus().job(again.id)
    assert (shown.force, shown.reasons, shown.urgency) == (True, ("dream_digest",), urgency)


def test_a_forced_letter_that_is_retried_during_another_run_is_run_after_it(bench: Bench) -> None:
    [letter] = bury("a", reason="forced")
    waiting = play.delay(name="a")
    running = bench.run(play.kind.request_for(play.kind.load({"name": "a"})), claim=False)
    assert running.job_id == waiting.id
    again = Nexus().retry_job(letter)
    assert (again.outcome, again.created) == (Claimed.RERUN, True)
    bench.claims.finish([running], ["completed"])
    assert Nexus().job(again.id).force


def test_letters_are_retried_by_filter_and_those_that_cannot_be_stay(bench: Bench) -> None:
    letters = bury("a", "b", "c", "d")
    Nexus().create_namespace("other")
    [other] = bury("a", namespace="other")
    sql = "UPDATE dead_letters SET {} WHERE job_id = '{}'"
    with engine.deployment.database.transaction() as tx:
        from sqlalchemy import text

        tx.execute(text(sql.format("error_type = 'Refused'", letters[1])))
        tx.execute(text(sql.format("args = '{\"plan\": 1}'", letters[2])))
    assert Nexus().retry_jobs(namespace="acme", error="Refused").to_dict() == {"retried": 1, "refused": {}}
    told = nexus("jobs", "retry", "--kind", "play", "--namespace", "acme", "--json")
    found = json.loads(told.stdout)
    assert (found["retried"], list(found["refused"])) == (2, [letters[2]])
    assert [job.id for job in Nexus().jobs(status="dead")] == [other, letters[2]]
    assert {job.id for job in Nexus().jobs(status="retried")} == {letters[0], letters[1], letters[3]}
    assert nexus("jobs", "retry").returncode == 2  # nothing is selected
    work()
    assert [len(attempts(name)) for name in "bd"] == [2, 2]
    assert bench.claims.counts("acme") == {}


# --- dropping ---------------------------------------------------------------------------------------------------------
def test_jobs_are_dropped_by_filter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexus_tasks.services.jobs.AT_ONCE", 50)
    crowd(bench, 120)
    kept = bench.request("kept", namespace="bulk", kind="other")
    mine = bench.request("mine")
    bench.claims.claim([kept, mine])
    running = bench.run(bench.request("running", namespace="bulk"))
    bench.client.delete(bench.key(bench.request("0", namespace="bulk")))  # by hand, without its entries
    bench.client.hincrby(f"{bench.claims.prefix}:count:bulk", "pending", -1)
    told = nexus("jobs", "drop", "--namespace", "bulk", "--kind", "thing", "--json")
    assert json.loads(told.stdout) == {"dropped": 119}, told.stderr
    assert bench.claims.counts("bulk") == {"pending": 1, "running": 1, "slots": 1}
    assert Nexus().drop_jobs(namespace="bulk", status="running").dropped == 1
    assert bench.claims.renew([running], lease=10.0) == [running]  # its run is told
    assert Nexus().drop_jobs().dropped == 2
    with pytest.raises(InvalidInput, match="cannot be dropped"):
        Nexus().drop_jobs(status="completed")


def test_dropped_work_stays_dropped_after_a_flush(here: Sandbox) -> None:
    inline.say("I moved to Lisbon in March.")
    assert Nexus().drop_jobs(namespace=inline.NAMESPACE).dropped == 1
    here.flush()
    assert Reconciler(engine).round() == 0


def test_letters_are_dropped_by_filter(bench: Bench) -> None:
    letters = bury("a", "b")
    Nexus().create_namespace("other")
    [other] = bury("a", namespace="other")
    assert Nexus().drop_jobs(namespace="acme", status="dead").dropped == 2
    assert [job.id for job in Nexus().jobs(status="dead")] == [other]
    assert {job.id for job in Nexus().jobs(status="dropped")} == set(letters)
    assert bench.claims.counts("acme") == {}


# --- pauses -----------------------------------------------------------------------------------------------------------
def test_no_job_of_a_paused_namespace_begins_until_it_is_resumed_also_after_a_flush(here: Sandbox) -> None:
    for name in ("acme", "other"):
        Nexus().create_namespace(name)
    told = nexus("jobs", "pause", "acme", "--reason", "a runaway agent")
    assert told.returncode == 0, told.stderr
    here.flush()
    here.worker(*WITH_KINDS)
    mine, other = play.delay(name="mine"), play.delay(name="other", namespace="other")
    assert other.wait(60).status == "completed"
    eventually(lambda: Nexus().job(mine.id).status == "waiting")
    [found] = Nexus().status("acme").namespaces
    assert found.paused is not None
    assert found.paused.reason == "a runaway agent"
    assert "a runaway agent: `nexus jobs resume --namespace acme`" in nexus("status").stdout
    assert attempts("mine") == []
    assert nexus("jobs", "resume", "--namespace", "acme").stdout == "Resumed: acme.\n"
    assert mine.wait(30).status == "completed"
    assert Nexus().resume_namespace("acme") is False


# --- counting ---------------------------------------------------------------------------------------------------------
def test_finished_jobs_are_counted_by_kind_and_end_over_a_time(here: Sandbox) -> None:
    inline.say("I moved to Lisbon in March.", "I drink green tea.", end=True)
    inline.work()
    here.sql("UPDATE job_runs SET finished_at = now() - interval '3 days' WHERE kind = 'digest_session'")
    bury("a", "b", namespace=inline.NAMESPACE)
    found = Nexus().finished_jobs(namespace=inline.NAMESPACE)
    assert (found.counts["derive_memory"], found.counts["play"]) == ({"completed": 2}, {"dead": 2})
    assert "digest_session" not in found.counts
    since = datetime.now(UTC) - timedelta(days=4)
    assert Nexus().finished_jobs(since=since).counts["digest_session"] == {"completed": 1}
    assert Nexus().finished_jobs(since=since, until=since + timedelta(hours=1)).counts == {}
    assert "derive_memory\tcompleted\t2" in nexus("jobs", "finished").stdout


# --- small answers ----------------------------------------------------------------------------------------------------
def test_a_digest_that_is_skipped_says_how_much_is_missing(here: Sandbox) -> None:
    inline.say("I moved to Lisbon in March.", end=True)
    inline.work()
    inline.say("I like tea.")
    asked = digest_session.delay(namespace=inline.NAMESPACE, session_key="chat", reason=None)
    inline.work("digest_session")
    outcome = asked.wait(5)
    assert (outcome.status, outcome.reasons) == ("skipped", ("rollover",))
    [(tokens,)] = here.sql("SELECT tokens FROM memories WHERE content = 'I like tea.'")
    assert outcome.details["why"] == f"1 of 8 messages, {tokens} of 600 tokens"
    assert outcome.details["why"] in nexus("jobs", "show", asked.id).stdout


@pytest.mark.usefixtures("bench")
def test_a_priority_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(UnsupportedOption, match=r"`urgency`.*--queues"):
        play.apply_async(kwargs={}, priority=9)


def test_a_message_with_wrong_arguments_leaves_a_letter_in_its_namespace(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    worker = here.worker(*WITH_KINDS)
    sent = {
        "wrong": app.send_task("nexus_tasks.play", kwargs={"namespace": "acme", "plan": "a\0b"}, queue="maintenance"),
        "many": app.send_task("nexus_tasks.play", args=["acme", *range(20)], queue="maintenance"),
    }
    app.send_task("nexus_tasks.play", kwargs={"namespace": "nobody", "plan": "red"}, queue="maintenance")
    app.send_task("nexus_tasks.play", kwargs={"plan": "red", "namespace": 5}, queue="maintenance")
    good = play.delay(namespace="acme")
    eventually(lambda: len(Nexus().jobs(namespace="acme", status="dead")) == 2)
    eventually(lambda: worker.text().count("names no namespace") == 2)
    letter = Nexus().job(sent["wrong"].id)
    assert (letter.error_type, letter.args) == ("InvalidInput", {"namespace": "acme", "plan": "ab"})
    assert "plan" in (letter.error or "")
    assert Nexus().retry_jobs(namespace="acme").retried == 0  # no job can have these arguments
    assert Nexus().drop_job(sent["many"].id).status == "dropped"
    assert good.wait(30).status == "completed"
