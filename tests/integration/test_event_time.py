"""When something happened: kept, in the days of the speaker, and used by filters; and times that cannot be true."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from nexus_tasks import Message, Nexus, reflect_perspective
from nexus_tasks.errors import InvalidInput
from nexus_tasks.storage import messages, namespaces
from tests.integration.inline import NAMESPACE, answers, facts, say, work
from tests.integration.reflecting import judge, read, relation
from tests.integration.reflecting import run as reflect
from tests.sandbox import Sandbox
from tests.standin import StandIn

Claude = Callable[..., Sandbox]
MONDAY = datetime(2026, 3, 2, 22, tzinfo=UTC)


def day(text: str) -> datetime:
    """Midnight of a day, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- event time -------------------------------------------------------------------------------------------------------
def test_the_time_that_an_answer_gives_is_kept_and_searched_by(claude: Claude, standin: StandIn) -> None:
    claude()
    ids = say({"content": "I ran the half marathon last Sunday.", "author": "ann", "occurred_at": MONDAY})
    made = {"sources": ids, "content": "Ann ran the half marathon.", "occurred_at": "2026-02-22"}
    standin.answer("derive", answers(made, {"sources": ids, "content": "Ann swam in the lake in May 2025."}))
    work("derive_memory")
    ran, swam = facts()
    assert (ran.event_from, ran.event_to) == (day("2026-02-22"), day("2026-02-23"))
    assert (ran.event, swam.event) == ("2026-02-22", "2025-05")
    assert ran.valid_from == MONDAY  # since then it is known

    def found(since: str, until: str) -> list[str]:
        hits = Nexus().search(NAMESPACE, "ann ran swam", levels=["explicit"], since=day(since), until=day(until))
        return sorted(hit.content for hit in hits)

    assert found("2026-02-22", "2026-02-23") == ["Ann ran the half marathon."]
    assert found("2026-02-23", "2026-03-09") == []  # what was said then happened before
    assert found("2025-05-20", "2025-05-21") == ["Ann swam in the lake in May 2025."]
    [hit] = Nexus().search(NAMESPACE, "half marathon", levels=["explicit"], limit=1)
    assert (hit.event, hit.to_dict()["event_from"]) == ("2026-02-22", "2026-02-22T00:00:00Z")
    assert "Ann ran the half marathon. (2026-02-22)" in Nexus().context(NAMESPACE).text


def test_offline_too_a_relative_day_is_the_speakers(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    nexus = Nexus()
    nexus.create_namespace(NAMESPACE, time_zone="Asia/Tokyo")
    said = [{"author": "ann", "occurred_at": MONDAY, "content": "I visited the dentist in Osaka yesterday."}]
    nexus.ingest(NAMESPACE, "chat", said)  # Tuesday morning in Tokyo
    lisbon = {**said[0], "time_zone": "Europe/Lisbon", "content": "I visited the museum in Porto yesterday."}
    nexus.ingest(NAMESPACE, "trip", [lisbon])
    offset = {**said[0], "occurred_at": datetime.fromisoformat("2026-03-02T01:00:00-05:00")}
    nexus.ingest(NAMESPACE, "phone", [{**offset, "content": "I visited the bank in Lima yesterday."}])
    work("derive_memory")
    assert {fact.content.split()[3]: fact.event for fact in facts()} == {
        "dentist": "2026-03-02",
        "museum": "2026-03-01",
        "bank": "2026-03-01",
    }
    [dentist] = [fact for fact in facts() if "dentist" in fact.content]
    assert (dentist.event_from, dentist.time_zone) == (datetime(2026, 3, 1, 15, tzinfo=UTC), "Asia/Tokyo")
    assert "2026-03-03 ann: I visited the dentist in Osaka yesterday. (2026-03-02)" in nexus.context(NAMESPACE).text
    assert nexus.namespace(NAMESPACE).time_zone == "Asia/Tokyo"
    for bad in ({"time_zone": "Atlantis/City"}, {"time_zone": ""}):
        with pytest.raises(InvalidInput, match="is no time zone"):
            nexus.set_namespace(NAMESPACE, **bad)
        with pytest.raises(InvalidInput, match="is no time zone"):
            nexus.ingest(NAMESPACE, "chat", [{"content": "Hi.", **bad}])


def test_an_export_keeps_event_times_and_zones(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    Nexus().create_namespace(NAMESPACE, time_zone="Asia/Tokyo")
    say({"content": "I visited the dentist yesterday.", "author": "ann", "occurred_at": MONDAY})
    work("derive_memory")
    file = io.StringIO()
    Nexus().export(NAMESPACE, file)
    file.seek(0)
    Nexus().import_("copy", file)
    [before], [after] = facts(), facts("copy")
    assert (after.event, after.event_from, after.time_zone) == (before.event, before.event_from, before.time_zone)
    assert after.event == "2026-03-02"
    assert Nexus().namespace("copy").time_zone == "Asia/Tokyo"


def test_yesterday_is_another_day_in_the_next_week(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    said = {"content": "I went to the gym yesterday.", "author": "ann"}
    times = (MONDAY, MONDAY - timedelta(hours=1), MONDAY + timedelta(days=7))
    ids = say(*({**said, "occurred_at": when} for when in times))
    work("derive_memory")
    assert [(fact.event, fact.times_reinforced) for fact in facts()] == [("2026-03-01", 1), ("2026-03-08", 0)]
    reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    work("reflect_perspective")
    assert len(facts()) == 2  # two visits are no duplicates
    Nexus().forget(NAMESPACE, memory_id=ids[1])
    work("derive_memory")
    assert [(fact.event, fact.times_reinforced) for fact in facts()] == [("2026-03-01", 0), ("2026-03-08", 0)]


# --- the future -------------------------------------------------------------------------------------------------------
def test_what_is_dated_2099_never_outranks_what_is_said_later(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_REFLECT_MIN_NEW="1000")
    wrong = datetime(2099, 1, 1, tzinfo=UTC)
    say({"content": "I live in Porto.", "author": "ann", "occurred_at": wrong}, session="clock")
    work("derive_memory")
    say({"content": "I live in Lisbon.", "author": "ann"}, session="later")
    work("derive_memory")
    porto, lisbon = (fact.id for fact in facts())
    now = datetime.now(UTC)
    assert {fact.id for fact in facts(as_of=now)} == {porto, lisbon}  # as search says
    assert read(here, porto)["valid_from"] < read(here, lisbon)["valid_from"]
    judge(standin, relation("contradicts", lisbon, porto, "new"))
    reflect()
    for as_of in (None, datetime.now(UTC)):
        hits = Nexus().search(NAMESPACE, "where does ann live", levels=["explicit"], as_of=as_of)
        assert [hit.id for hit in hits] == [lisbon]
    [message] = Nexus().memories(NAMESPACE, levels=["raw"], session_key="clock")
    assert message.claimed_at == wrong
    assert message.occurred_at <= now
    [hit] = Nexus().search(NAMESPACE, "Porto", levels=["raw"], session_key="clock")
    assert hit.claimed_at == wrong


def test_a_clock_that_is_half_a_minute_ahead_is_believed(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    soon = datetime.now(UTC) + timedelta(seconds=30)
    say({"content": "I live in Porto.", "author": "ann", "occurred_at": soon})
    [message] = Nexus().memories(NAMESPACE, levels=["raw"])
    assert (message.occurred_at, message.claimed_at) == (soon, None)


def test_a_buffered_message_of_a_clock_that_was_ahead_counts_as_said_now(here: Sandbox) -> None:
    """The time of the buffering is the time of a message that names none. Before, it stayed in the future."""
    ahead = datetime.now(UTC) + timedelta(days=3)
    with here.deployment.database.transaction() as tx:
        known = namespaces.ensure(tx, NAMESPACE)
        messages.store(tx, known.id, "chat", [Message(content="I live in Porto.", author="ann")], [], now=ahead)
    [message] = Nexus().memories(NAMESPACE, levels=["raw"])
    assert message.occurred_at <= datetime.now(UTC)
    assert message.claimed_at == ahead


# --- digests ----------------------------------------------------------------------------------------------------------
def test_a_digest_is_dated_by_what_it_covers(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    nexus = Nexus()
    for week in range(2):
        when = MONDAY + timedelta(weeks=week)
        say({"content": f"I planted {week + 3} apple trees.", "author": "ann", "occurred_at": when})
        work("derive_memory")
        nexus.digest(NAMESPACE, "chat")
        work("digest_session")
    first_week = {"since": MONDAY - timedelta(days=1), "until": MONDAY + timedelta(days=1)}
    assert nexus.search(NAMESPACE, "apple trees", levels=["summary_short"], **first_week)
    assert not nexus.search(NAMESPACE, "apple trees", levels=["summary_short"], until=MONDAY)
    assert not nexus.search(NAMESPACE, "apple trees", levels=["summary_short"], since=MONDAY + timedelta(days=8))

    def told(as_of: datetime) -> list[str]:
        return [one.content for one in nexus.memories(NAMESPACE, levels=["summary_short"], as_of=as_of)]

    assert told(MONDAY - timedelta(hours=1)) == []
    assert told(MONDAY + timedelta(days=3)) == ["ann: I planted 3 apple trees."]
    assert told(MONDAY + timedelta(days=8)) == told(datetime.now(UTC))
    assert "4 apple trees" in told(datetime.now(UTC))[0]
    [now] = nexus.memories(NAMESPACE, levels=["summary_short"])
    assert json.loads(json.dumps(now.to_dict()))["event_from"] == "2026-03-02T22:00:00Z"
    assert now.occurred_at == MONDAY + timedelta(weeks=1)
