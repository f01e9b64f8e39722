"""Extraction after a turn: gates, cursors, what is skipped, and that nothing stalls or repeats."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cli.consolidation import extraction_line
from nexus_tasks.cognition.extraction import batch
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.storage import messages, topics
from nexus_tasks.storage.engine import _SETTINGS
from nexus_tasks.storage.erasure import context
from nexus_tasks.storage.erasure import topics as erased_topics
from nexus_tasks.storage.models import Memory
from nexus_tasks.types import JobOutcome
from tests.integration.inline import NAMESPACE, facts, pending, say, time_passes, waiting, work
from tests.integration.test_forget import traces
from tests.sandbox import Sandbox, engine
from tests.standin import Call, StandIn, faults

KIND = "extract_session"


def turns(count: int, start: int = 1) -> list[dict[str, Any]]:
    """Messages of ann that say a thing each, with ids."""
    return [
        {"content": f"Thing {n} is on shelf {n}.", "author": "ann", "id": f"t{n}"} for n in range(start, start + count)
    ]


def tool(call_id: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    call = {"id": call_id, "name": name, "input": given}
    return {"role": "assistant", "content": f"Uses {name}.", "tool_calls": [call], "id": f"call-{call_id}"}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "author": "tool", "content": "Done.", "tool_calls": [{"result_of": call_id}], "id": call_id}


def extract() -> list[dict[str, Any]]:
    """Ask for an extraction of the session ``chat`` and run it; the outcomes."""
    Nexus().extract(NAMESPACE, "chat")
    return work(KIND)


def topic(content: str, filename: str = "things.md", **fields: Any) -> dict[str, Any]:
    made = {"filename": filename, "name": "Things", "description": "Where.", "type": "project", "content": content}
    return made | fields


def fact(content: str, *sources: int, category: str = "project", confidence: Any = 8) -> dict[str, Any]:
    return {"category": category, "confidence": confidence, "content": content, "sources": list(sources)}


def asked(standin: StandIn, purpose: str) -> list[Call]:
    return [call for call in standin.counters.requests if call.purpose == purpose]


def cursors(here: Sandbox) -> tuple[int, int, str]:
    [row] = here.sql("SELECT topics_through_seq, facts_through_seq, state FROM extractions")
    return row  # type: ignore[no-any-return]


@pytest.fixture
def ours(claude: Callable[..., Sandbox]) -> Sandbox:
    return claude()


# --- gates and cursors ------------------------------------------------------------------------------------------------
def test_the_gates_open_at_four_messages_and_at_twenty(ours: Sandbox, standin: StandIn) -> None:
    say(*turns(3))
    assert [one["status"] for one in extract()] == ["skipped"]
    assert (standin.counters.calls, cursors(ours)) == (0, (0, 0, "idle"))
    say(*turns(1, 4))
    assert [one["status"] for one in extract()] == ["completed"]
    assert cursors(ours) == (4, 0, "idle")
    say(*turns(15, 5))
    extract()
    assert cursors(ours) == (19, 0, "idle")
    say(*turns(1, 20))
    extract()
    assert cursors(ours) == (19, 20, "idle")
    assert [len(asked(standin, purpose)) for purpose in ("topics", "facts")] == [2, 1]


def test_after_the_first_time_facts_wait_for_three_calls_or_twenty_messages(ours: Sandbox) -> None:
    say(*turns(20))
    extract()
    say(*turns(19, 21))
    extract()
    assert cursors(ours)[1] == 20
    say(*turns(1, 40))
    extract()
    assert cursors(ours)[1] == 40
    say(tool("a"), result("a"), tool("b"), result("b"))
    extract()
    assert cursors(ours)[1] == 40
    say(tool("c"), result("c"))
    extract()
    assert cursors(ours)[1] == 46


def test_each_message_is_shown_once_to_each_extractor(ours: Sandbox, standin: StandIn) -> None:
    for start in range(1, 60, 10):
        say(*turns(10, start))
        extract()
    for purpose in ("topics", "facts"):
        shown = "\n".join(call.parts[0].partition("</topics>")[2] or call.parts[0] for call in asked(standin, purpose))
        assert [n for n in range(1, 41) if shown.count(f"Thing {n} is") != 1] == []
    assert cursors(ours)[0] == 60


def test_a_long_session_is_read_in_batches(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    here = claude(NEXUS_EXTRACT_BATCH_TOKENS="100")
    say(*turns(50))
    extract()
    assert cursors(here)[0] >= 47
    calls = asked(standin, "topics")
    assert len(calls) > 2
    assert all(call.text.partition("</topics>")[2].count("Thing") <= 20 for call in calls)
    kept = Nexus().topic(NAMESPACE, "conversation.md").content
    assert [n for n in range(1, 47) if f"Thing {n} is" not in kept] == []


def test_a_session_is_read_a_part_at_a_time(ours: Sandbox, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each batch read all messages behind the cursor."""
    real, longest = messages.bounded, list[int]()

    def watched(*args: Any, **named: Any) -> tuple[Sequence[Memory], bool]:
        found, more = real(*args, **named)
        longest.append(len(found))
        return found, more

    monkeypatch.setattr(messages, "bounded", watched)
    monkeypatch.setattr(batch, "MOST_READ", 6)
    said = [{"role": "system", "content": f"Rule {n}.", "id": f"s{n}"} for n in range(8)]
    say(*turns(20), *said, *turns(20, 21), end=True)
    extract()
    assert max(longest) == 6
    for purpose in ("topics", "facts"):
        shown = "\n".join(call.parts[0].partition("</topics>")[2] or call.parts[0] for call in asked(standin, purpose))
        assert [n for n in range(1, 41) if shown.count(f"Thing {n} is") != 1] == []
    assert cursors(ours)[:2] == (48, 48)


@pytest.mark.long
def test_a_conversation_compacted_between_two_extractions_neither_stalls_nor_repeats(
    ours: Sandbox, standin: StandIn
) -> None:
    """The agent's own list becomes shorter, and begins anew; what is stored keeps its numbers."""
    ids = say(*turns(30))
    extract()
    assert cursors(ours) == (30, 30, "idle")
    for gone in ids[:25]:
        Nexus().forget(NAMESPACE, memory_id=gone)
    ours.sql("UPDATE extractions SET topics_through_seq = 30, facts_through_seq = 30, state = 'idle'")
    standin.counters.requests.clear()
    say(*turns(5, 26), *turns(4, 31))  # told again after the compaction: the last ones, then new ones
    extract()
    [call] = asked(standin, "topics")
    assert [n for n in range(1, 40) if f"Thing {n} is" in call.parts[0].partition("</topics>")[2]] == [31, 32, 33, 34]
    assert cursors(ours) == (34, 30, "idle")


@pytest.mark.parametrize("bad", ["invalid", "no JSON"])
def test_a_failed_answer_leaves_the_cursor_of_its_extractor_only(ours: Sandbox, standin: StandIn, bad: str) -> None:
    say(*turns(20))
    if bad == "invalid":
        standin.answer("topics", lambda _: {"topics": [{"filename": "x.md"}]})
    else:
        standin.answer("topics", lambda _: "no JSON at all")
    extract()
    assert cursors(ours) == (0, 20, "wanted")
    assert Nexus().topics(NAMESPACE) == []
    assert len(facts()) == 20
    standin.answer("topics", lambda _: {"topics": [topic("- All things.")]})
    time_passes(ours)
    assert [one["status"] for one in work(KIND)] == ["completed"]
    assert cursors(ours) == (20, 20, "idle")
    assert len(asked(standin, "facts")) == 1


def test_one_that_keeps_failing_is_a_dead_letter_and_a_retry_goes_on(ours: Sandbox, standin: StandIn) -> None:
    say(*turns(4))
    standin.answer("topics", lambda _: {"topics": [{"filename": "x.md"}]})
    extract()
    for _ in range(6):
        time_passes(ours)
        work(KIND)
    assert cursors(ours) == (0, 0, "dead")
    [letter] = [one for one in Nexus().jobs(namespace=NAMESPACE, status="dead") if one.kind == KIND]
    standin.answer("topics", lambda _: {"topics": [topic("- All things.")]})
    Nexus().retry_job(letter.id)
    work(KIND)
    assert cursors(ours) == (4, 0, "idle")


def test_what_is_wanted_survives_a_flush_of_redis(ours: Sandbox) -> None:
    say(*turns(4))
    Nexus().extract(NAMESPACE, "chat")
    ours.flush()
    assert pending() == []
    Reconciler(engine).round()
    assert [one["status"] for one in work(KIND)] == ["completed"]
    assert cursors(ours) == (4, 0, "idle")


def test_a_request_during_a_run_becomes_one_rerun(ours: Sandbox, standin: StandIn) -> None:
    say(*turns(4))

    def meanwhile(_: Call) -> Any:
        if len(asked(standin, "topics")) == 1:
            say(*turns(4, 5))
            for _ in range(3):
                Nexus().extract(NAMESPACE, "chat")
        return {"topics": []}

    standin.answer("topics", meanwhile)
    extract()
    assert cursors(ours)[0] == 8
    assert [claim for claim in [*pending(), *waiting()] if claim.kind == KIND] == []


# --- what is left out -------------------------------------------------------------------------------------------------
def test_while_a_tool_has_not_answered_nothing_is_read_and_the_next_message_asks_again(ours: Sandbox) -> None:
    say(*turns(4), tool("a", command="make test"))
    [done] = extract()
    assert (done["status"], done["why"]) == ("skipped", "a tool has not answered yet")
    assert cursors(ours) == (0, 0, "held")
    say(result("a"))
    assert cursors(ours)[2] == "wanted"
    work(KIND)
    assert cursors(ours) == (6, 0, "idle")


def test_a_session_that_ends_in_a_tool_call_is_extracted_whole(ours: Sandbox) -> None:
    say(*turns(4), tool("a", command="make test"))
    assert [one["status"] for one in extract()] == ["skipped"]
    assert cursors(ours) == (0, 0, "held")
    say(end=True)
    assert [one["status"] for one in work(KIND)] == ["completed"]
    assert cursors(ours) == (5, 5, "idle")
    say(tool("b", command="make test"), *turns(4, 5), tool("c", command="make test"))  # the session goes on
    assert [one["why"] for one in extract()] == ["a tool has not answered yet"]


def test_the_last_turns_of_a_session_are_extracted_at_its_end(ours: Sandbox, standin: StandIn) -> None:
    """Nothing follows them that could open a gate."""
    say(*turns(1))
    assert [one["status"] for one in extract()] == ["skipped"]
    say(end=True)
    assert [one["status"] for one in work(KIND)] == ["completed"]
    assert cursors(ours) == (1, 1, "idle")
    assert [len(asked(standin, purpose)) for purpose in ("topics", "facts")] == [1, 1]
    say(*turns(1, 2))  # the session goes on
    assert [one["status"] for one in extract()] == ["skipped"]
    say(*turns(19, 3), end=True)
    work(KIND)
    assert cursors(ours) == (21, 21, "idle")
    standin.counters.requests.clear()
    say(end=True)
    extract()
    assert not standin.counters.requests  # nothing is new


@pytest.mark.parametrize("said", ["  .  ", "OK, thanks!", "Hello"])
def test_an_ended_session_in_which_no_person_says_anything_is_skipped(
    ours: Sandbox, standin: StandIn, said: str
) -> None:
    say({"content": said, "author": "ann"}, {"content": "You are welcome.", "role": "assistant"}, result("a"), end=True)
    [done] = extract()
    assert (done["status"], standin.counters.calls, cursors(ours)) == ("skipped", 0, (0, 0, "idle"))
    reasons = (f"no person says anything that is new for {extractor}" for extractor in ("topics", "facts"))
    assert done["why"] == "; ".join(reasons)


@pytest.mark.usefixtures("ours")
def test_every_skip_says_its_reason() -> None:
    say(*turns(3))
    [done] = extract()
    assert done["why"] == "3 of the 4 new messages that topics need; 3 of the 20 messages that facts need"
    say(*turns(17, 4))
    assert [one.get("why") for one in extract()] == [None]
    say(tool("a"), result("a"))
    [done] = extract()
    assert done["why"] == (
        "2 of the 4 new messages that topics need; 2 of the 20 new messages, or 1 of the 3 tool calls, that facts need"
    )
    told = extraction_line(JobOutcome(status="skipped", details={"topics": 0, "facts": 0, "why": "no reason"}))
    assert told == "0 topics written, 0 facts stored (skipped: no reason)."


@pytest.mark.parametrize(
    "call",
    [
        tool("w", "Write", file_path="/home/ann/.claude/projects/shop/memory/shelves.md"),
        tool("w", "Edit", file_path="C:\\Users\\ann\\.claude\\memory\\shelves.md"),
        tool("w", "mcp__nexus__remember", text="Thing 2 is on shelf 2."),
        tool("w", "Bash", command="cd shop && nexus remember 'Thing 2 is on shelf 2.'"),
        tool("w", "Edit", file_path="/home/ann/shop/CLAUDE.md", new_string="Thing 2 is on shelf 2."),
        tool("w", "Write", file_path="AGENTS.md"),
        tool(
            "w",
            "apply_patch",
            text="*** Begin Patch\n*** Update File: AGENTS.md\n+Thing 2 is on shelf 2.\n*** End Patch",
        ),
        tool("w", "MCP:remember", text="Thing 2 is on shelf 2."),
        tool("w", "Write", file_path="memory/shelves.md"),
        tool("w", "Write", file_path="./memories/shelves.md"),
        tool("w", "memory", command="create", path="/memories/shelves.txt"),
        tool("w", "Bash", command="echo '- Thing 2 is on shelf 2' >> CLAUDE.md"),
        tool("w", "Bash", command="cat > memory/shelves.md <<'EOF'\nThing 2 is on shelf 2\nEOF"),
        tool("w", "Bash", command='mkdir -p memory && cat <<EOF >"memory/the shelves.md"\nx\nEOF'),
        tool("w", "shell", command=["bash", "-lc", "echo x | tee -a notes.txt ./AGENTS.md >/dev/null"]),
    ],
)
def test_memory_that_the_agent_wrote_skips_only_its_own_messages(
    ours: Sandbox, standin: StandIn, call: dict[str, Any]
) -> None:
    said = {**call, "content": "Noting the shelves."}
    said_so = "Thing 2" in str(call)  # what the user said is in what the agent saved
    say(*turns(2), said, {**result("w"), "content": "Shelves noted."}, *turns(3, 3))
    extract()
    [asked_] = asked(standin, "topics")
    assert [n for n in range(1, 7) if f"Thing {n} is" in asked_.text] == [1, *([2] if not said_so else []), 3, 4, 5]
    assert "Noting the shelves" not in asked_.text
    assert "Shelves noted" not in asked_.text
    assert cursors(ours)[0] == 7


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("asks", [True, False], ids=["asked to remember", "its words are saved"])
def test_the_prompt_whose_content_the_agent_saved_is_skipped_too(standin: StandIn, asks: bool) -> None:
    prompt = "Remember where the ladder is." if asks else "The ladder stands behind the blue shed."
    say(*turns(3), prompt, tool("w", "Write", file_path="/home/ann/CLAUDE.md", content="The ladder: behind the shed."))
    say(result("w"), {"content": "The ladder in the attic is broken since May.", "author": "ann"})
    say({"role": "assistant", "content": "Saved."})
    extract()
    [shown] = asked(standin, "topics")
    assert prompt not in shown.text
    assert "in the attic" in shown.text


@pytest.mark.parametrize(
    "call",
    [
        tool("e", "Edit", file_path="src/memory/cache.py"),
        tool("e", "Read", file_path="CLAUDE.md"),
        tool("e", "Bash", command="cat CLAUDE.md > /dev/null && grep -n 'a > b' src/memory/cache.py"),
        tool("e", "memory", command="view", path="/memories/shelves.txt"),
    ],
)
def test_edits_elsewhere_are_no_memory(ours: Sandbox, standin: StandIn, call: dict[str, Any]) -> None:
    say(*turns(2), call, result("e"))
    extract()
    assert call["content"] in asked(standin, "topics")[0].text
    assert cursors(ours)[0] == 4


# --- what is stored ---------------------------------------------------------------------------------------------------
def test_facts_are_memories_of_every_observer_about_the_user(ours: Sandbox, standin: StandIn) -> None:
    Nexus().create_namespace(NAMESPACE, observers=["assistant", "coach"])
    ids = say(*turns(20), {"role": "assistant", "content": "Noted."})
    answered = [
        fact("Ann keeps things on shelves", ids[0], ids[1], category="user_preference", confidence=9),
        fact("The shop moves in May", ids[2], category="Project Fact", confidence="7"),
        fact("An unknown category", ids[0], category="weather"),
        fact("Too sure", ids[0], confidence=11),
        fact("Not a number", ids[0], confidence="high"),
        fact("No source", 10**9),
        fact(" ", ids[0]),
    ]
    standin.answer("facts", lambda _: {"facts": answered})
    [done] = extract()
    assert [done[name] for name in ("topics", "facts", "rejected")] == [1, 4, 5]
    assert cursors(ours)[:2] == (21, 21)
    assert ours.sql("SELECT rejected FROM extractions") == [(5,)]
    kept = {(one.observer, one.content, one.category, one.confidence) for one in facts()}
    assert kept == {
        (observer, content, category, confidence)
        for observer in ("assistant", "coach")
        for content, category, confidence in (
            ("Ann keeps things on shelves", "preference", 0.9),
            ("The shop moves in May", "project", 0.7),
        )
    }
    assert {one.subject for one in facts()} == {"ann"}
    evidence = Nexus().memory(NAMESPACE, facts()[0].id).evidence
    assert [edge.id for edge in evidence] == ids[:2]
    later = say(*turns(20, 21))[-1]
    standin.answer("facts", lambda _: {"facts": [fact("ann keeps the things on shelves!", later)]})
    extract()
    assert len(facts()) == 4
    assert {one.times_reinforced for one in facts() if "shelves" in one.content} == {1}


def known(call: Call) -> str:
    return call.parts[0].partition("<transcript>")[0]


@pytest.mark.usefixtures("ours")
def test_topics_are_updated_not_duplicated(standin: StandIn) -> None:
    answers: list[Sequence[dict[str, Any]]] = [
        [topic("- one\n- two\n- three\n- four")],
        [topic("- one\n- three, now elsewhere\n- five", description="Where things are.")],
    ]
    standin.answer("topics", lambda _: {"topics": answers[len(asked(standin, "topics")) - 1]})
    say(*turns(4))
    extract()
    assert "none" in known(asked(standin, "topics")[0])
    say(*turns(4, 5))
    extract()
    shown = known(asked(standin, "topics")[1])
    assert 'filename="things.md" type="project" shown="whole"' in shown
    assert "- four" in shown
    [only] = Nexus().topics(NAMESPACE)
    found = Nexus().topic(NAMESPACE, "things.md")
    assert (only.description, found.content) == ("Where things are.", "- one\n- three, now elsewhere\n- five")
    assert len(found.sources) == 8


def test_to_a_topic_that_was_not_shown_whole_lines_are_added(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    claude(NEXUS_EXTRACT_SHOWN_TOKENS="0")
    answers = [[topic("- one\n- two\n- three\n- four")], [topic("- two\n- five")]]
    standin.answer("topics", lambda _: {"topics": answers[len(asked(standin, "topics")) - 1]})
    say(*turns(4))
    extract()
    say(*turns(4, 5))
    extract()
    shown = known(asked(standin, "topics")[1])
    assert 'shown="beginning"' in shown
    assert ("- three" in shown, "- four" in shown) == (True, False)
    assert Nexus().topic(NAMESPACE, "things.md").content == "- one\n- two\n- three\n- four\n- five"


def test_a_small_topic_behind_a_large_one_is_shown_whole(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    claude(NEXUS_EXTRACT_SHOWN_TOKENS="100")
    large = "\n".join(f"- Thing {n} is large" for n in range(100))
    small = "- one\n\n- two\n\n- three\n\n- four"
    standin.answer("topics", lambda _: {"topics": [topic(small, "small.md"), topic(large, "large.md")]})
    say(*turns(4))
    extract()
    say(*turns(4, 5))
    extract()
    shown = known(asked(standin, "topics")[1])
    assert 'filename="small.md" type="project" shown="whole"' in shown
    assert 'filename="large.md" type="project" shown="beginning"' in shown


@pytest.mark.usefixtures("ours")
def test_a_preview_skips_blank_lines_and_cuts_long_ones(standin: StandIn) -> None:
    content = "\n\n".join(("- one", "- two " + "x" * 2_000, "- three", "- four"))
    standin.answer("topics", lambda _: {"topics": [topic(content * (1 + 40 * (n == 0)), f"{n}.md") for n in (0, 1)]})
    say(*turns(4))
    extract()
    say(*turns(4, 5))
    extract()
    shown = known(asked(standin, "topics")[1])
    beginning = shown.partition('filename="0.md" type="project" shown="beginning"')[2].partition("</topic>")[0]
    assert [word in beginning for word in ("- one", "- two", "- three", "- four")] == [True, True, True, False]
    assert len(beginning) < 1_000


@pytest.mark.parametrize("whole", [True, False])
def test_no_stored_topic_is_longer_than_the_bound_whatever_a_model_answers(
    claude: Callable[..., Sandbox], standin: StandIn, whole: bool
) -> None:
    here = claude(NEXUS_EXTRACT_SHOWN_TOKENS="4000" if whole else "0")
    wordy = [[f"- Round {round}, line {n}: {'x' * 60}" for n in range(100)] for round in range(5)]
    runs = iter([*wordy, ["y" * 50_000]])
    standin.answer("topics", lambda _: {"topics": [topic("\n".join(next(runs)))]})
    for round in range(6):
        say(*turns(4, 1 + 4 * round))
        extract()
    lengths = dict(here.sql("SELECT filename, length(content) FROM topics"))
    assert max(lengths.values()) <= topics.LONGEST_CONTENT
    assert {"things.md", "things-part-2.md"} <= set(lengths)
    kept = "\n".join(content for (content,) in here.sql("SELECT content FROM topics ORDER BY id"))
    if not whole:  # no line is lost, and none is kept twice
        assert [line for lines in wordy for line in lines if kept.count(line) != 1] == []
    assert here.sql(
        "SELECT count(*) FROM topics t WHERE NOT EXISTS (SELECT FROM topic_sources WHERE topic_id = t.id)"
    ) == [(0,)]


def test_an_oversized_topic_of_an_earlier_release_is_split_and_can_be_shortened(
    ours: Sandbox, standin: StandIn
) -> None:
    standin.answer("topics", lambda _: {"topics": [topic("- one")]})
    [first, *_] = say(*turns(4))
    extract()
    lines = [f"- Line {n} of {SECRET if n == 900 else 'many'}" for n in range(5_000)]
    ours.sql(f"UPDATE topics SET content = '{chr(10).join(lines)}'")
    standin.answer("topics", lambda _: {"topics": []})
    say(*turns(4, 5))
    extract()
    found = Nexus().topics(NAMESPACE, limit=100)
    assert len(found) > 10
    kept = {one.filename: Nexus().topic(NAMESPACE, one.filename) for one in found}
    assert "\n".join(kept[name].content for name in sorted(kept, key=topics._part_of)) == "\n".join(lines)
    assert max(len(one.content) for one in kept.values()) <= topics.LONGEST_CONTENT
    assert 'shown="whole"' in known(asked(standin, "topics")[1])
    Nexus().forget(NAMESPACE, memory_id=first)
    assert Nexus().topics(NAMESPACE) == []
    assert traces(ours) == []


@pytest.mark.usefixtures("ours")
def test_a_topic_of_an_unknown_type_costs_only_itself(standin: StandIn) -> None:
    answered = [
        topic("- x", "a.md", type="architecture"),
        topic("- y", "b.md", type=" Feedback "),
        topic("- z", "c.md"),
    ]
    standin.answer("topics", lambda _: {"topics": answered})
    say(*turns(4))
    [done] = extract()
    assert (done["topics"], done["rejected"]) == (2, 1)
    assert {one.filename: one.type for one in Nexus().topics(NAMESPACE)} == {"b.md": "feedback", "c.md": "project"}


def test_what_another_session_has_added_meanwhile_is_not_overwritten(ours: Sandbox, standin: StandIn) -> None:
    standin.answer("topics", lambda _: {"topics": [topic("- one\n- two")]})
    say(*turns(4))
    extract()

    def answered(_: Call) -> Any:
        space = default_deployment().namespace(NAMESPACE)
        assert space is not None
        made = {"filename": "things.md", "name": "Things", "description": "Where.", "type": "project", "made_by": "x"}
        with default_deployment().database.transaction() as tx:
            topics.store(tx, space.id, [topics.TopicDraft(content="- of another", **made)])
        return {"topics": [topic("- one\n- three")]}

    standin.answer("topics", answered)
    say(*turns(4, 5))
    extract()
    assert Nexus().topic(NAMESPACE, "things.md").content == "- one\n- two\n- of another\n- three"
    assert cursors(ours)[0] == 8


def test_a_topic_that_is_deleted_during_a_run_does_not_come_back(ours: Sandbox, standin: StandIn) -> None:
    """Neither in a topic of its name, nor in another topic, nor in the saved answer."""
    Nexus().write_topic(NAMESPACE, "things.md", f"- The safe is {SECRET}.")
    say(*turns(4))

    def answered(call: Call) -> Any:
        if len(asked(standin, "topics")) == 1:
            Nexus().delete_topic(NAMESPACE, "things.md")
        copied = f"\n- The safe is {SECRET}." if SECRET in call.text else ""
        return {"topics": [topic(f"- one{copied}"), topic(f"- two{copied}", "more.md")]}

    standin.answer("topics", answered)
    extract()
    assert (Nexus().topics(NAMESPACE), traces(ours)) == ([], [])
    time_passes(ours)
    extract()
    stored = map(partial(Nexus().topic, NAMESPACE), ("things.md", "more.md"))
    assert [one.content for one in stored] == ["- one", "- two"]
    assert traces(ours) == []


def test_a_topic_that_is_renamed_during_a_run_is_not_written_a_second_time(ours: Sandbox, standin: StandIn) -> None:
    Nexus().write_topic(NAMESPACE, "things.md", "- one")
    say(*turns(4))

    def answered(call: Call) -> Any:
        if len(asked(standin, "topics")) == 1:
            Nexus().rename_topic(NAMESPACE, "things.md", "items.md")
        return {"topics": [topic("- one\n- two", "items.md" if "items.md" in call.text else "things.md")]}

    standin.answer("topics", answered)
    extract()
    time_passes(ours)
    extract()
    assert [one.filename for one in Nexus().topics(NAMESPACE)] == ["items.md"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_line_that_is_taken_out_of_a_topic_during_a_run_does_not_come_back(
    claude: Callable[..., Sandbox], standin: StandIn, whole: bool
) -> None:
    ours = claude(NEXUS_EXTRACT_SHOWN_TOKENS="4000" if whole else "0")
    lines = [f"- The safe is {SECRET}.", *(f"- line {n}" for n in range(9))]
    Nexus().write_topic(NAMESPACE, "things.md", "\n".join(lines))
    say(*turns(4))

    def answered(call: Call) -> Any:
        assert SECRET in call.text
        Nexus().write_topic(NAMESPACE, "things.md", "\n".join(lines[1:]))
        return {"topics": [topic("\n".join([lines[0], "- new"]))]}

    standin.answer("topics", answered)
    extract()
    assert Nexus().topic(NAMESPACE, "things.md").content == "\n".join([*lines[1:], "- new"])
    assert traces(ours) == []


@pytest.mark.parametrize("late", [False, True])
def test_the_error_of_a_run_does_not_quote_a_deleted_topic(ours: Sandbox, standin: StandIn, late: bool) -> None:
    Nexus().write_topic(NAMESPACE, "things.md", f"- The safe is {SECRET}.")
    say(*turns(4))

    def refuses(call: Call) -> bool:
        if SECRET in call.text and late:
            Nexus().delete_topic(NAMESPACE, "things.md")
        return SECRET in call.text

    standin.when(refuses, faults.refused(f"I say nothing about {SECRET}."))
    extract()
    if not late:
        assert [trace.partition(":")[0] for trace in traces(ours)] == ["dead_letters", "topics"]
        Nexus().delete_topic(NAMESPACE, "things.md")
    assert traces(ours) == []


def test_hostile_filenames_are_rejected_and_counted(ours: Sandbox, standin: StandIn) -> None:
    names = [
        "../../etc/passwd",
        "a/b.md",
        "a\\b.md",
        "CON",
        "nul.md",
        "MEMORY.md",
        ".bashrc",
        "",
        "x" * 200,
        "naïve.md",
        "a\nb",
    ]
    made = [topic("- x", name) for name in names] + [topic("- fine", "Deploy-Days")]
    standin.answer("topics", lambda _: {"topics": made})
    say(*turns(4))
    [done] = extract()
    assert (done["topics"], done["rejected"]) == (1, len(names))
    assert [one.filename for one in Nexus().topics(NAMESPACE)] == ["deploy-days.md"]
    assert cursors(ours)[0] == 4


# --- erasure ----------------------------------------------------------------------------------------------------------
SECRET = "zanzibarium"


def test_nothing_of_an_erased_message_is_left_in_topics(ours: Sandbox, standin: StandIn) -> None:
    """A topic that rests on it goes and is written anew; one that was written since with a word of it goes too."""
    target, *_ = say({"content": f"The code is {SECRET}.", "author": "ann"}, *turns(3))
    standin.answer("topics", lambda _: {"topics": [topic(f"- {SECRET}", f"{SECRET}.md")]})
    extract()
    say(*turns(4, 10), session="other")
    answered = [topic(f"- Also {SECRET}", "leaked.md"), topic("- Thing 10", "clean.md")]
    standin.answer("topics", lambda _: {"topics": answered})
    Nexus().extract(NAMESPACE, "other")
    work(KIND)
    assert len(Nexus().topics(NAMESPACE)) == 3
    receipt = Nexus().forget(NAMESPACE, memory_id=target)
    assert receipt.deleted["topics"] == 2
    assert traces(ours) == []
    assert [one.filename for one in Nexus().topics(NAMESPACE)] == ["clean.md"]
    standin.answer("topics", lambda _: {"topics": []})
    say(*turns(1, 20))
    standin.counters.requests.clear()
    Reconciler(engine).round()
    work(KIND)
    told = "\n".join(call.text for call in asked(standin, "topics"))
    assert [n for n in (1, 2, 3, 10, 11, 12, 13, 20) if f"Thing {n} is" not in told] == []
    assert traces(ours) == []


def test_an_erasure_keeps_the_lines_of_a_topic_that_no_extraction_wrote(
    ours: Sandbox, standin: StandIn, tmp_path: Path
) -> None:
    """Extraction cannot write them again. It writes its own lines again, from the messages that are left."""
    by_hand = "# Deploys\n- Never on Fridays.\n- Ask Olga first."
    (tmp_path / "deploys.md").write_text(by_hand)
    Nexus().import_markdown(NAMESPACE, tmp_path)
    target, *_ = say({"content": f"The code is {SECRET}.", "author": "ann"}, *turns(3))
    answered = [topic(f"{by_hand}\n- {SECRET}", "deploys.md", description=SECRET), topic(f"- {SECRET}", f"{SECRET}.md")]
    standin.answer("topics", lambda _: {"topics": answered})
    extract()
    there = Nexus().topic(NAMESPACE, "deploys.md")
    said = f"{there.content}\n- Tell Bob, too.\n- {SECRET} is old."
    Nexus().write_topic(NAMESPACE, "deploys.md", said, revision=there.revision)
    Nexus().write_topic(NAMESPACE, "deploys-part-2.md", "- By hand alone.")
    Nexus().write_topic(NAMESPACE, f"{SECRET}.md", f"- {SECRET}\n- Under another name.")
    receipt = Nexus().forget(NAMESPACE, memory_id=target)
    assert receipt.deleted["topics"] == 2
    assert traces(ours) == []
    left = Nexus().topic(NAMESPACE, "deploys.md")
    assert left.content == f"{by_hand}\n- Tell Bob, too."
    assert left.sources == ()
    assert left.revision > there.revision
    assert Nexus().topic(NAMESPACE, "deploys-part-2.md").content == "- By hand alone."
    [renamed] = [one.filename for one in Nexus().topics(NAMESPACE) if not one.filename.startswith("deploys")]
    assert Nexus().topic(NAMESPACE, renamed).content == "- Under another name."
    # An extraction that adds to it again changes nothing of that. What it wrote goes.
    standin.answer("topics", lambda _: {"topics": [topic(f"{left.content}\n- Thing 1", "deploys.md")]})
    say(*turns(1, 20))
    Reconciler(engine).round()
    work(KIND)
    assert Nexus().topic(NAMESPACE, "deploys.md").content == f"{left.content}\n- Thing 1"
    Nexus().forget(NAMESPACE, session_key="chat")
    assert Nexus().topic(NAMESPACE, "deploys.md").content == left.content


def test_an_erasure_keeps_no_name_and_no_description_of_an_extraction(ours: Sandbox, standin: StandIn) -> None:
    """They may say what the erased message said, in other words. Before, only their words were compared."""
    assert ours.sql("SELECT count(*) FROM topics") == [(0,)]
    target, *_ = say({"content": "Olga stole cash.", "author": "ann"}, *turns(3))
    paraphrase = {"name": "A theft", "description": "An employee took money from the till."}
    standin.answer("topics", lambda _: {"topics": [topic("- A theft was found.", "theft.md", **paraphrase)]})
    extract()
    there = Nexus().topic(NAMESPACE, "theft.md")
    Nexus().write_topic(NAMESPACE, "theft.md", f"{there.content}\n- Lock the door.", revision=there.revision)
    Nexus().forget(NAMESPACE, memory_id=target)
    [left] = Nexus().topics(NAMESPACE)
    assert Nexus().topic(NAMESPACE, left.filename).content == "- Lock the door."
    assert [word for word in ("theft", "employee") if word in f"{left.filename} {left.name} {left.description}"] == []
    # What a person has chosen stays, and what the rest tells.
    standin.answer("topics", lambda _: {"topics": [topic("- Things.", "shelf.md", **paraphrase)]})
    target = say(*turns(4, 10))[0]
    extract()
    mine = {"content": "- Things.\n- Lock it.", "name": "Storage", "description": "Where we put everything."}
    Nexus().write_topic(NAMESPACE, "shelf.md", **mine)
    Nexus().forget(NAMESPACE, memory_id=target)
    left = Nexus().topic(NAMESPACE, "shelf.md")
    assert (left.name, left.description, left.content) == (mine["name"], mine["description"], "- Lock it.")


def test_an_erasure_of_a_message_with_the_number_of_a_part_keeps_the_names_of_the_part(
    ours: Sandbox, standin: StandIn, tmp_path: Path
) -> None:
    lines = [f"- Rule {chr(97 + n % 26) * 40} about the harbour." for n in range(200)]
    (tmp_path / "rules.md").write_text("\n".join(lines))
    Nexus().import_markdown(NAMESPACE, tmp_path)
    parts = [(one.filename, one.name) for one in Nexus().topics(NAMESPACE)]
    target, *_ = say({"content": "I live in part 2.", "author": "ann"}, *({"content": "Wind."} for _ in range(3)))
    there = Nexus().topic(NAMESPACE, "rules-part-2.md")
    added = topic(f"{there.content}\n- In a part.", there.filename, name=there.name, description=there.description)
    standin.answer("topics", lambda _: {"topics": [added]})
    extract()
    assert "In a part" in Nexus().topic(NAMESPACE, "rules-part-2.md").content
    Nexus().forget(NAMESPACE, memory_id=target)
    assert sorted((one.filename, one.name) for one in Nexus().topics(NAMESPACE)) == sorted(parts)
    assert Nexus().topic(NAMESPACE, "rules-part-2.md").content == there.content
    assert ours.sql("SELECT count(*) FROM topics WHERE own LIKE '%In a part%'") == [(0,)]


def test_a_line_that_a_worker_of_an_earlier_release_removed_does_not_come_back(ours: Sandbox, standin: StandIn) -> None:
    standin.answer("topics", lambda _: {"topics": [topic("- Removed.\n- Kept.\n- Thing 1", "things.md")]})
    Nexus().write_topic(NAMESPACE, "things.md", "- Removed.\n- Kept.")
    target, *_ = say(*turns(4))
    extract()
    ours.sql("UPDATE topics SET content = E'- Kept.\\n- Thing 1'")
    Nexus().forget(NAMESPACE, memory_id=target)
    assert Nexus().topic(NAMESPACE, "things.md").content == "- Kept."


def test_an_erasure_of_long_messages_with_topics_is_never_idle_for_long(
    claude: Callable[..., Sandbox], standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure of a log of 1 MB failed at each try, while Postgres ends a transaction that is idle for 8 s."""
    here = claude()
    others = [topic("- Thing 2", f"thing-{n}.md") for n in range(10)]
    standin.answer("topics", lambda _: {"topics": [topic("- Thing 1", "things.md")]})
    [target] = say({"content": f"{SECRET}. " * 70_000, "author": "ann"})
    say(*turns(4))
    extract()
    standin.answer("topics", lambda _: {"topics": others})
    Nexus().ingest(NAMESPACE, "other", turns(5, 100))
    Nexus().extract(NAMESPACE, "other")
    work(KIND)
    read = list[int]()
    split = erased_topics.word_forms

    def slowly(text: str) -> set[str]:
        read.append(len(text))
        time.sleep(0.1 if len(text) < 100_000 else 1)
        return split(text)

    monkeypatch.setattr(erased_topics, "word_forms", slowly)
    monkeypatch.setattr(context, "_AWAKE_EVERY", 0.2)
    short = tuple(re.sub(r"(idle_in_transaction_session_timeout) = \d+", r"\1 = 600", one) for one in _SETTINGS)
    monkeypatch.setattr("nexus_tasks.storage.engine._SETTINGS", short)
    with here.another():
        Nexus().forget(NAMESPACE, memory_id=target)
    assert len(read) > 10
    assert max(read) < 60_000
    assert "things.md" not in {one.filename for one in Nexus().topics(NAMESPACE)}


def test_an_erasure_during_a_run_leaves_nothing_of_it(ours: Sandbox, standin: StandIn) -> None:
    target, *_ = say({"content": f"The code is {SECRET}.", "author": "ann"}, *turns(5))
    erased: list[Any] = []

    def answered(_: Call) -> Any:
        if not erased:
            erased.append(Nexus().forget(NAMESPACE, memory_id=target))
            return {"topics": [topic(f"- {SECRET}")]}
        return {"topics": [topic("- Things")]}

    standin.answer("topics", answered)
    extract()
    assert traces(ours) == []
    time_passes(ours)
    work(KIND)
    assert Nexus().topic(NAMESPACE, "things.md").content == "- Things"
    assert traces(ours) == []


@pytest.mark.parametrize("what", [{"session_key": "chat"}, {"everything": True}], ids=["session", "namespace"])
def test_a_session_is_erased_with_its_topics(ours: Sandbox, standin: StandIn, what: dict[str, Any]) -> None:
    say({"content": f"The code is {SECRET}.", "author": "ann"}, *turns(3))
    standin.answer("topics", lambda _: {"topics": [topic(f"- {SECRET}")]})
    extract()
    Nexus().forget(NAMESPACE, **what)
    assert Nexus().topics(NAMESPACE) == []
    assert ours.sql("SELECT count(*) FROM extractions") == [(0,)]
    assert traces(ours) == []
