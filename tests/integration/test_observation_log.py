"""What becomes of a session's log: shown, condensed, undone, erased, pruned, moved; its task ages and is cleared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.services import observation, session_context
from nexus_tasks.storage import namespaces, pruning, sessions
from nexus_tasks.types import ObservationText
from tests.integration.inline import NAMESPACE, dump, work
from tests.integration.test_observation import SMALL, erase, nexus, observed, read, say, turn
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
