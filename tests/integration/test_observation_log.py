"""What becomes of a session's log: shown, condensed, undone, erased, pruned, moved; its task ages and is cleared."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition.observing import condense, observe
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Erased, NotFound
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest
from nexus_tasks.llm.offline import OfflineModel
from nexus_tasks.services import observation, session_context
from nexus_tasks.storage import namespaces, observations, pruning, sessions
from nexus_tasks.types import ObservationText
from tests.integration.inline import NAMESPACE, dump, job_context, work
from tests.integration.suspended import Crash
from tests.integration.test_observation import SMALL, erase, nexus, observed, read, say, turn
from tests.integration.test_observation_machine import Counting
from tests.sandbox import Sandbox
from tests.standin import StandIn

OBSERVATION = ("observation_logs", "observation_chunks", "observation_reflections", "observation_generations")


@pytest.fixture
def condensed(deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A session whose log was condensed. ``number 0`` was in the log before."""
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**SMALL)
    say(*map(turn, range(60)), observe=True)
    work("observe_session")
    before = shown().text
    assert "number 0 " in before
    work("reflect_observations")
    assert shown(generation=shown().earlier[-1].generation).text == before
    assert len(shown().text) < len(before)
    return here


def shown(**options: Any) -> ObservationText:
    """The log of the session."""
    return Nexus().observation_log(NAMESPACE, "chat", **options)


def undo(namespace: str = NAMESPACE) -> ObservationText:
    """Undo all condensations."""
    done = Nexus().undo_condensation(namespace, "chat")
    while done.earlier:
        done = Nexus().undo_condensation(namespace, "chat")
    return done


@pytest.mark.usefixtures("condensed")
def test_a_condensation_can_be_undone_and_later_notes_stay() -> None:
    before = shown(generation=shown().earlier[-1].generation).text
    assert undo().text == before
    assert read().text.split("\n</observation-log>")[0] == f"<observation-log>\n{before}"
    assert [one["status"] for one in work("reflect_observations")] in ([], ["skipped"])  # not condensed again at once
    assert shown().text == before
    with pytest.raises(NotFound, match="condensation"):
        Nexus().undo_condensation(NAMESPACE, "chat")


@pytest.mark.usefixtures("condensed")
def test_notes_since_a_condensation_stay_when_it_is_undone() -> None:
    before = shown(generation=shown().earlier[-1].generation).text
    say(*map(turn, range(60, 80)))
    work("observe_session")
    read()
    after = shown()
    assert after.observed_through > 60
    latest = after.text.splitlines()[-1]
    done = undo()
    assert done.text.startswith(before)
    assert done.text.endswith(latest)
    assert done.text.count("## ") == 1
    assert done.observed_through == after.observed_through


def test_an_erasure_leaves_no_earlier_text(condensed: Sandbox) -> None:
    kept = len(shown().earlier)
    assert erase(1)["observation_generations"] == kept
    rows = dump(condensed)
    assert not any("number 0 " in row for table in OBSERVATION for row in rows[table])
    assert rows["observation_generations"] == []
    with pytest.raises(NotFound):
        Nexus().undo_condensation(NAMESPACE, "chat")


def test_an_earlier_text_knows_the_last_message_that_it_covers(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when notes were moved into the log just before it was condensed."""
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**SMALL)
    say(*map(turn, range(40)), observe=True)
    here.sql(
        "UPDATE observation_logs SET generation = 1, observed_through_seq = 5, observing = 'idle', observations ="
        " '## 2026-03-01' || repeat(E'\\n- [#1] [low] It rained in Lisbon all day long.', 30)"
    )
    here.sql(
        "INSERT INTO observation_chunks (namespace_id, session_id, from_seq, through_seq, observations, current_task,"
        " suggested_response, made_by)"
        " SELECT namespace_id, session_id, 6, 12, E'## 2026-03-01\\n- [#6] [low] The sun shone.', '', '', 'test'"
        " FROM observation_logs"
    )
    here.sql(
        "INSERT INTO observation_reflections (namespace_id, session_id, base_generation, covered_length, observations,"
        " current_task, suggested_response, made_by)"
        " SELECT namespace_id, session_id, 1, length(observations), E'## 2026-03-01\\n- [#1] [low] Rain.', '', '',"
        " 'test' FROM observation_logs"
    )
    read()
    found = shown()
    [earlier] = found.earlier
    assert shown(generation=earlier.generation).text.endswith("The sun shone.")
    assert shown(generation=earlier.generation).observed_through == found.observed_through == 12


@pytest.mark.parametrize("cited", [True, False])
def test_an_erasure_during_a_condensation_does_not_hold_up_the_next_one(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, cited: bool
) -> None:
    """The new log is condensed at its own length. Before, it had to grow to 1.25 times the length of the erased one."""
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**SMALL)
    say(*map(turn, range(60)), observe=True)
    work("observe_session")
    if not cited:
        here.sql(r"UPDATE observation_logs SET observations = regexp_replace(observations, '\[#\d+\] ', '', 'g')")
    model = Counting(stubborn=True)
    model.meanwhile = lambda: erase(1)
    with pytest.raises(Erased) if cited else nullcontext():
        condense.condense(replace(default_deployment().resources, model=model), job_context(), "chat")
    assert model.calls > 0
    assert here.sql("SELECT observations, reflect_from_tokens FROM observation_logs") == [("", 0)]


@pytest.mark.parametrize("kind", ["observe", "condense"])
def test_no_answer_is_kept_from_notes_on_what_was_erased_meanwhile(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before, the answer was saved, and stayed for a month when the process died before it stored the notes."""
    monkeypatch.setattr(observation, "LONGEST_WAIT", 0.0)
    here = deploy(**SMALL)
    say(*map(turn, range(60)), observe=True)
    work("observe_session")
    say(*map(turn, range(60, 80)))

    def die(*_: object) -> None:
        raise Crash

    for name in ("store_chunk", "store_reflection"):
        monkeypatch.setattr(observations, name, die)
    texts = here.sql(
        "SELECT observations FROM observation_logs"
        " UNION ALL (SELECT observations FROM observation_chunks ORDER BY from_seq)"
    )
    last = texts[-1 if kind == "observe" else 0][0].splitlines()[-1]  # the last note that the model sees
    model = Interrupted(lambda: erase(max(observation_log.sources(last))))
    resources = replace(default_deployment().resources, model=model)
    run = partial(observe.observe, urgent=False) if kind == "observe" else condense.condense
    with pytest.raises((Erased, Crash)):
        run(resources, job_context(), "chat")
    assert here.sql("SELECT * FROM saved_answers") == []
    assert model.happens is None


class Interrupted(OfflineModel):
    """The offline model. Something happens while it thinks for the first time."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens: Callable[[], object] | None = happens

    def complete(self, request: ModelRequest[AnswerT]) -> Completion[AnswerT]:
        """Let it happen, and answer."""
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return super().complete(request)


def test_an_earlier_text_is_kept_for_seven_days(condensed: Sandbox) -> None:
    condensed.sql("UPDATE observation_generations SET created_at = now() - interval '6 days 23 hours'")
    prune()
    assert shown().earlier
    condensed.sql("UPDATE observation_generations SET created_at = now() - interval '7 days 1 hour'")
    prune()
    assert shown().earlier == ()


def prune() -> None:
    """Do what beat asks for every hour."""
    with default_deployment().database.transaction() as tx:
        pruning.prune(tx)


@pytest.mark.usefixtures("condensed")
def test_a_condensation_can_be_undone_after_a_move(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    before = shown(generation=shown().earlier[-1].generation)
    Nexus().export(NAMESPACE, file)
    Nexus().import_("moved", file)
    assert plain(undo("moved").text) == plain(before.text)


def plain(text: str) -> list[str]:
    """The lines without their citations, which differ between namespaces."""
    return [line.rpartition("] ")[2] for line in text.splitlines()]


@pytest.mark.usefixtures("condensed")
def test_the_log_on_the_command_line() -> None:
    key = ("chat", "--namespace", NAMESPACE)
    document = json.loads(nexus("sessions", "log", *key, "--json"))
    [*_, oldest] = document["earlier"]
    assert f"generation {oldest['generation']} replaced" in nexus("sessions", "log", *key)
    assert "number 0 " in nexus("sessions", "log", *key, "--generation", str(oldest["generation"]))
    for _ in document["earlier"]:
        restored = nexus("sessions", "undo-log", *key)
    assert "number 0 " in restored


def test_task_and_response_say_their_age_and_can_be_cleared(claude: Callable[..., Sandbox], standin: StandIn) -> None:
    here = claude(**SMALL)
    standin.answer("observe", observed("Ann plans things.", current_task="Plan.", suggested_response="Ask."))
    said = [{"content": turn(n), "author": "ann", "occurred_at": f"2026-03-01T09:{n:02}:00Z"} for n in range(20)]
    Nexus().ingest(NAMESPACE, "chat", said, observe=True)
    work("observe_session")
    found = shown()
    assert (found.current_task, found.suggested_response) == ("Plan.", "Ask.")
    assert f"{found.current_task_at:%H:%M}" == f"09:{found.observed_through - 1:02}"  # the newest message behind it
    head = f"Current task (as of 2026-03-01 {found.current_task_at:%H:%M}): Plan.\nSuggested response (as of 2026-03-01"
    assert head in read().text
    document = json.loads(read(format="json").text)
    assert document["current_task_at"] == f"{found.current_task_at:%Y-%m-%dT%H:%M:%SZ}"
    assert "Cleared" in nexus("sessions", "clear-task", "chat", "--namespace", NAMESPACE)
    assert Nexus().clear_task(NAMESPACE, "chat") is False
    assert "Current task" not in read().text
    assert json.loads(read(format="json").text)["current_task_at"] is None
    assert here.sql("SELECT count(*) FROM observation_chunks WHERE current_task <> ''") == [(0,)]
    before = len(standin.counters.requests)
    say(*map(turn, range(20, 40)))
    work("observe_session")
    assert "The current task was" not in standin.counters.requests[before].text
    assert shown().current_task == "Plan."  # newer notes name it again


@pytest.mark.usefixtures("condensed")
def test_a_compacted_session_is_told_the_notes_with_their_citations() -> None:
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        told = session_context.text_of(tx, sessions.get(tx, known.id, "chat"), 4_000)
    notes = [line for line in told.split("## Recent messages")[0].splitlines() if line.startswith("- ")]
    assert notes
    assert all(line.startswith("- [m") for line in notes)


def test_a_session_that_was_never_observed_has_no_log(deploy: Callable[..., Sandbox]) -> None:
    deploy()
    say("Hello there.")
    for call in (Nexus().observation_log, Nexus().undo_condensation, Nexus().clear_task):
        with pytest.raises(NotFound, match="never observed"):
            call(NAMESPACE, "chat")
