"""digest_session: when a session is digested, from what, and which digest stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from nexus_tasks import Nexus, digest_session, limits
from nexus_tasks.cognition import derive, digest
from nexus_tasks.cognition.digest import digest_session as digest_job
from nexus_tasks.cognition.digest import window
from nexus_tasks.deployment import default_deployment
from nexus_tasks.storage import sessions
from tests.integration.inline import NAMESPACE, dump, job_context, pending, say, time_passes, waiting, work
from tests.sandbox import Sandbox, eventually
from tests.standin import Call, StandIn, faults
from tests.standin.answers import TOLD

Claude = Callable[..., Sandbox]


def ask(reason: str = "rollover", session: str = "chat") -> str:
    """Run one digest job; returns its status."""
    job = digest_session.delay(namespace=NAMESPACE, session_key=session, reason=reason)
    work("digest_session")
    return job.wait(60).status


def calls(standin: StandIn) -> list[Call]:
    """The digest calls."""
    return [call for call in standin.counters.requests if call.purpose == "digest"]


def shown(call: Call) -> list[str]:
    """What the lines of a digest call say."""
    return [line["text"] for line in TOLD.finditer(call.parts[0].partition("<transcript>\n")[2])]


def standing(here: Sandbox) -> list[tuple[Any, ...]]:
    """The digests that hold now: kind, text, end, generation."""
    return here.sql(
        "SELECT d.kind, m.content, d.end_seq, d.generation FROM session_digests d JOIN memories m ON m.id = d.memory_id"
        " WHERE m.valid_to IS NULL ORDER BY d.session_id, d.kind"
    )


def tells(standin: StandIn, short: str, long: str) -> None:
    """Script the answer to every digest from now on."""
    standin.answer("digest", lambda _: {"short": short, "long": long})


# --- when -------------------------------------------------------------------------------------------------------------
def test_a_rollover_digests_at_eight_new_messages_or_600_new_tokens(claude: Claude, standin: StandIn) -> None:
    claude()
    say("The first one.")
    assert ask() == "completed"  # there is no digest yet
    for i in range(7):
        say(f"Number {i}.")
    assert ask() == "skipped"
    say("Number 7.")
    assert ask() == "completed"
    say("x" * 4 * 599)
    assert ask() == "skipped"
    say("four")
    assert ask() == "completed"
    assert ask() == "skipped"
    assert len(calls(standin)) == 3


@pytest.mark.parametrize("reason", ["session_end", "manual_digest", "dream_digest"])
def test_a_forced_digest_needs_only_something_new(claude: Claude, standin: StandIn, reason: str) -> None:
    claude()
    say("The first one.")
    assert ask() == "completed"
    assert ask(reason) == "unchanged"
    assert len(calls(standin)) == 1
    say("The second one.")
    assert ask("rollover") == "skipped"
    assert ask(reason) == "completed"
    assert len(calls(standin)) == 2


@pytest.mark.parametrize("reason", ["rollover", "session_end", "manual_rebuild"])
def test_without_messages_there_is_nothing_to_digest(claude: Claude, standin: StandIn, reason: str) -> None:
    claude()
    Nexus().ingest(NAMESPACE, "chat", [])
    assert ask(reason) == "empty"
    assert ask(reason, session="nowhere") == "gone"
    assert calls(standin) == []


def test_facts_stored_later_are_nothing_new(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say(*(f"Number {i}." for i in range(9)))
    assert ask("manual_digest") == "completed"
    work("derive_memory")
    assert ask("manual_digest") == "unchanged"
    assert ask() == "skipped"
    assert len(standing(here)) == 2
    assert len(calls(standin)) == 1


def test_of_two_batches_that_end_together_one_asks_for_the_digest(
    claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to commit does not see what the other has not stored yet: the last to commit looks again."""
    claude()
    ids = say(*(f"Number {i}." for i in range(8)))
    take_turn, due = derive.perspectives.take_turn, []

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(derive.perspectives, "take_turn", take_turn)
        due.append(derive.derive(default_deployment().resources, job_context(), "assistant", ids[4:])[1].digest)
        return take_turn(*args)

    monkeypatch.setattr(derive.perspectives, "take_turn", overtaken)
    due.append(derive.derive(default_deployment().resources, job_context(), "assistant", ids[:4])[1].digest)
    assert [digest and digest.reason for digest in due] == [None, "rollover"]


def test_a_digest_that_was_asked_for_is_made_though_redis_forgot_why(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")
    ask()
    say("The second one.", end=True)
    here.flush()
    assert ask("rollover") == "completed"  # as reconcile asks for it: without a reason of its own
    assert here.sql("SELECT * FROM digest_requests") == []
    Nexus().digest(NAMESPACE, "chat", rebuild=True)
    here.flush()
    assert ask("rollover") == "completed"
    assert [generation for *_, generation in standing(here)] == [1, 1]
    assert len(calls(standin)) == 3


def test_a_request_that_comes_during_the_run_is_answered_by_a_run_after_it(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")

    def meanwhile(call: Call) -> Any:
        if len(calls(standin)) == 1:
            say("The second one.")
            Nexus().digest(NAMESPACE, "chat")
        return {"short": f"{len(shown(call))} lines", "long": " ".join(shown(call))}

    standin.answer("digest", meanwhile)
    Nexus().digest(NAMESPACE, "chat")
    work("digest_session")
    assert standing(here) == [("long", "The second one.", 2, 0), ("short", "1 lines", 2, 0)]
    assert here.sql("SELECT * FROM digest_requests") == []
    assert (pending(), waiting()) == ([c for c in pending() if c.kind != "digest_session"], [])


def test_an_end_during_the_first_look_of_a_run_is_answered_by_a_run_after_it(
    claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message and an end of its session, committed after the run has read the session and before the run reads the
    requests. The process of the end may die before it claims the job. So the request itself must stay.
    """
    here = claude()
    say("The first one.")
    assert ask("manual_digest") == "completed"
    look, blocked = digest_job.digest_requests.pending, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as process:
        ends = list[Future[object]]()

        def meanwhile(*given: Any) -> Any:
            if not ends:
                ends.append(process.submit(say, "The second one.", end=True))
                eventually(lambda: ends[0].done() or here.sql(blocked))
            return look(*given)

        monkeypatch.setattr(digest_job.digest_requests, "pending", meanwhile)
        outcome, _ = digest.digest(default_deployment().resources, job_context(), "chat", force=True, rebuild=False)
        ends[0].result(60)
    assert outcome.status == "unchanged"
    assert here.sql("SELECT reason FROM digest_requests") == [("session_end",)]


# --- from what --------------------------------------------------------------------------------------------------------
def test_the_window_moves_on(claude: Claude, standin: StandIn) -> None:
    """Each digest is made from the one before it and what was said since, never from the beginning again."""
    here = claude()
    for round_ in range(4):
        tells(standin, f"Short {round_}.", f"Long {round_}.")
        say(*(f"Round {round_}, number {i}." for i in range(8)))
        assert ask() == "completed"
    assert [len(shown(call)) for call in calls(standin)] == [8] * 4
    for round_, call in enumerate(calls(standin)):
        assert all(line.startswith(f"Round {round_},") for line in shown(call))
        previous = call.parts[0].partition("<previous>\n")[2].partition("\n</previous>")[0]
        assert previous == ("none" if round_ == 0 else f"Long {round_ - 1}.")
    assert standing(here) == [("long", "Long 3.", 32, 0), ("short", "Short 3.", 32, 0)]


@pytest.mark.parametrize("reason", ["session_end", "manual_rebuild", "dream_digest"])
def test_a_long_session_is_digested_in_parts(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(window, "MOST_MESSAGES", 10, raising=False)
    here = claude()
    ids = say(*(f"Number {i}." for i in range(23)), session="chat")
    Nexus().forget(NAMESPACE, memory_id=ids[4])  # a gap in the numbers
    here.sql("DELETE FROM digest_requests")
    told: list[str] = []

    def answer(_call: Call) -> dict[str, str]:
        told.append(f"Part {len(told)}.")
        return {"short": told[-1], "long": told[-1]}

    standin.answer("digest", answer)
    job = digest_session.delay(namespace=NAMESPACE, session_key="chat", reason=reason)
    work("digest_session")
    job.wait(60)
    assert [shown(call) for call in calls(standin)] == [
        [f"Number {i}." for i in part if i != 4] for part in (range(11), range(11, 21), range(21, 23))
    ]
    generation = int(reason == "manual_rebuild")
    assert standing(here) == [(kind, "Part 2.", 23, generation) for kind in ("long", "short")]
    assert here.sql("SELECT * FROM digest_requests") == []
    [(most,)] = here.sql(
        "SELECT max(number) FROM (SELECT count(*) AS number FROM evidence WHERE role = 'digested_from'"
        " GROUP BY memory_id) AS each"
    )
    assert most <= 12  # the messages of a part, and the digests before


def test_a_digest_reads_a_bounded_number_of_bytes(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the texts of 2,000 messages were read, which may have 1,000,000 characters each."""
    here = claude()
    say(*(f"Number {i}." for i in range(10)), f"A long one: {'x' * 50}.", "The end.")
    monkeypatch.setattr(limits, "ANSWER_BYTES", 4 * len("Number 0."))
    assert ask("session_end") == "completed"
    parts = [shown(call) for call in calls(standin)]
    assert [len(part) for part in parts] == [4, 4, 2, 1, 1]
    assert [len(one) for one in parts[3]] == [63]
    assert {row[2] for row in standing(here)} == {12}
    assert here.sql("SELECT * FROM digest_requests") == []


def test_the_rest_of_a_long_session_is_digested_after_a_crash(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends after its commit, before it has asked for the rest: the stored request asks."""
    monkeypatch.setattr(window, "MOST_MESSAGES", 10, raising=False)
    here = claude()
    say(*(f"Number {i}." for i in range(12)))
    digest.digest(default_deployment().resources, job_context(), "chat", force=True, rebuild=True)
    assert [row[2:] for row in standing(here)] == [(10, 1), (10, 1)]
    assert here.sql("SELECT reason FROM digest_requests WHERE NOT dead") == [("manual_digest",)]
    assert ask() == "completed"
    assert [row[2:] for row in standing(here)] == [(12, 1), (12, 1)]
    assert shown(calls(standin)[-1]) == ["Number 10.", "Number 11."]
    assert here.sql("SELECT * FROM digest_requests") == []


def test_echoes_alone_do_not_hold_up_the_digest_of_what_follows(
    claude: Claude, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MOST_MESSAGES", 3, raising=False)
    here = claude()
    echo = {"role": "assistant", "content": "[m1] I was told this before."}
    say(*(echo for _ in range(7)), "At last something new.")
    assert ask("manual_digest") == "completed"
    assert shown(calls(standin)[-1]) == ["At last something new."]
    assert [row[2] for row in standing(here)] == [8, 8]


def test_facts_stand_for_the_messages_they_came_from(claude: Claude, standin: StandIn) -> None:
    claude()
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    say("I live in Lisbon.", "Hello.")
    standin.answer(
        "derive",
        lambda _: {
            "observations": [
                {
                    "subject": "ann",
                    "content": "Ann lives in Lisbon.",
                    "category": "fact",
                    "confidence": 0.9,
                    "sources": [1],
                    "occurred_at": None,
                    "labels": [],
                }
            ]
        },
    )
    work("derive_memory")
    say("Not derived yet.")
    say("Never to be derived.", observers=[])
    assert ask("manual_digest") == "completed"
    [call] = calls(standin)
    # Once, though two observers hold it; in the order of the conversation; "Hello." gave no fact and is left out.
    assert shown(call) == ["Ann lives in Lisbon.", "Not derived yet.", "Never to be derived."]


def test_where_nothing_gave_a_fact_the_messages_go_in_as_they_are(claude: Claude, standin: StandIn) -> None:
    claude()
    say("Hello.", "Good morning.")
    standin.answer("derive", lambda _: {"observations": []})
    work("derive_memory")
    ask("manual_digest")
    [call] = calls(standin)
    assert shown(call) == ["Hello.", "Good morning."]


def test_a_long_window_is_digested_in_chunks_and_nothing_is_left_out(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DIGEST_CHUNK_TOKENS="500")
    huge = " ".join(f"huge{i}" for i in range(1_500))
    say(*(f"Message {i} " + "word " * 60 + f"end {i}" for i in range(20)), f"{huge} the very end", "Last.")
    assert ask() == "completed"
    made = calls(standin)
    assert len(made) >= (20 * 300 + len(huge)) / 4 / 500
    whole = "\n".join(call.parts[0] for call in made)
    assert all(f"Message {i} " in whole and f"end {i}" in whole for i in range(20))
    assert sum(f"huge{i} " in whole for i in range(1_500)) >= 1_500 - len(made)  # but for words that were cut through
    assert all(text in whole for text in ("the very end", "Last."))
    for call in made:
        assert len(call.parts[0].partition("<transcript>")[2]) <= 4 * 500 + 200
    assert {before(call) for call in made} == {"none"}  # nobody waits for the chunk before
    assert [row[2] for row in standing(here)] == [22, 22]


def before(call: Call) -> str:
    """The previous digest that a digest call is shown."""
    return call.parts[0].partition("<previous>\n")[2].partition("\n</previous>")[0]


def test_what_the_chunks_told_is_merged_on_top_of_the_previous_digest(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DIGEST_CHUNK_TOKENS="500", NEXUS_DIGEST_SHORT_TOKENS="40")
    say("The first one.")
    tells(standin, "Short 0.", "Long 0.")
    ask("manual_digest")
    say(*(f"Chunk {i}: " + "word " * 350 for i in range(4)))

    def told(call: Call) -> Any:
        [*said] = shown(call)
        number = re.findall(r"Chunk (\d):", call.parts[0])
        return {"short": "", "long": f"Part {number[0]}." if number else " ".join(said)}

    standin.answer("digest", told)
    ask("manual_digest")
    *parts, merged = calls(standin)[1:]
    assert [before(call) for call in parts] == ["none"] * 4
    assert before(merged) == "Long 0."
    assert shown(merged) == [f"Part {i}." for i in range(4)]
    assert "digest: Part 0." in merged.parts[0]
    assert [row[1] for row in standing(here)] == ["Part 0. Part 1. Part 2. Part 3."] * 2
    assert "long within 105 tokens" in parts[0].parts[-1]  # four parts fit into one chunk
    assert "long within 1800 tokens" in merged.parts[-1]


def test_merging_ends_however_long_the_parts_would_be(claude: Claude, standin: StandIn) -> None:
    """With chunks smaller than a digest may be, a model that fills every limit still comes to an end."""
    here = claude(NEXUS_DIGEST_CHUNK_TOKENS="500")
    say(*(f"Message {i}: " + "word " * 350 for i in range(20)))
    tells(standin, "short " * 5_000, "long " * 5_000)
    ask("manual_digest")
    assert len(calls(standin)) < 20 + 20
    assert [len(row[1]) <= limit for row, limit in zip(standing(here), (7_200, 2_400), strict=True)] == [True, True]


def test_chunks_that_tell_nothing_take_nothing_away(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DIGEST_CHUNK_TOKENS="500")
    say("The first one.")
    tells(standin, "Short 0.", "Long 0.")
    ask("manual_digest")
    say(*(f"Chunk {i}: " + "word " * 350 for i in range(4)))
    tells(standin, "", "")
    assert ask("manual_digest") == "completed"
    assert [row[1] for row in standing(here)] == ["Long 0.", "Short 0."]


@pytest.mark.parametrize(
    "fault", [faults.refused(), faults.invalid_json(), faults.prompt_too_long()], ids=["refused", "invalid", "400"]
)
def test_a_message_that_gave_up_does_not_stop_its_session_s_digests(
    claude: Claude, standin: StandIn, fault: Any
) -> None:
    here = claude()
    say("The first one.", "This is POISON.", "The third one.")
    here.sql("UPDATE derivations SET state = 'dead' WHERE memory_id = 2")
    standin.when("POISON", fault)
    assert ask("manual_digest") == "completed"
    assert [shown(call) for call in calls(standin)] == [
        ["The first one.", "This is POISON.", "The third one."],
        ["The first one.", "The third one."],
    ]
    evidence = here.sql("SELECT DISTINCT source_id FROM evidence WHERE role = 'digested_from' ORDER BY 1")
    assert evidence == [(1,), (3,)]
    assert here.sql("SELECT count(*) FROM model_calls") == [(1 if fault.status != 200 else 2,)]


def test_a_message_that_is_erased_before_its_digest_is_stored_makes_the_job_wait(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the job failed with the raw error of a violated constraint."""
    first, _ = say("I live in Lisbon.", "I like green tea.")
    embed, left = digest_job.vectors_of, [first]

    def erasing(*given: Any) -> Any:
        if left:
            Nexus().forget(NAMESPACE, memory_id=left.pop())
        return embed(*given)

    monkeypatch.setattr(digest_job, "vectors_of", erasing)
    Nexus().digest(NAMESPACE, "chat")
    work("digest_session")
    assert "IntegrityError" not in caplog.text
    time_passes(here)
    work("digest_session")
    [[content]] = here.sql("SELECT content FROM memories WHERE level = 'summary_long'")
    assert "tea" in content
    assert "Lisbon" not in content


# --- which stands -----------------------------------------------------------------------------------------------------
def test_digests_stay_within_their_limits(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_DIGEST_SHORT_TOKENS="20", NEXUS_DIGEST_LONG_TOKENS="50")
    say("Hello.")
    tells(standin, "short " * 500, "long\x00 " * 500)
    ask("manual_digest")
    [long, short] = here.sql(
        "SELECT m.content, m.tokens, m.confidence, m.level FROM memories m WHERE level LIKE 'summary%' ORDER BY level"
    )
    assert (len(long[0]), len(short[0])) <= (200, 80)
    assert (long[1], short[1]) <= (50, 20)
    assert [row[2:] for row in (long, short)] == [(0.8, "summary_long"), (0.8, "summary_short")]
    assert long[0].startswith("long long")
    assert "within 20 tokens, long within 50 tokens" in calls(standin)[0].parts[-1]


def test_the_digest_before_is_superseded_and_can_be_read_in_the_past(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")
    tells(standin, "Short 1.", "Long 1.")
    ask("manual_digest")
    between = datetime.now(UTC)
    say("The second one.")
    tells(standin, "Short 2.", "Long 2.")
    ask("manual_digest")
    [now] = Nexus().memories(NAMESPACE, levels=["summary_long"])
    [then] = Nexus().memories(NAMESPACE, levels=["summary_long"], as_of=between)
    assert (now.content, then.content) == ("Long 2.", "Long 1.")
    assert then.superseded_by == now.id
    assert then.valid_to <= now.valid_from
    edges = Nexus().memory(NAMESPACE, now.id).evidence
    assert {(edge.id, edge.role) for edge in edges} >= {(2, "digested_from"), (then.id, "supersedes")}
    assert Nexus().context(NAMESPACE, session_key="chat").text.count("Long") == 1
    assert here.sql("SELECT digest_end_seq, digest_generation FROM sessions") == [(2, 0)]


def test_a_rebuild_starts_from_scratch_as_a_new_generation(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")
    ask("manual_digest")
    say("The second one.")
    ask("manual_digest")
    tells(standin, "Short.", "Long.")
    assert ask("manual_rebuild") == "completed"  # though nothing is new
    assert shown(calls(standin)[-1]) == ["The first one.", "The second one."]
    assert "<previous>\nnone\n" in calls(standin)[-1].parts[0]
    assert standing(here) == [("long", "Long.", 2, 1), ("short", "Short.", 2, 1)]
    say("The third one.")
    ask("manual_digest")
    assert shown(calls(standin)[-1]) == ["The third one."]
    assert [row[2:] for row in standing(here)] == [(3, 1), (3, 1)]


@pytest.mark.parametrize("rebuild", [False, True])
def test_an_older_digest_never_lands_after_a_newer_one(claude: Claude, standin: StandIn, rebuild: bool) -> None:
    """A zombie: its answer comes after another run has digested more, or has rebuilt everything."""
    here = claude()
    say("The first one.")

    def overtaken(_: Call) -> Any:
        if len(calls(standin)) == 1:
            if not rebuild:
                say("The second one.")
            newer, more = digest.digest(
                default_deployment().resources, job_context(), "chat", force=True, rebuild=rebuild
            )
            assert (newer.status, more) == ("completed", False)
            return {"short": "Old.", "long": "Old."}
        return {"short": "New.", "long": "New."}

    standin.answer("digest", overtaken)
    older, _ = digest.digest(default_deployment().resources, job_context(), "chat", force=True, rebuild=False)
    assert older.status == "unchanged"
    assert [row[1] for row in standing(here)] == ["New.", "New."]
    assert here.sql("SELECT count(*) FROM session_digests") == [(2,)]
    assert here.sql("SELECT digest_end_seq FROM sessions") == [(1 if rebuild else 2,)]


def test_a_model_that_tells_nothing_takes_nothing_away(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")
    tells(standin, "", " \n ")
    assert ask("manual_digest") == "empty"
    assert standing(here) == []
    tells(standin, "Short.", "Long.")
    assert ask("manual_digest") == "completed"
    say("The second one.")
    tells(standin, "", "")
    ask("manual_digest")
    assert [row[1] for row in standing(here)] == ["Long.", "Short."]
    say("The third one.")
    tells(standin, "", "Only long.")
    ask("manual_digest")
    assert [row[1] for row in standing(here)] == ["Only long.", "Only long."]


def test_a_session_that_is_erased_meanwhile_is_gone(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say("The first one.")

    def erased(_: Call) -> Any:
        here.sql("DELETE FROM sessions")
        return {"short": "Short.", "long": "Long."}

    standin.answer("digest", erased)
    digest_session.delay(namespace=NAMESPACE, session_key="chat")
    work("digest_session")
    assert here.sql("SELECT * FROM memories") == []
    time_passes(here)  # it starts over with what is left
    assert [done["status"] for done in work("digest_session")] == ["gone"]


def test_every_digest_run_again_changes_nothing(claude: Claude, standin: StandIn) -> None:
    here = claude()
    say(*(f"Number {i}." for i in range(9)), end=True)
    work()
    before = dump(here, "job_runs")
    here.flush()
    for reason in ("rollover", "session_end", "manual_digest", "dream_digest"):
        assert ask(reason) in ("skipped", "unchanged")
        assert dump(here, "job_runs") == before
    assert len(calls(standin)) == 1


@pytest.mark.parametrize("spelled", ["caf\u00e9", "cafe\u0301"])
def test_a_session_is_waited_for_however_its_name_is_spelled(here: Sandbox, spelled: str) -> None:
    say("I moved to Lisbon in March.", session="caf\u00e9")
    [(namespace_id,)] = here.sql("SELECT id FROM namespaces")
    with default_deployment().database.reading() as tx:
        assert sessions.count_underived(tx, namespace_id, spelled) == 1
