"""The main path with a real worker: said, stored, derived, digested, read back."""

from __future__ import annotations

import pytest

from nexus_tasks import Message, Nexus, derive_memory, digest_session, reflect_namespace
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, NexusError, UnsupportedOption
from nexus_tasks.storage import messages, namespaces, sessions
from tests.sandbox import Sandbox, eventually

TALK = [
    Message(content="I moved to Lisbon in March.", author="ann", id="a1"),
    Message(content="I always drink green tea before work.", author="ann", id="a2"),
    Message(content="Noted, I will suggest tea houses in Lisbon.", role="assistant", id="a3"),
]


def quiet(nexus: Nexus) -> bool:
    """Nothing is wanted, nothing is queued."""
    [found] = nexus.status("acme").namespaces
    jobs = found.jobs
    return found.underived == 0 and jobs.waiting + jobs.pending + jobs.running == 0


def test_what_is_said_is_remembered(here: Sandbox) -> None:
    here.worker()
    nexus = Nexus()
    receipt = nexus.ingest("acme", "chat-1", TALK, end=True)
    assert (receipt.messages, receipt.stored, receipt.duplicates) == (3, 3, 0)
    assert receipt.enqueued == 4  # three derivations and the digest
    eventually(lambda: quiet(nexus))

    best = nexus.search("acme", "when did ann move to Lisbon?", levels=["explicit"])[0]
    assert "Lisbon" in best.content
    assert best.subject == "ann"
    assert best.observer == "assistant"
    assert [edge.external_id for edge in best.evidence] == ["a1"]

    block = nexus.context("acme", session_key="chat-1", max_tokens=400)
    assert block.tokens <= 400
    assert {"digest", "facts"} <= {section.name for section in block.sections}
    for cited in block.citations.values():
        assert nexus.memory("acme", cited.id).id == cited.id

    again = nexus.ingest("acme", "chat-1", TALK, end=True)
    assert (again.stored, again.duplicates, again.enqueued) == (0, 3, 0)
    assert nexus.status("acme").namespaces[0].jobs.dead == 0


def test_a_session_that_was_read_before_it_is_locked_is_appended_to_as_it_is_by_then(here: Sandbox) -> None:
    Nexus().ingest("acme", "chat", [Message(content="One.", author="ann")])
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, "acme")
        held = sessions.get(tx, known.id, "chat")
        Nexus().ingest("acme", "chat", [Message(content="Two.", author="ann")])  # meanwhile, by somebody else
        assert held.last_seq == 1
        stored = messages.store(tx, known.id, "chat", [Message(content="Three.", author="ann")], ())
        assert (len(stored.memory_ids), stored.session.last_seq) == (1, 3)
    assert here.sql("SELECT seq, content FROM memories WHERE level = 'raw' ORDER BY seq") == [
        (1, "One."),
        (2, "Two."),
        (3, "Three."),
    ]


def test_a_bad_call_fails_in_the_producer(here: Sandbox) -> None:
    for call, field in [
        (lambda: derive_memory.delay(namespace="acme", memory_id="many"), "memory_id"),
        (lambda: derive_memory.delay(namespace="acme"), "memory_id"),
        (lambda: derive_memory.delay(namespace=".acme", memory_id=1), "namespace"),
        (lambda: digest_session.delay(namespace="acme"), "session_key"),
        (lambda: digest_session.delay(namespace="acme", session_key="s", reason="whim"), "reason"),
        (lambda: reflect_namespace.delay(namespace="acme", colour="red"), "colour"),
    ]:
        with pytest.raises(InvalidInput, match=field):
            call()
    with pytest.raises(UnsupportedOption, match="expires"):
        reflect_namespace.apply_async(kwargs={"namespace": "acme"}, expires=5)
    assert here.redis().keys(f"{here.name}:job:*") == []


def test_a_duplicate_joins_the_waiting_job(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    first = digest_session.delay(namespace="acme", session_key="s")
    second = digest_session.delay(namespace="acme", session_key="s", reason="manual_digest")
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    [key] = here.redis().keys(f"{here.name}:job:*")
    claim = here.redis().hgetall(key)
    assert claim["force"] == "1"
    assert set(claim["reasons"].split(",")) == {"rollover", "manual_digest"}


def test_waiting_for_a_job(here: Sandbox) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat-1", TALK)
    job = nexus.digest("acme", "chat-1")
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.2)
    here.worker()
    outcome = job.wait(timeout=60)
    assert outcome.status == "completed"
    assert outcome.reasons == ("manual_digest",)
    assert digest_session.delay(namespace="acme", session_key="nowhere").wait(timeout=60).status == "gone"
    assert derive_memory.delay(namespace="acme", memory_id=999_999).wait(timeout=60).status == "gone"

    lost = digest_session.delay(namespace="nobody", session_key="s")
    assert lost.wait(timeout=60).status == "gone"
    here.redis().flushdb()
    found = nexus.job(lost.id)
    assert (found.source, found.status, found.namespace) == ("runs", "gone", "nobody"), "the run row tells it"
    assert "s" not in found.scope.replace("nobody", "").replace("namespace", ""), "no session of an erased namespace"
    assert lost.id in [one.id for one in nexus.jobs(status="gone")]
    assert nexus.finished_jobs().counts["digest_session"] == {"completed": 1, "gone": 2}


@pytest.mark.usefixtures("here")
def test_errors_carry_a_remedy() -> None:
    with pytest.raises(NexusError, match="nexus namespaces list") as caught:
        Nexus().search("nowhere", "anything")
    assert set(caught.value.as_dict()) == {"type", "message", "remedy"}


def test_readers_need_no_model(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat-1", TALK)
    monkeypatch.setenv("NEXUS_MODEL", "auto")  # servers of one's own and no key: nothing can be derived here
    with here.another() as keyless, pytest.raises(NexusError, match="credentials"):
        assert keyless.resources
    with here.another() as keyless:
        nexus = Nexus(keyless)
        assert nexus.search("acme", "Lisbon")[0].external_id == "a1"
        assert nexus.context("acme", session_key="chat-1").text
    assert here.sql("SELECT count(*) FROM memories") == [(3,)]
