"""Undoing a reflection: exactly, once, in any order, and never done again by the next one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks import Nexus, reflect_perspective
from nexus_tasks.errors import InvalidInput, NotFound, UndoRefused
from nexus_tasks.storage import perspectives
from tests.integration.inline import NAMESPACE, dump, facts, say, work
from tests.integration.reflecting import again, day, insight, judge, know, read, relation, run
from tests.sandbox import Sandbox
from tests.standin import StandIn

Claude = Callable[..., Sandbox]
# What an undo may leave behind: that there was a reflection, what it cost, and that its facts were looked at.
TRACES = ("reflections", "reflection_changes", "job_runs", "model_calls", "perspectives")


@pytest.fixture
def here(claude: Claude) -> Sandbox:
    """A deployment where nothing is reflected on unless a test asks for it."""
    return claude(NEXUS_REFLECT_MIN_NEW="1000")


def newest(here: Sandbox) -> int:
    """The number of the latest reflection."""
    return int(here.sql("SELECT max(id) FROM reflections")[0][0])


def of_reflection(here: Sandbox, number: int) -> list[tuple[int, int, str]]:
    """What a reflection concluded, and the edges that it drew: memory, source, role."""
    concluded = "SELECT id FROM memories WHERE reflection_id = :number"
    found = here.sql(
        f"SELECT memory_id, source_id, role FROM evidence WHERE reflection_id = :number OR memory_id IN ({concluded})"
        " ORDER BY memory_id, source_id, role",
        number=number,
    )
    assert {role for _, _, role in found} >= {"contradicts", "reinforces"}
    return found


def test_an_undone_reflection_leaves_everything_as_it_was(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d, e, f = know(*(f"I like thing {i}." for i in "uvwxyz"))
    before = dump(here, *TRACES)
    judge(
        standin,
        relation("contradicts", b, a, "new"),
        relation("contradicts", c, d, "both"),
        relation("contradicts", e, d, "both"),  # weakened twice by one reflection
        relation("reinforces", e, c),
        relation("duplicate", f, c),
        insights=[insight([d, e, f])],
    )
    run()
    assert dump(here, *TRACES) != before
    undone = Nexus().undo(NAMESPACE, newest(here))
    assert dump(here, *TRACES) == before
    assert (undone.status, undone.observer, undone.subject) == ("undone", "assistant", "ann")
    assert undone.revived == (a, f)
    assert undone.restored == (a, c, d, e, f)
    assert len(undone.removed) == 4
    assert {fact.id for fact in facts()} == {a, b, c, d, e, f}


def test_undoing_twice_changes_nothing(here: Sandbox, standin: StandIn) -> None:
    a, b = know("I live in Porto.", "I live in Lisbon.")
    judge(standin, relation("contradicts", b, a, "new"))
    job = reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    work("reflect_perspective")
    number = job.wait(60).details["reflection"]
    assert Nexus().undo(NAMESPACE, job.id).reflection == number  # named by its job
    before = dump(here)
    assert Nexus().undo(NAMESPACE, number).status == "unchanged"
    assert dump(here) == before


def test_what_was_undone_is_not_done_again(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d = know("I live in Porto.", "I live in Lisbon.", "I like tea.", "I like green tea.")
    judge(standin, relation("contradicts", b, a, "new"), relation("reinforces", d, c), insights=[insight([b, c, d])])
    run()
    Nexus().undo(NAMESPACE, newest(here))
    before = dump(here, "job_runs", "model_calls", "perspectives")
    assert run("unchanged") == {}  # its facts count as reflected on
    again(here)
    assert run()["facts"] == 4  # even if they did not
    assert dump(here, "job_runs", "model_calls", "perspectives") == before
    [e] = set(know("I live in Faro.", first_day=9)) - {a, b, c, d}
    judge(standin, relation("contradicts", e, b, "new"), insights=[insight([c, d, e])])
    assert (run()["contradictions"], read(here, b)["superseded_by"]) == (1, e)  # what is new is reflected on as ever


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_reflections_are_undone_in_any_order(here: Sandbox, standin: StandIn, order: tuple[int, ...]) -> None:
    """Each is undone as if it had never been made; when all are, everything is as before the first."""
    ids = know(*(f"I like thing {i}." for i in "uvwxyz"))
    here.sql("UPDATE memories SET confidence = 0.2 WHERE id = :i", i=ids[0])  # so that the floor is reached
    before = dump(here, *TRACES)
    scripts = [
        (relation("contradicts", ids[1], ids[0], "both"), relation("reinforces", ids[2], ids[3])),
        (relation("contradicts", ids[2], ids[0], "both"), relation("reinforces", ids[4], ids[3])),
        (relation("contradicts", ids[3], ids[0], "new"), relation("duplicate", ids[5], ids[3])),
    ]
    made = []
    for script in scripts:
        again(here)
        judge(standin, *script)
        run()
        made.append(newest(here))
    assert read(here, ids[0])["confidence"] == 0
    for place in order:
        Nexus().undo(NAMESPACE, made[place])
    assert dump(here, *TRACES) == before


def test_what_stays_is_what_the_other_reflections_would_have_made(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d = know("I live in Porto.", "I live in Lisbon.", "I live in Faro.", "I like Faro.")
    judge(standin, relation("contradicts", b, a, "both"), relation("reinforces", b, c))
    run()
    first = newest(here)
    again(here)
    judge(standin, relation("contradicts", c, a, "both"), relation("reinforces", d, c))
    run()
    validated, concluded = read(here, c)["last_validated_at"], of_reflection(here, newest(here))
    Nexus().undo(NAMESPACE, first)
    assert of_reflection(here, newest(here)) == concluded
    assert read(here, a)["confidence"] == pytest.approx(0.75)
    assert (read(here, c)["times_reinforced"], read(here, c)["last_validated_at"]) == (1, validated)
    assert (read(here, b)["times_reinforced"], read(here, b)["last_validated_at"]) == (0, None)


def test_what_sources_added_since_stays(here: Sandbox, standin: StandIn) -> None:
    """A weakened fact that is said again more surely is as sure as that, whether or not the weakening is undone."""
    a, b = know("I live in Porto.", "I live in Lisbon.")
    judge(
        standin,
        relation("contradicts", b, a, "both"),
    )
    run()
    [(content,)] = here.sql("SELECT content FROM memories WHERE id = :i", i=a)
    standin.answer(
        "derive",
        lambda call: {
            "observations": [
                {
                    "subject": "ann",
                    "content": content,
                    "category": "fact",
                    "confidence": 0.95,
                    "sources": [int(call.parts[0].splitlines()[-2].split("]")[0].strip("["))],
                    "occurred_at": None,
                    "labels": [],
                }
            ]
        },
    )
    say({"content": "As I said.", "author": "ann", "occurred_at": day(5)}, session="later")
    work("derive_memory")
    assert (read(here, a)["confidence"], read(here, a)["times_reinforced"]) == (0.95, 1)
    validated = read(here, a)["last_validated_at"]
    Nexus().undo(NAMESPACE, newest(here))
    assert (read(here, a)["confidence"], read(here, a)["times_reinforced"]) == (0.95, 1)
    assert read(here, a)["last_validated_at"] == validated


def test_what_was_said_again_since_refuses_the_undo(here: Sandbox, standin: StandIn) -> None:
    """The superseded fact cannot come back beside the one that says the same now."""
    a, b = know("I live in Porto.", "I live in Lisbon.")
    judge(standin, relation("contradicts", b, a, "new"))
    run()
    [c] = set(know("I live in Porto!", first_day=9)) - {b}
    before = dump(here)
    with pytest.raises(UndoRefused, match=rf"m{a} \(m{c} says the same\)"):
        Nexus().undo(NAMESPACE, newest(here))
    assert dump(here) == before
    here.sql("DELETE FROM memories WHERE id = :i", i=c)
    assert Nexus().undo(NAMESPACE, newest(here)).status == "undone"
    assert {fact.id for fact in facts()} == {a, b}


def test_what_rests_on_a_conclusion_refuses_the_undo(here: Sandbox, standin: StandIn) -> None:
    a, b, c = know("I like tea.", "I like green tea.", "I run.")
    judge(standin, insights=[insight([a, b, c])])
    run()
    [(conclusion,)] = here.sql("SELECT id FROM memories WHERE level = 'derived'")
    here.sql(
        "INSERT INTO evidence (memory_id, source_id, role, namespace_id) VALUES (:c, :s, 'insight_support', 1)",
        c=c,
        s=conclusion,
    )
    with pytest.raises(UndoRefused, match=f"build on reflection .*: m{c}"):
        Nexus().undo(NAMESPACE, newest(here))


def test_what_does_not_exist_cannot_be_undone(here: Sandbox, standin: StandIn) -> None:
    a, b = know("I live in Porto.", "I live in Lisbon.")
    judge(standin, relation("contradicts", b, a, "new"))
    run()
    Nexus().create_namespace("other")
    for name, reflection in (("other", newest(here)), (NAMESPACE, 10**6), (NAMESPACE, 10**30), (NAMESPACE, "x\x00")):
        with pytest.raises((NotFound, InvalidInput)):
            Nexus().undo(name, reflection)
    assert read(here, a)["valid_to"] is not None


def test_a_reflection_that_changes_nothing_is_none(here: Sandbox, standin: StandIn) -> None:
    know("I live in Porto.", "I live in Lisbon.")
    judge(standin)
    run()
    assert here.sql("SELECT * FROM reflections") == []


def test_a_memory_names_the_reflection_that_made_it(here: Sandbox, standin: StandIn) -> None:
    a, b = know("I live in Porto.", "I live in Lisbon.")
    judge(standin, relation("contradicts", b, a, "new"))
    run()
    [made] = Nexus().memories(NAMESPACE, levels=["contradiction"])
    assert made.reflection == newest(here)
    assert Nexus().memory(NAMESPACE, a).reflection is None


def test_an_erased_fact_does_not_stop_the_undo(here: Sandbox, standin: StandIn) -> None:
    a, b, c = know("I live in Porto.", "I live in Lisbon.", "I like tea.")
    judge(standin, relation("contradicts", b, a, "new"), relation("reinforces", c, b))
    run()
    here.sql("DELETE FROM memories WHERE id = :i", i=b)
    undone = Nexus().undo(NAMESPACE, newest(here))
    assert (undone.revived, undone.restored) == ((a,), (a, c))
    assert {fact.id for fact in facts()} == {a, c}


# --- erasures and order -----------------------------------------------------------------------------------------------
def erase(here: Sandbox, fact: int) -> None:
    """Erase the message that says a fact."""
    [(source,)] = here.sql("SELECT source_id FROM evidence WHERE memory_id = :i AND role = 'derived_from'", i=fact)
    Nexus().forget(NAMESPACE, memory_id=source)


def reflect(here: Sandbox, standin: StandIn, *relations: dict[str, Any], **more: Any) -> int:
    """Reflect on everything with this answer; returns the reflection's number."""
    again(here)
    judge(standin, *relations, **more)
    run()
    return newest(here)


def test_a_fact_that_another_reflection_has_ended_since_stays_ended(here: Sandbox, standin: StandIn) -> None:
    """Its first successor was erased, so that it held again, and was superseded again."""
    a, b, c = know("I live in Porto.", "I live in Lisbon.", "I live in Faro.")
    first = reflect(here, standin, relation("contradicts", b, a, "new"))
    erase(here, b)
    assert read(here, a)["valid_to"] is None
    second = reflect(here, standin, relation("contradicts", c, a, "new"))
    ended = read(here, a)["valid_to"]
    assert Nexus().undo(NAMESPACE, first).revived == ()
    assert (read(here, a)["superseded_by"], read(here, a)["valid_to"]) == (c, ended)
    assert {fact.id for fact in facts()} == {c}
    assert Nexus().undo(NAMESPACE, second).revived == (a,)
    assert {fact.id for fact in facts()} == {a, c}


def test_a_contradiction_holds_again_only_when_one_of_its_facts_does(here: Sandbox, standin: StandIn) -> None:
    a, b, c, d = know("I like tea.", "I like green tea.", "I like coffee now.", "I like water now.")
    reflect(here, standin, relation("contradicts", b, a, "both"))
    [(told,)] = here.sql("SELECT id FROM memories WHERE level = 'contradiction'")
    first = reflect(here, standin, relation("contradicts", c, a, "new"))
    second = reflect(here, standin, relation("contradicts", d, b, "new"))
    assert read(here, told)["superseded_by"] == d
    assert set(Nexus().undo(NAMESPACE, first).revived) == {a, told}
    third = reflect(here, standin, relation("contradicts", d, a, "new"))
    assert read(here, told)["superseded_by"] == d
    assert set(Nexus().undo(NAMESPACE, second).revived) == {b, told}
    assert set(Nexus().undo(NAMESPACE, third).revived) == {a}
    assert read(here, told)["valid_to"] is None


@pytest.mark.parametrize("how", ["undone", "erased"])
def test_an_insight_holds_again_when_three_of_its_facts_do(here: Sandbox, standin: StandIn, how: str) -> None:
    a, b, c, d, e = know("I run.", "I swim.", "I climb.", "I do not run any more.", "I gave up swimming.")
    reflect(here, standin, insights=[insight([a, b, c])])
    [(concluded,)] = here.sql("SELECT id FROM memories WHERE level = 'derived'")
    first = reflect(here, standin, relation("contradicts", d, a, "new"))
    second = reflect(here, standin, relation("contradicts", e, b, "new"))
    assert read(here, concluded)["superseded_by"] == d
    if how == "undone":
        Nexus().undo(NAMESPACE, first)
    else:
        erase(here, d)
    assert read(here, concluded)["superseded_by"] == e, "two of its facts hold"
    assert read(here, concluded)["valid_to"] is not None
    if how == "undone":
        Nexus().undo(NAMESPACE, second)
    else:
        erase(here, e)
    assert (read(here, concluded)["valid_to"], read(here, concluded)["superseded_by"]) == (None, None)


# --- merges -----------------------------------------------------------------------------------------------------------
def messages_of(here: Sandbox, fact: int) -> list[int]:
    """The messages that a fact rests on."""
    edges = "SELECT source_id FROM evidence WHERE memory_id = :i AND role = 'derived_from' ORDER BY 1"
    return [source for (source,) in here.sql(edges, i=fact)]


@pytest.mark.parametrize("first", [0, 1], ids=["the first merge first", "the second merge first"])
def test_merges_of_merged_facts_are_undone_in_any_order(here: Sandbox, standin: StandIn, first: int) -> None:
    """Before, a fact kept the messages of a fact that an undone merge had given to the one merged into it."""
    a, b, c = know(*(f"I like thing {i}." for i in "xyz"))
    Nexus().pin(NAMESPACE, c)  # so that it stays when it is merged with an earlier fact
    before = dump(here, *TRACES)
    own = {fact: messages_of(here, fact) for fact in (a, b, c)}
    numbers = [reflect(here, standin, relation("duplicate", b, a)), reflect(here, standin, relation("duplicate", c, a))]
    assert messages_of(here, c) == [*own[a], *own[b], *own[c]]
    assert (read(here, c)["times_reinforced"], [fact.id for fact in facts()]) == (2, [c])
    Nexus().undo(NAMESPACE, numbers[first])
    if first == 0:
        assert messages_of(here, c) == [*own[a], *own[c]]
        assert (read(here, c)["times_reinforced"], [fact.id for fact in facts()]) == (1, [b, c])
    else:
        assert messages_of(here, a) == [*own[a], *own[b]]
        assert (read(here, a)["times_reinforced"], [fact.id for fact in facts()]) == (1, [a, c])
    Nexus().undo(NAMESPACE, numbers[1 - first])
    assert dump(here, *TRACES) == before


def test_a_merge_is_undone_after_its_message_was_erased(here: Sandbox, standin: StandIn) -> None:
    """Before, the fact that stayed kept the time at which the undone reflection had confirmed it."""
    a, b = know("I like thing x.", "I like thing y.")
    number = reflect(here, standin, relation("duplicate", b, a))
    erase(here, b)
    work("derive_memory")
    assert read(here, a)["last_validated_at"] is not None
    Nexus().undo(NAMESPACE, number)
    assert (read(here, a)["times_reinforced"], read(here, a)["last_validated_at"]) == (0, None)


def test_what_is_erased_while_an_undo_waits_cannot_be_undone(
    here: Sandbox, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the raw error of a row that is missing was raised."""
    a, b = know("I live in Porto.", "I live in Lisbon.")
    number = reflect(here, standin, relation("contradicts", b, a, "new"))
    lock = perspectives.lock

    def erase_first(*arguments: Any) -> Any:
        here.sql("DELETE FROM perspectives")
        return lock(*arguments)

    monkeypatch.setattr(perspectives, "lock", erase_first)
    with pytest.raises(NotFound, match=f"no reflection {number}"):
        Nexus().undo(NAMESPACE, number)
    assert here.sql("SELECT count(*) FROM perspectives") == [(0,)]


def test_a_refused_undo_names_the_reflection_that_is_in_the_way(here: Sandbox, standin: StandIn) -> None:
    """Before, it named `nexus memories show`, which shows no reflection of a fact that a message says."""
    [porto] = know("I live in Porto.")
    right = Nexus().revise(NAMESPACE, porto, "I live in Lisbon.", author="ann")
    [centre] = set(know("I live in the centre of Lisbon.", first_day=9)) - {right.id}
    number = reflect(here, standin, relation("reinforces", centre, right.id))
    with pytest.raises(UndoRefused, match=rf"m{centre} \(reflection {number}\)"):
        Nexus().undo(NAMESPACE, right.reflection or 0)
    Nexus().undo(NAMESPACE, number)
    assert Nexus().undo(NAMESPACE, right.reflection or 0).revived == (porto,)


def test_an_insight_ends_with_the_fact_into_which_its_fact_was_merged_twice(here: Sandbox, standin: StandIn) -> None:
    """Before, it ended only with a fact into which its own fact was merged directly."""
    a, b, c, d, e, f = know("I run.", "I swim.", "I climb.", "I jog.", "I am a runner.", "I do not run any more.")
    reflect(here, standin, insights=[insight([a, b, c])])
    [(concluded,)] = here.sql("SELECT id FROM memories WHERE level = 'derived'")
    for kept, other in ((d, a), (e, d)):
        Nexus().pin(NAMESPACE, kept)  # so that it is the one that stays
        reflect(here, standin, relation("duplicate", kept, other))
        Nexus().unpin(NAMESPACE, kept)
    assert read(here, concluded)["valid_to"] is None
    number = reflect(here, standin, relation("contradicts", f, e, "new"))
    assert read(here, concluded)["superseded_by"] == f
    assert concluded in Nexus().undo(NAMESPACE, number).revived
