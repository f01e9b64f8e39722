"""After an operator has dropped a job or its dead letter, later work of the same session or perspective is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexus_tasks import Nexus, reflect_perspective
from nexus_tasks.errors import InvalidInput, Permanent
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.storage import observations
from nexus_tasks.tasks import observe_session, reflect_observations
from tests.integration.inline import NAMESPACE, say, wanted, work
from tests.sandbox import Sandbox, engine

Drop = Callable[[str], None]
SUBJECT = {"namespace": NAMESPACE, "observer": "assistant", "subject": "ann"}


def drop_job(job_id: str) -> None:
    assert Nexus().drop_job(job_id).id == job_id


def drop_letter(job_id: str) -> None:
    gives_up(job_id)
    drop_job(job_id)


def drop_letters(job_id: str) -> None:
    gives_up(job_id)
    assert Nexus().drop_jobs(status="dead").dropped == 1


def gives_up(job_id: str) -> None:
    claim = ClaimIndex(engine.claims).find(job_id)
    assert claim is not None
    engine.storage.dead_letter(claim, Permanent("never"))
    engine.claims.drop(claim.key)


@pytest.fixture(params=[drop_job, drop_letter, drop_letters])
def drop(request: pytest.FixtureRequest) -> Drop:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.usefixtures("here")
def test_a_letter_whose_arguments_name_no_work_can_be_dropped() -> None:
    Nexus().create_namespace(NAMESPACE)
    strange = {
        "extract_session": {"namespace": NAMESPACE},
        "observe_session": {"namespace": NAMESPACE, "session_key": 5},
        "reflect_perspective": {"namespace": NAMESPACE, "observer": ["a"]},
    }
    for kind, args in strange.items():
        engine.storage.undeliverable(f"sent-{kind}", kind, args, InvalidInput("wrong"))
    drop_job("sent-extract_session")
    assert Nexus().drop_jobs(status="dead").dropped == 2
    assert Nexus().jobs(status="dead") == []


def test_a_session_is_extracted_again(here: Sandbox, drop: Drop) -> None:
    say("The keys are on shelf 3.")
    drop(str(Nexus().extract(NAMESPACE, "chat").id))
    assert here.sql("SELECT state FROM extractions") == [("idle",)]
    Reconciler(engine).round()
    assert "extract_session" not in wanted()
    Nexus().extract(NAMESPACE, "chat")
    assert [one["status"] for one in work("extract_session")] != ["dead"]


@pytest.mark.parametrize("kind", [observe_session.observe_session, reflect_observations.reflect_observations])
def test_a_session_is_observed_again(here: Sandbox, drop: Drop, kind: object) -> None:
    say("The keys are on shelf 3.")
    here.sql("INSERT INTO observation_logs (namespace_id, session_id) SELECT namespace_id, id FROM sessions")
    work_of: observations.Work = "observing" if kind is observe_session.observe_session else "reflecting"
    here.sql(f"UPDATE observation_logs SET {work_of} = 'wanted'")
    drop(str(kind.delay(namespace=NAMESPACE, session_key="chat").id))  # type: ignore[attr-defined]
    assert here.sql(f"SELECT {work_of} FROM observation_logs") == [("idle",)]


def test_a_perspective_is_reflected_on_when_facts_come(here: Sandbox, drop: Drop) -> None:
    say("I moved to Lisbon in March.", end=True)
    work("derive_memory")
    drop(str(reflect_perspective.delay(**SUBJECT).id))
    read = "SELECT dead, reflected_through = (SELECT max(id) FROM memories WHERE level = 'explicit') FROM perspectives"
    assert here.sql(read) == [(False, True)]
    Reconciler(engine).round()
    assert "reflect_perspective" not in wanted()
    say("I moved to Porto in April.", end=True)
    work("derive_memory")
    reflect_perspective.delay(**SUBJECT)
    assert "dead" not in [one["status"] for one in work("reflect_perspective")]
    assert here.sql(read) == [(False, True)]
