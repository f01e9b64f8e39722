"""A kind of somebody else's with everything that ours have, in one file: it survives SIGKILL and a flushed Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from nexus_tasks import Nexus
from nexus_tasks.errors import ConfigurationError, InvalidInput, NotFound, StorageUnavailable, Transient
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from nexus_tasks.jobs import Arguments, JobOutcome, Run, job
from nexus_tasks.storage import wanted_jobs
from nexus_tasks.tasks import follow_ups
from tests.integration.inline import pending, time_passes, waiting, work, work_as_asked
from tests.integration.parcels import TABLES, WITH_PARCELS, Parcel, announce, meets, ship
from tests.sandbox import Sandbox, engine, eventually

ROOT = {"PYTHONPATH": str(Path(__file__).parents[2])}
SHIP, ANNOUNCE = "tests.integration.parcels.ship", "tests.integration.parcels.announce"


@pytest.fixture
def shop(deploy: Callable[..., Sandbox]) -> Sandbox:
    made = deploy(NEXUS_LEASE_SECONDS="2")
    Nexus().create_namespace("shop")
    for table in TABLES:
        made.sql(table)
    return made


def want(shop: Sandbox, parcel: int = 1, **more: bool) -> None:
    with shop.deployment.database.transaction() as tx:
        ship.want(tx, namespace="shop", parcel=parcel, **more)


def shipped(shop: Sandbox) -> list[tuple[int, bool]]:
    return shop.sql("SELECT parcel, express FROM shipped ORDER BY parcel")


def rows(shop: Sandbox) -> list[tuple[str, str]]:
    return shop.sql("SELECT kind, state FROM wanted_jobs ORDER BY id")


def names() -> list[str]:
    return [claim.kind for claim in pending()]


# --- in the caller's transaction --------------------------------------------------------------------------------------
def test_a_transaction_that_commits_has_its_job_and_one_that_rolls_back_has_none(shop: Sandbox) -> None:
    with shop.deployment.database.transaction() as tx:
        ship.want(tx, namespace="shop", parcel=1)
        tx.rollback()
    assert (names(), rows(shop)) == ([], [])
    with shop.deployment.database.transaction() as tx:
        ship.want(tx, namespace="shop", parcel=2)
        with tx.begin_nested() as savepoint:
            ship.want(tx, namespace="shop", parcel=3)
            savepoint.rollback()
        assert names() == [], "a job that starts now would not see what the transaction wrote"
    assert names() == [SHIP]
    work()
    assert (shipped(shop), shop.sql("SELECT parcel FROM announced"), rows(shop)) == ([(2, False)], [(2,)], [])


def test_a_session_and_a_connection_of_the_callers_own(shop: Sandbox) -> None:
    own = create_engine(shop.database_url)
    with Session(own) as session, session.begin():
        ship.want(session, namespace="shop", parcel=1)
    assert names() == [SHIP]
    with own.begin() as connection:
        wanted = ship.want(connection, namespace="shop", parcel=2)
        assert not wanted.enqueue(), "not committed yet"
    assert len(names()) == 1
    assert wanted.enqueue()
    assert names() == [SHIP, SHIP]
    with own.connect() as connection:
        wanted = ship.want(connection, namespace="shop", parcel=3)
        connection.rollback()
    assert not wanted.enqueue()
    with own.begin() as connection:
        ship.want(connection, namespace="shop", parcel=4)  # and never enqueued by its caller
    assert Reconciler(engine).round() == 1
    own.dispose()
    work()
    assert [parcel for parcel, _ in shipped(shop)] == [1, 2, 4]


def test_what_is_wanted_twice_is_one_job_with_the_newest_arguments(shop: Sandbox) -> None:
    want(shop)
    shop.flush()
    want(shop, express=True)
    assert names() == [SHIP]
    work()
    assert (shipped(shop), rows(shop)) == ([(1, True)], [])


def test_what_is_wanted_during_a_run_is_run_once_more(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    want(shop)
    usual, seen = announce.want, list[object]()

    def wanted_once_more(tx: Session, **named: Any) -> Any:
        if not seen:
            want(shop, express=True)
        seen.append(tx)
        return usual(tx, **named)

    monkeypatch.setattr(announce, "want", wanted_once_more)
    work_as_asked(without=[ANNOUNCE])
    assert len(seen) == 2, "the second request came after the run had begun"
    assert rows(shop) == [(ANNOUNCE, "wanted")]


def test_nonsense_is_refused_and_writes_nothing(shop: Sandbox) -> None:
    with shop.deployment.database.transaction() as tx:
        with pytest.raises(InvalidInput, match="parcel"):
            ship.want(tx, namespace="shop", parcel="one")  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="nowhere"):
            ship.want(tx, namespace="nowhere", parcel=1)
    assert rows(shop) == []


# --- what may happen on the way ---------------------------------------------------------------------------------------
def test_a_producer_that_dies_after_its_commit_loses_nothing(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_ups, "ask", lambda *_: [])
    want(shop)
    monkeypatch.undo()
    assert names() == []
    assert Reconciler(engine).round() == 1
    assert names() == [SHIP]


def test_it_is_retried_paused_probed_and_resumed(shop: Sandbox) -> None:
    meets(shop.deployment, "late", "closed")
    want(shop)
    work_as_asked()
    [claim] = waiting()
    assert (claim.wait_reason, claim.retries) == ("retry", 1)
    time_passes(shop)
    work_as_asked()
    assert list(engine.claims.paused()) == [SHIP]
    sweeper = Sweeper(engine)
    sweeper.probe()
    assert list(engine.claims.paused()) == [SHIP], "the carrier is still closed"
    shop.redis().set(f"{shop.name}:test:open", "1")
    sweeper.probe()
    assert list(engine.claims.paused()) == []
    work_as_asked()
    assert (shipped(shop), rows(shop)) == ([(1, False)], [])


def test_what_gives_up_is_a_dead_letter_until_somebody_retries_it(shop: Sandbox) -> None:
    meets(shop.deployment, "broken")
    want(shop)
    work_as_asked()
    [letter] = shop.sql("SELECT job_id FROM dead_letters WHERE resolution IS NULL")
    assert rows(shop) == [(SHIP, "dead")]
    shop.flush()
    assert Reconciler(engine).round() == 0
    Nexus().retry_job(letter[0])
    assert rows(shop) == [(SHIP, "wanted")]
    shop.flush()
    assert Reconciler(engine).round() == 1
    work()
    assert (shipped(shop), rows(shop)) == ([(1, False)], [])


@pytest.mark.parametrize("killed", ["kill", "kill after the commit"])
def test_it_survives_sigkill_and_a_flushed_redis(shop: Sandbox, killed: str) -> None:
    struck = shop.worker(*WITH_PARCELS, **ROOT)
    meets(shop.deployment, killed)
    want(shop)
    eventually(lambda: struck.process.poll() is not None, within=60, why="it was not killed")
    shop.flush()
    shop.worker(*WITH_PARCELS, **ROOT)
    eventually(lambda: shop.sql("SELECT parcel FROM announced") == [(1,)], within=60)
    assert shipped(shop) == [(1, False)]
    eventually(lambda: rows(shop) == [], within=60)


# --- declarations -----------------------------------------------------------------------------------------------------
def test_two_kinds_of_one_name_are_refused_with_both_places() -> None:
    with pytest.raises(ConfigurationError, match=r"tests\.integration\.parcels:ship.*test_durable_kinds:") as caught:

        @job(arguments=Parcel, queue="maintenance", name=SHIP)
        def another(run: Run, arguments: Parcel) -> JobOutcome:
            raise NotImplementedError

    assert "name=" in caught.value.remedy


def test_a_name_without_a_dot_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no dot"):

        @job(arguments=Parcel, queue="maintenance", name="ship")
        def recount(run: Run, arguments: Parcel) -> JobOutcome:
            raise NotImplementedError


def test_a_scope_that_names_no_field_is_refused() -> None:
    class Odd(Arguments):
        scope = ("namespace", "colour")

    with pytest.raises(ConfigurationError, match="colour"):

        @job(arguments=Odd, queue="maintenance")
        def odd(run: Run, arguments: Odd) -> JobOutcome:
            raise NotImplementedError


def test_a_run_deletes_no_row_that_was_made_after_it_began(shop: Sandbox) -> None:
    """Its job was dropped and asked for again meanwhile: the new row looks the same but for its id."""

    def asked() -> wanted_jobs.Row:
        with shop.deployment.database.transaction() as tx:
            ship.want(tx, namespace="shop", parcel=1)
            found = wanted_jobs.asked(tx, SHIP, '{"namespace":"shop","parcel":1}')
        assert found
        return found

    began = asked()
    with shop.deployment.database.transaction() as tx:
        wanted_jobs.settle(tx, began)
    assert rows(shop) == []
    asked()
    with shop.deployment.database.transaction() as tx:
        wanted_jobs.settle(tx, began)
    assert rows(shop) == [(SHIP, "wanted")]


@pytest.mark.parametrize(("error", "queued"), [(StorageUnavailable("away"), 1), (Transient("locked"), 0)])
def test_only_an_outage_lets_a_job_be_queued_without_its_row(
    shop: Sandbox, monkeypatch: pytest.MonkeyPatch, error: Transient, queued: int
) -> None:
    tries = []

    def fail(*_: object) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(wanted_jobs, "want_all", fail)
    with suppress(Transient):
        ship.delay(namespace="shop", parcel=1)
    assert (len(pending()), len(tries), rows(shop)) == (queued, 1 if queued else 3, [])
