"""Correcting: facts are revised and pinned, memories expire, changed messages are refused or replace the old ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from nexus_tasks import Message, Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, NamespaceMoving, NotFound, Transient, UndoRefused
from nexus_tasks.services import correcting
from nexus_tasks.storage import pruning
from nexus_tasks.tasks import ticks
from tests.integration.inline import NAMESPACE, answers, facts, pending, say, work
from tests.integration.reflecting import insight, judge, know, read, relation, run
from tests.integration.test_observation import SMALL
from tests.sandbox import Sandbox, eventually
from tests.standin import StandIn

NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(minutes=5), NOW + timedelta(days=1)
PEANUTS, WALNUTS = "I am allergic to peanuts.", "I am allergic to walnuts, and not to peanuts."


def told(**options: Any) -> str:
    """The context about ann."""
    return Nexus().context(NAMESPACE, subject="ann", **options).text


def known(text: str = PEANUTS) -> int:
    """A fact about ann; returns its id."""
    say(text)
    work("derive_memory")
    return next(fact.id for fact in facts(subject="ann") if fact.content == text)


# --- a job in the way -------------------------------------------------------------------------------------------------
WAITING = "FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@contextmanager
def deadlock(here: Sandbox, *locks: str) -> Iterator[None]:
    """A transaction that takes the first lock, and the second one when another transaction waits for the first."""
    holds = threading.Event()

    def hold() -> None:
        with here.deployment.database.transaction() as tx:
            tx.execute(text(locks[0]))
            holds.set()
            eventually(lambda: tx.scalar(text(f"SELECT count(*) {WAITING}")), within=6)
            tx.execute(text(locks[1]))

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert holds.wait(10)
        yield
        held.result()


SESSION, PERSPECTIVE, FACT = (
    f"SELECT 1 FROM {rows} FOR UPDATE" for rows in ("sessions", "perspectives", "memories WHERE level = 'explicit'")
)


@pytest.mark.parametrize(
    ("call", "locks"),
    [
        (lambda old: Nexus().revise(NAMESPACE, old, WALNUTS), (SESSION, PERSPECTIVE)),
        (lambda old: Nexus().pin(NAMESPACE, old), (FACT, PERSPECTIVE)),
        (
            lambda _: Nexus().ingest(NAMESPACE, "chat", [Message(content=WALNUTS, id="m1")], replace=True),
            (PERSPECTIVE, SESSION),
        ),
        (lambda _: Nexus().undo(NAMESPACE, 1), (FACT, PERSPECTIVE)),
    ],
    ids=["revise", "pin", "replace", "undo"],
)
def test_a_call_that_meets_a_deadlock_with_a_job_is_tried_again(
    here: Sandbox, call: Callable[[int], Any], locks: tuple[str, str]
) -> None:
    say({"content": PEANUTS, "author": "ann", "id": "m1"})
    work("derive_memory")
    [old] = [fact.id for fact in facts(subject="ann")]
    now = Nexus().revise(NAMESPACE, old, "I am allergic to nuts.").id  # reflection 1, and the session of corrections
    [(before,)] = here.sql(DEADLOCKS)
    with deadlock(here, *locks):
        call(now)
    eventually(lambda: here.sql(DEADLOCKS)[0][0] > before, within=20, why="there was no deadlock")


# --- revise -----------------------------------------------------------------------------------------------------------
def test_a_revised_fact_supersedes_the_old_one_with_evidence_of_who_did_it(here: Sandbox) -> None:
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS, author="ann")
    assert (new.level, new.content, new.subject, new.observer) == ("explicit", WALNUTS, "ann", "assistant")
    assert new.superseded == (old,)
    before = Nexus().memory(NAMESPACE, old)
    assert (before.superseded_by, before.valid_to is not None) == (new.id, True)
    [source] = [Nexus().memory(NAMESPACE, edge.id) for edge in new.evidence if edge.role == "derived_from"]
    assert (source.author, source.session_key, source.content) == ("ann", "corrections", WALNUTS)
    work()  # nothing derives the correction again
    assert [fact.content for fact in facts()] == [WALNUTS]
    [entry] = Nexus().audit(NAMESPACE, action="correct")
    assert (entry.action, dict(entry.counts)) == ("correct.revise", {"memories": 1})
    assert here.sql("SELECT count(*) FROM embeddings WHERE memory_id = :i", i=new.id) == [(1,)]


@pytest.mark.usefixtures("here")
def test_what_was_revised_is_told_before_the_message_that_it_corrects() -> None:
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    hits = [hit.id for hit in Nexus().search(NAMESPACE, "what is ann allergic to?", levels=["explicit"])]
    assert hits == [new.id]
    text = told(query="What is ann allergic to?")
    assert WALNUTS in text
    assert all(f"(later: [m{new.id}])" in line for line in text.splitlines() if PEANUTS in line)
    assert (
        Nexus().memories(NAMESPACE, levels=["explicit"], as_of=Nexus().memory(NAMESPACE, old).valid_from)[0].id == old
    )


@pytest.mark.usefixtures("here")
def test_a_revision_is_undone_exactly() -> None:
    old = known()
    before = [read_all(i) for i in ids_of()]
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    assert new.reflection is not None
    receipt = Nexus().undo(NAMESPACE, new.reflection)
    assert receipt.revived == (old,)
    assert [read_all(i) for i in ids_of()] == before


def ids_of() -> list[int]:
    """The ids of all memories of the namespace that hold."""
    return sorted(one.id for one in Nexus().memories(NAMESPACE))


def read_all(memory_id: int) -> dict[str, Any]:
    """A memory with its edges."""
    return Nexus().memory(NAMESPACE, memory_id).to_dict()


@pytest.mark.usefixtures("here")
def test_a_revision_can_be_repeated_and_says_what_cannot_be_revised() -> None:
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    assert Nexus().revise(NAMESPACE, old, WALNUTS).id == new.id
    assert len(Nexus().audit(NAMESPACE, action="correct")) == 1
    with pytest.raises(InvalidInput, match=f"Correct m{new.id} instead"):
        Nexus().revise(NAMESPACE, old, "I am allergic to nothing.")
    with pytest.raises(InvalidInput, match="replace=True"):
        Nexus().revise(NAMESPACE, Nexus().session(NAMESPACE, "chat").said[0].id, WALNUTS)
    with pytest.raises(NotFound):
        Nexus().revise(NAMESPACE, 10**9, WALNUTS)
    for wrong in ("", "  ", "x" * 501):
        with pytest.raises(InvalidInput, match="content"):
            Nexus().revise(NAMESPACE, new.id, wrong)


@pytest.mark.usefixtures("here")
def test_a_fact_is_revised_to_one_that_exists_and_to_nearly_the_same_words() -> None:
    old, other = known(), known(WALNUTS)
    again = Nexus().revise(NAMESPACE, old, WALNUTS)
    assert (again.id, again.times_reinforced) == (other, 0)
    assert again.superseded == (old,)
    nearly = Nexus().revise(NAMESPACE, other, WALNUTS.replace("I am", "I'm"))
    assert nearly.id != other
    assert [fact.id for fact in facts()] == [nearly.id]


@pytest.mark.usefixtures("here")
def test_erasing_a_correction_lets_the_old_fact_hold_again() -> None:
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    [source] = [edge.id for edge in new.evidence if edge.role == "derived_from"]
    receipt = Nexus().forget(NAMESPACE, memory_id=source)
    assert set(receipt.ids) == {source, new.id}
    assert [fact.id for fact in facts()] == [old]


def test_a_corrected_fact_does_not_come_back_when_its_message_is_derived_again(claude: Any, standin: StandIn) -> None:
    """An erasure of another message asks for that."""
    claude(NEXUS_REFLECT_MIN_NEW="1000")
    first, second = say("My boat is red and wooden.", f"{PEANUTS} My boat is red.")
    boat = ("Ann has a red wooden boat.", [first, second])
    standin.answer("derive", answers(boat, (PEANUTS, [second])))
    work("derive_memory")
    wrong = next(fact for fact in facts() if fact.content == PEANUTS)
    right = Nexus().revise(NAMESPACE, wrong.id, WALNUTS)
    standin.answer("derive", answers(("Ann has a red boat.", [second]), (PEANUTS, [second])))
    Nexus().forget(NAMESPACE, memory_id=first)
    [done] = work("derive_memory")
    assert (done["status"], done["facts"], done["reinforced"]) == ("completed", 1, 0)
    assert [fact.content for fact in facts()] == [right.content, "Ann has a red boat."]
    [again] = say(PEANUTS, session="later")
    standin.answer("derive", answers((PEANUTS, [again])))
    work("derive_memory")
    assert PEANUTS in [fact.content for fact in facts()], "it was said again"


def test_conclusions_from_a_revised_fact_end_and_secrets_are_replaced(claude: Any, standin: StandIn) -> None:
    here = claude()
    ids = know("I run on Mondays.", "I run on Tuesdays.", "I run on Fridays.")
    judge(standin, insights=[insight(ids, "Ann runs three times a week.")])
    run()
    [(concluded,)] = here.sql("SELECT id FROM memories WHERE level = 'derived'")
    new = Nexus().revise(NAMESPACE, ids[0], "My token is ghp_" + "a1B2" * 9)
    assert "ghp_a1B2" not in new.content
    assert read(here, concluded)["valid_to"] is not None
    Nexus().undo(NAMESPACE, new.reflection or 0)
    assert read(here, concluded)["valid_to"] is None


@pytest.mark.parametrize("how", ["undone", "erased"])
def test_a_revised_conclusion_ends_and_stays_ended(claude: Any, standin: StandIn, how: str) -> None:
    """Before, a conclusion held again as soon as it was corrected, because its facts held."""
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    ids = know("I run on Mondays.", "I run on Tuesdays.", "I run on Fridays.")
    judge(standin, insights=[insight(ids, "Ann runs three times a week.")])
    run()
    [(concluded,)] = here.sql("SELECT id FROM memories WHERE level = 'derived'")
    new = Nexus().revise(NAMESPACE, concluded, "Ann runs on workdays.")
    assert new.superseded == (concluded,)
    assert Nexus().memories(NAMESPACE, levels=["derived"]) == []
    other = Nexus().revise(NAMESPACE, ids[0], "I swim on Mondays.")
    Nexus().undo(NAMESPACE, other.reflection or 0)
    assert read(here, concluded)["superseded_by"] == new.id
    if how == "undone":
        assert Nexus().undo(NAMESPACE, new.reflection or 0).revived == (concluded,)
    else:
        [source] = [edge.id for edge in new.evidence if edge.role == "derived_from"]
        Nexus().forget(NAMESPACE, memory_id=source)
    assert [one.id for one in Nexus().memories(NAMESPACE, levels=["derived"])] == [concluded]


# --- pin --------------------------------------------------------------------------------------------------------------
def test_a_pinned_fact_comes_first_and_only_a_person_ends_it(claude: Any, standin: StandIn) -> None:
    claude()
    old, new = know("I never eat peanuts.", "I eat peanuts now.")
    Nexus().pin(NAMESPACE, old)
    assert Nexus().pin(NAMESPACE, old).pinned
    judge(standin, relation("contradicts", new, old, "new"))
    counts = run()
    assert (counts["contradictions"], counts["superseded"]) == (1, 0)
    memory = Nexus().memory(NAMESPACE, old)
    assert (memory.valid_to, memory.confidence) == (None, 0.9)
    assert told().index(f"[m{old}]") < told().index(f"[m{new}]")
    assert [entry.action for entry in Nexus().audit(NAMESPACE, action="correct")] == ["correct.pin"]
    assert not Nexus().unpin(NAMESPACE, old).pinned
    assert not Nexus().unpin(NAMESPACE, old).pinned
    with pytest.raises(InvalidInput, match="level raw"):
        Nexus().pin(NAMESPACE, Nexus().session(NAMESPACE, "chat").said[0].id)


@pytest.mark.usefixtures("here")
def test_a_pin_stays_with_the_corrected_fact() -> None:
    old = known()
    Nexus().pin(NAMESPACE, old)
    assert Nexus().revise(NAMESPACE, old, WALNUTS).pinned


def test_a_pinned_fact_is_shown_however_unsure_it_is(here: Sandbox) -> None:
    """Before, a fact that contradictions had weakened was left out of profiles and contexts also when it was pinned."""
    old = known()
    here.sql("UPDATE memories SET confidence = 0.5 WHERE id = :i", i=old)
    assert PEANUTS not in f"{told(profile=False)} {Nexus().profile(NAMESPACE, 'ann').text}"
    Nexus().pin(NAMESPACE, old)
    assert PEANUTS in told(profile=False)
    assert PEANUTS in Nexus().profile(NAMESPACE, "ann").text


# --- expiry -----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("here")
def test_what_has_expired_is_as_superseded() -> None:
    Nexus().remember(NAMESPACE, "I live in Rome.", author="ann", expires_at=PAST)
    Nexus().remember(NAMESPACE, "I live in Oslo.", author="ann", expires_at=FUTURE)
    assert "I live in Oslo." in Nexus().context(NAMESPACE, session_key="notes").text  # not derived yet
    work("derive_memory")
    everything = f"{told()} {told(query='Where is ann?')} {Nexus().context(NAMESPACE, session_key='notes').text}"
    everything += f" {Nexus().profile(NAMESPACE, 'ann')}"
    assert "Oslo" in everything
    assert "Rome" not in everything
    assert not [hit for hit in Nexus().search(NAMESPACE, "Rome Oslo") if "Rome" in hit.content]
    assert [fact.content for fact in facts()] == ["I live in Oslo."]
    assert {one.expires_at for one in facts()} == {FUTURE}


@pytest.mark.usefixtures("here")
def test_a_fact_that_is_said_again_without_an_end_does_not_expire() -> None:
    Nexus().remember(NAMESPACE, "I live in Rome.", author="ann", expires_at=PAST)
    work("derive_memory")
    assert facts() == []
    say("I live in Rome.")
    work("derive_memory")
    [fact] = facts()
    assert (fact.content, fact.expires_at) == ("I live in Rome.", None)


def test_conclusions_expire_with_the_first_of_their_facts(claude: Any, standin: StandIn) -> None:
    here = claude()
    ids = know("I run on Mondays.", "I run on Tuesdays.", "I run on Fridays.")
    here.sql("UPDATE memories SET expires_at = now() + interval '1 day' WHERE id = :i", i=ids[1])
    judge(standin, insights=[insight(ids, "Ann runs three times a week.")])
    run()
    assert here.sql("SELECT expires_at > now() FROM memories WHERE level = 'derived'") == [(True,)]


def test_the_hourly_prune_erases_what_was_stored_to_be_erased(here: Sandbox) -> None:
    Nexus().remember(NAMESPACE, "I live in Rome.", author="ann", expires_at=PAST, erase_expired=True)
    Nexus().remember(NAMESPACE, "I live in Bonn.", author="ann", expires_at=PAST)
    Nexus().remember(NAMESPACE, "I live in Oslo.", author="ann", expires_at=FUTURE, erase_expired=True)
    work("derive_memory")
    say("Not derived yet.", session="later")
    [claim] = [one for one in pending() if one.kind == "derive_memory"]
    here.redis().hset(claim.key, "error", "Refused: The model refused to answer. The server said: I live in Rome.")
    assert ticks.prune(default_deployment())["expired"] == 2  # the message and its fact
    left = {text for (text,) in here.sql("SELECT content FROM memories")}
    assert left == {"I live in Bonn.", "I live in Oslo.", "Not derived yet."}
    assert here.redis().hget(claim.key, "error") is None, "an error may quote what was erased"
    [entry] = Nexus().audit(NAMESPACE, action="erase")
    assert (entry.action, entry.counts["memories"]) == ("erase.expired", 2)


def test_prune_erases_what_expired_in_few_transactions_and_by_one_process_at_a_time(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each erased message would have the digest of its session made, and paid for, again."""
    ends = {"author": "ann", "expires_at": PAST, "erase_expired": True}
    monkeypatch.setattr(pruning, "EXPIRED_AT_ONCE", 20)
    monkeypatch.setattr(pruning, "MOST_EXPIRED", 30)
    towns = [{"content": f"I visited the town number {n}.", **ends} for n in range(40)]
    for namespace in (NAMESPACE, "zebra"):
        say(*towns, PEANUTS, namespace=namespace, end=True)
    work()
    erase, asked = ticks._erase, list[tuple[str, int]]()

    def noted(namespace: str, namespace_id: int, ids: list[int], *more: Any) -> Any:
        asked.append((namespace, len(ids)))
        assert ticks._erase_expired(default_deployment()) == 0, "the next tick leaves it to this one"
        return erase(namespace, namespace_id, ids, *more)

    monkeypatch.setattr(ticks, "_erase", noted)
    assert ticks.prune(default_deployment())["expired"] > 80  # the messages, and their facts that were listed with them
    assert len(asked) <= 12
    assert asked[:2] == [(NAMESPACE, 20), ("zebra", 20)], "namespaces take turns"
    left = "SELECT DISTINCT content FROM memories WHERE level NOT LIKE 'summary%'"
    assert here.sql(left) == [(PEANUTS,)]
    assert [one["kind"] for one in work()] == ["digest_session", "digest_session"]


def test_what_is_said_again_while_prune_erases_is_not_erased(
    claude: Any, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude(NEXUS_REFLECT_MIN_NEW="1000")
    ends = {"author": "ann", "expires_at": PAST, "erase_expired": True}
    said = say({"content": "I like tea.", **ends}, {"content": "I drink milk.", **ends})
    standin.answer("derive", answers(("I like tea.", said[:1]), ("I drink milk.", said[1:])))
    work("derive_memory")
    erase, heard = ticks._erase, list[int]()

    def erase_while_somebody_speaks(*args: Any) -> Any:
        if not heard:
            heard.extend(say("I drink milk.", session="later"))
            standin.answer("derive", answers(("I drink milk.", heard)))
            work("derive_memory")
        return erase(*args)

    monkeypatch.setattr(ticks, "_erase", erase_while_somebody_speaks)
    ticks._erase_expired(default_deployment())
    assert [fact.content for fact in facts()] == ["I drink milk."]
    assert [edge.id for edge in Nexus().memory(NAMESPACE, facts()[0].id).evidence] == heard


@pytest.mark.parametrize("end", [PAST, FUTURE], ids=["expired", "expires"])
def test_a_fact_that_ends_does_not_end_one_that_lasts(claude: Any, standin: StandIn, end: datetime) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    [cake] = know("I eat cake every day.")
    say({"content": "I am on a diet without cake.", "author": "ann", "expires_at": end})
    work("derive_memory")
    [(diet,)] = here.sql("SELECT id FROM memories WHERE level = 'explicit' AND expires_at IS NOT NULL")
    judge(standin, relation("contradicts", diet, cake, "new"))
    counted = run()
    assert (counted["superseded"], counted["contradictions"]) == (0, int(end == FUTURE))
    assert [fact.id for fact in facts()] == [cake, *([diet] if end == FUTURE else [])]
    assert facts()[0].confidence == 0.9


@pytest.mark.usefixtures("here")
def test_the_facts_of_a_session_leave_out_what_has_expired() -> None:
    say({"content": "I live in Lisbon.", "author": "ann", "expires_at": PAST}, PEANUTS)
    work("derive_memory")
    assert [fact.content for fact in Nexus().session_facts(NAMESPACE, "chat")] == [PEANUTS]
    assert len(Nexus().session_facts(NAMESPACE, "chat", superseded=True)) == 2


def test_what_expires_is_erased_although_another_namespace_is_locked(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (NAMESPACE, "zebra"):
        Nexus().remember(name, "I live in Rome.", author="ann", expires_at=PAST, erase_expired=True)
    [claim] = [one for one in pending() if one.namespace == "zebra"]
    here.redis().hset(claim.key, "error", "InvalidAnswer: I live in Rome.")
    erase = ticks._erase

    def locked(namespace: str, *more: Any) -> Any:
        if namespace == NAMESPACE:
            raise Transient("Another transaction keeps a lock.")
        return erase(namespace, *more)

    monkeypatch.setattr(ticks, "_erase", locked)
    assert ticks.prune(default_deployment())["expired"] == 1
    assert here.sql("SELECT n.name FROM memories m JOIN namespaces n ON n.id = m.namespace_id") == [(NAMESPACE,)]
    assert here.redis().hget(claim.key, "error") is None, "the error quotes what is erased"


def test_a_correction_that_expires_gives_way_to_the_old_fact_when_it_is_erased(here: Sandbox) -> None:
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS, expires_at=FUTURE, erase_expired=True)
    assert new.expires_at == FUTURE
    here.sql("UPDATE memories SET expires_at = now() - interval '1 hour' WHERE expires_at IS NOT NULL")
    assert facts() == []
    ticks.prune(default_deployment())
    assert [fact.id for fact in facts()] == [old]


@pytest.mark.usefixtures("here")
def test_an_erasure_needs_an_end() -> None:
    with pytest.raises(InvalidInput, match="erase_expired needs expires_at"):
        Nexus().remember(NAMESPACE, "I live in Rome.", erase_expired=True)


@pytest.mark.usefixtures("here")
def test_what_has_expired_counts_as_no_valid_memory() -> None:
    Nexus().remember(NAMESPACE, "I live in Rome.", author="ann", expires_at=PAST)
    known("I live in Oslo.")
    counts = [Nexus().namespace(NAMESPACE).memories, Nexus().status(NAMESPACE).namespaces[0].memories]
    assert [(one["raw"], one["explicit"]) for one in counts] == [(1, 1), (1, 1)]
    assert [one.memories for one in Nexus().perspectives(NAMESPACE)] == [1]


# --- changed messages -------------------------------------------------------------------------------------------------
def sent(content: str, **fields: Any) -> dict[str, Any]:
    """The message ``m1`` of ann, at noon."""
    return {
        "id": "m1",
        "author": "ann",
        "content": content,
        "occurred_at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    } | fields


def test_a_changed_message_is_refused_with_both_texts(here: Sandbox) -> None:
    """Before, it was counted as a duplicate, and the edit was lost without a word."""
    say(sent(PEANUTS))
    for changed in (sent(WALNUTS), sent(PEANUTS, author="bob"), sent(PEANUTS, role="assistant")):
        with pytest.raises(InvalidInput, match=r"m1.*peanuts.*replace=True") as caught:
            Nexus().ingest(NAMESPACE, "chat", [{"content": "Hello."}, changed])
        assert changed["content"] in caught.value.message
    with pytest.raises(InvalidInput, match=r"m2.*One.*Two"):
        Nexus().ingest(NAMESPACE, "chat", [{"id": "m2", "content": "One."}, {"id": "m2", "content": "Two."}])
    assert here.sql("SELECT content FROM memories WHERE level = 'raw'") == [(PEANUTS,)]
    receipt = Nexus().ingest(NAMESPACE, "chat", [sent(PEANUTS), sent(PEANUTS)])
    assert (receipt.stored, receipt.duplicates) == (0, 2)


def test_a_message_that_replaces_another_takes_its_place_and_what_rested_on_it_falls(here: Sandbox) -> None:
    say(
        sent(f"{PEANUTS} I like tea."),
        "I live in Lisbon.",
        {"content": "I am allergic to peanuts!", "author": "ann", "id": "m3"},
    )
    say("Thanks.", end=True)
    work()
    say(sent("I live near bees."), replace=True)
    said = Nexus().session(NAMESPACE, "chat").said
    assert (said[0].seq, said[0].content) == (1, "I live near bees.")
    assert [one.seq for one in said] == [1, 2, 3, 4]
    assert said[0].occurred_at == datetime(2026, 1, 1, 12, tzinfo=UTC)
    work()
    # The fact that another message also says stays; the new text is derived.
    assert {fact.content for fact in facts()} == {
        PEANUTS,
        "I live in Lisbon.",
        "I live near bees.",
    }
    assert "bees" in Nexus().session(NAMESPACE, "chat").digests["summary_long"].content
    assert Nexus().session(NAMESPACE, "chat").underived == 0
    [entry] = Nexus().audit(NAMESPACE, action="correct")
    assert entry.action == "correct.replace"
    assert here.sql("SELECT count(*) FROM memories WHERE content LIKE '%tea%'") == [(0,)]
    assert (again := Nexus().ingest(NAMESPACE, "chat", [sent("I live near bees.")], replace=True)).stored == 0
    assert again.duplicates == 1


@pytest.mark.usefixtures("here")
def test_the_last_of_several_texts_of_a_call_replaces() -> None:
    say(sent("One."))
    receipt = Nexus().ingest(
        NAMESPACE, "chat", [sent("Two."), sent("Three."), {"id": "m2", "content": "Four."}], replace=True
    )
    assert (receipt.stored, [one.content for one in Nexus().session(NAMESPACE, "chat").said]) == (
        2,
        ["Three.", "Four."],
    )


@pytest.mark.usefixtures("here")
def test_a_message_whose_secrets_were_replaced_is_no_changed_message() -> None:
    secret = "My token is ghp_" + "a1B2" * 9
    say(sent(secret))
    Nexus().set_namespace(NAMESPACE, scrub=False)
    assert Nexus().ingest(NAMESPACE, "chat", [sent(secret)]).duplicates == 1
    say({"id": "m2", "content": secret})
    Nexus().set_namespace(NAMESPACE, scrub=True)
    assert Nexus().ingest(NAMESPACE, "chat", [Message(id="m2", content=secret)]).duplicates == 1


@pytest.mark.usefixtures("here")
def test_a_secret_split_over_lines_is_scrubbed_in_a_revision() -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    old = known()
    new = Nexus().revise(NAMESPACE, old, f"The token is\n{token[:20]}\n{token[20:]}")
    assert token[:20] not in new.content
    assert token[20:] not in new.content


# --- undo -------------------------------------------------------------------------------------------------------------
def last_reflection(here: Sandbox) -> int:
    """The number of the last reflection or correction."""
    return int(here.sql("SELECT max(id) FROM reflections")[0][0])


def test_a_correction_is_undone_after_a_digest_has_told_it(here: Sandbox) -> None:
    """Before, the digest that a dream makes of the session `corrections` refused the undo for ever."""
    old, moved = known(), known("I live in Lisbon.")
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    Nexus().revise(NAMESPACE, moved, "I live in Porto.")
    Nexus().digest(NAMESPACE, "corrections")
    work()
    told_it = "SELECT count(*) FROM memories WHERE level LIKE 'summary%' AND content LIKE :text"
    assert here.sql(told_it, text="%walnuts%") == [(2,)]
    receipt = Nexus().undo(NAMESPACE, new.reflection or 0)
    assert receipt.revived == (old,)
    work()
    assert here.sql(told_it, text="%walnuts%") == [(0,)]
    assert here.sql(told_it, text="%Porto%") == [(2,)]
    assert Nexus().undo(NAMESPACE, last_reflection(here)).revived == (moved,)
    work()
    assert here.sql(told_it, text="%Porto%") == [(0,)]


def test_notes_on_an_undone_correction_are_made_again(deploy: Callable[..., Sandbox]) -> None:
    here = deploy(**SMALL)
    new = Nexus().revise(NAMESPACE, known(), WALNUTS)
    say(*["How are you, and what is new?"] * 20, session="corrections", observe=True)
    work("observe_session")
    noted = "SELECT count(*) FROM (SELECT observations FROM observation_logs UNION ALL SELECT observations FROM"
    noted += " observation_chunks) AS notes WHERE observations LIKE '%walnuts%'"
    assert here.sql(noted) == [(1,)]
    Nexus().undo(NAMESPACE, new.reflection or 0)
    assert here.sql(noted) == [(0,)]
    work("observe_session")
    assert here.sql(noted) == [(0,)]


@pytest.mark.usefixtures("here")
def test_what_was_said_after_an_undone_correction_is_derived_again() -> None:
    """Before, the undo deleted the fact that a later message says too, and nothing derived it again."""
    old = known()
    new = Nexus().revise(NAMESPACE, old, WALNUTS)
    say(WALNUTS)
    work("derive_memory")
    assert Nexus().memory(NAMESPACE, new.id).times_reinforced == 1
    Nexus().undo(NAMESPACE, new.reflection or 0)
    work("derive_memory")
    assert {fact.content for fact in facts(subject="ann")} == {PEANUTS, WALNUTS}


def test_an_undo_keeps_a_fact_that_said_the_same_before_the_correction(here: Sandbox) -> None:
    """Before, a correction took over a fact whose words mean a day, such as "tomorrow", and its undo deleted that."""
    tomorrow = "I fly to Rome tomorrow."
    other, old = known(tomorrow), known("I fly to Rome.")
    assert Nexus().revise(NAMESPACE, old, tomorrow).id == other
    assert [fact.id for fact in facts(subject="ann")] == [other]
    Nexus().undo(NAMESPACE, last_reflection(here))
    assert {fact.id for fact in facts(subject="ann")} == {other, old}


def test_a_fact_is_revised_to_one_that_has_expired(here: Sandbox) -> None:
    """Before, the expired fact took the place of the corrected one, so neither was shown."""
    Nexus().remember(NAMESPACE, "I live in Oslo.", author="ann", expires_at=PAST)
    old = known("I live in Rome.")
    assert Nexus().revise(NAMESPACE, old, "I live in Oslo.").expires_at is None
    assert [fact.content for fact in facts()] == ["I live in Oslo."]
    Nexus().undo(NAMESPACE, last_reflection(here))
    assert [fact.content for fact in facts()] == ["I live in Rome."]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_corrections_are_undone_in_any_order_that_is_allowed(here: Sandbox, order: tuple[int, ...]) -> None:
    """Before, a fact whose words a correction repeated stayed ended when both corrections were undone."""
    rice, oslo = known("I never eat rice."), known("I live in Oslo.")
    first = Nexus().revise(NAMESPACE, rice, "I eat everything.")
    again = Nexus().revise(NAMESPACE, oslo, "I never eat rice.")
    last = Nexus().revise(NAMESPACE, again.id, "I live in Rome.")
    made = [one.reflection or 0 for one in (first, again, last)]
    left = [made[place] for place in order]
    while left:
        for number in left:
            with suppress(UndoRefused):
                Nexus().undo(NAMESPACE, number)
                break
        else:
            pytest.fail("no correction can be undone")
        left.remove(number)
    assert {fact.id for fact in facts(subject="ann")} == {rice, oslo}
    assert here.sql("SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL") == [(0,)]


@pytest.mark.usefixtures("here")
def test_a_correction_to_nearly_the_same_words_is_undone() -> None:
    """Before, the undo was refused, because the correction itself said the same as what it had corrected."""
    old = known()
    new = Nexus().revise(NAMESPACE, old, PEANUTS.replace("I am", "I'm"))
    assert Nexus().undo(NAMESPACE, new.reflection or 0).revived == (old,)
    assert [fact.id for fact in facts()] == [old]


@pytest.mark.usefixtures("here")
def test_a_correction_to_the_words_of_an_earlier_one_names_its_own_number() -> None:
    """Before, `reflection` was the number of the earlier correction, and an undo with it reversed both."""
    rome, oslo = known("I live in Rome."), known("I live in Oslo.")
    first = Nexus().revise(NAMESPACE, rome, "I live in Bonn.")
    second = Nexus().revise(NAMESPACE, oslo, "I live in Bonn.")
    assert second.id == first.id
    assert second.reflection not in (None, first.reflection)
    assert Nexus().revise(NAMESPACE, oslo, "I live in Bonn.").reflection == second.reflection
    assert Nexus().revise(NAMESPACE, rome, "I live in Bonn.").reflection == first.reflection
    assert Nexus().undo(NAMESPACE, second.reflection or 0).revived == (oslo,)
    assert {fact.id for fact in facts()} == {first.id, oslo}


def test_a_correction_lasts_longer_than_a_fact_of_its_words_that_expires(here: Sandbox) -> None:
    """Before, the fact that expired took the place of the correction, and afterwards neither held."""
    Nexus().remember(NAMESPACE, "I live in Oslo.", author="ann", expires_at=FUTURE)
    rome = known("I live in Rome.")
    [oslo] = [fact.id for fact in facts() if fact.id != rome]
    new = Nexus().revise(NAMESPACE, rome, "I live in Oslo.")
    assert (new.expires_at, [fact.id for fact in facts()]) == (None, [new.id])
    assert set(new.superseded) == {rome, oslo}
    assert set(Nexus().undo(NAMESPACE, new.reflection or 0).revived) == {rome, oslo}
    assert {fact.id for fact in facts()} == {rome, oslo}
    assert Nexus().revise(NAMESPACE, rome, "I live in Oslo.", expires_at=FUTURE).id == oslo
    Nexus().undo(NAMESPACE, last_reflection(here))
    assert Nexus().revise(NAMESPACE, rome, "I live in Oslo.", expires_at=FUTURE + timedelta(days=1)).id != oslo


def test_a_correction_is_refused_when_its_namespace_begins_to_move_meanwhile(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it was stored where the namespace was moving away from, and lost."""
    old = known()
    embed = correcting.vectors_of

    def move(*arguments: Any) -> Any:
        here.sql("UPDATE namespaces SET residence = 'leaving', other_cell = 'two'")
        return embed(*arguments)

    monkeypatch.setattr(correcting, "vectors_of", move)
    with pytest.raises(NamespaceMoving):
        Nexus().revise(NAMESPACE, old, WALNUTS)
    assert here.sql("SELECT count(*) FROM reflections") == [(0,)]


# --- expiry of facts with several messages ----------------------------------------------------------------------------
def test_a_merged_fact_lasts_as_long_as_the_last_of_its_messages(claude: Any, standin: StandIn) -> None:
    here = claude()
    one, two = know("I run on Mondays.", "Each Monday I go for a run.")
    with_its_message = "id = :i OR id IN (SELECT source_id FROM evidence WHERE memory_id = :i)"
    here.sql(f"UPDATE memories SET expires_at = now() + interval '1 day' WHERE {with_its_message}", i=one)
    judge(standin, relation("duplicate", two, one))
    run()
    ends = "SELECT expires_at IS NULL FROM memories WHERE id = :i AND valid_to IS NULL"
    assert here.sql(ends, i=one) == [(True,)]
    Nexus().undo(NAMESPACE, last_reflection(here))
    assert here.sql(ends, i=one) == [(False,)]


def test_an_insight_lasts_as_long_as_its_facts_when_one_of_them_is_said_again(claude: Any, standin: StandIn) -> None:
    here = claude()
    said = ("I drink green tea.", "My sister is called Rosa.", "I work as a nurse.")
    one, *others = know(*said)
    with_its_message = "id = :i OR id IN (SELECT source_id FROM evidence WHERE memory_id = :i)"
    here.sql(f"UPDATE memories SET expires_at = now() + interval '1 day' WHERE {with_its_message}", i=one)
    judge(standin, insights=[insight([one, *others])])
    run()
    ends = "SELECT expires_at IS NULL FROM memories WHERE level = 'derived'"
    assert here.sql(ends) == [(False,)]
    [*_, again] = say(said[0])
    work("derive_memory")
    assert here.sql(ends) == [(True,)]
    Nexus().forget(NAMESPACE, memory_id=again)
    assert here.sql(ends) == [(False,)]


@pytest.mark.usefixtures("here")
def test_a_fact_expires_with_the_messages_that_an_erasure_leaves() -> None:
    Nexus().remember(NAMESPACE, "I live in Rome.", author="ann", expires_at=FUTURE)
    [again] = say("I live in Rome.")
    work("derive_memory")
    assert [fact.expires_at for fact in facts()] == [None]
    Nexus().forget(NAMESPACE, memory_id=again)
    work("derive_memory")
    assert [fact.expires_at for fact in facts()] == [FUTURE]


@pytest.mark.usefixtures("here")
def test_an_observed_session_does_not_show_what_has_expired() -> None:
    say({"content": "I am on a diet.", "author": "ann", "expires_at": PAST}, "I live in Oslo.", observe=True)
    shown = Nexus().context(NAMESPACE, session_key="chat", observe=True).text
    assert "Oslo" in shown
    assert "diet" not in shown
