"""`nexus undo`, `nexus dream --dry-run` and reviews on the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from nexus_tasks import reflect_namespace
from nexus_tasks.cli.main import app
from tests.integration.inline import NAMESPACE, say, work
from tests.sandbox import Sandbox


@pytest.fixture
def changed(here: Sandbox) -> Sandbox:
    """A namespace where ann has moved, which nobody has reflected on."""
    for month, text in ((1, "I live in Porto."), (2, "I live in Lisbon.")):
        said = {"content": text, "author": "ann", "occurred_at": datetime(2026, month, 1, tzinfo=UTC)}
        say(said, session=f"in {month}")
    work("derive_memory")
    return here


def nexus(*arguments: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def document(*arguments: str) -> Any:
    """What a command prints with --json."""
    return json.loads(nexus(*arguments, "--json"))


@pytest.mark.usefixtures("changed")
def test_a_dry_run_tells_what_would_be_done() -> None:
    plans = document("dream", NAMESPACE, "--dry-run")
    assert plans["sessions"] == ["in 1", "in 2"]
    [plan] = plans["reflections"]
    assert [relation["kind"] for relation in plan["relations"]] == ["contradicts"]
    told = nexus("dream", NAMESPACE, "--dry-run")
    assert "I live in Porto." in told
    assert f"supersedes    m{plan['supersedes'][0]}" in told


@pytest.mark.usefixtures("changed")
def test_a_reflection_is_undone_by_its_number() -> None:
    reflect_namespace.delay(namespace=NAMESPACE)
    work("reflect_namespace", "reflect_perspective")
    [made] = document("memories", "list", "--namespace", NAMESPACE, "--level", "contradiction")["memories"]
    assert f"reflection    {made['reflection']}" in nexus("memories", "show", str(made["id"]), "--namespace", NAMESPACE)
    undone = nexus("undo", str(made["reflection"]), "--namespace", NAMESPACE)
    assert "1 memory removed, 1 fact in force again" in undone
    assert "undone before" in nexus("undo", str(made["reflection"]), "--namespace", NAMESPACE)
    assert document("undo", str(made["reflection"]), "--namespace", NAMESPACE)["status"] == "unchanged"
    assert document("memories", "list", "--namespace", NAMESPACE, "--level", "contradiction")["memories"] == []


@pytest.mark.usefixtures("changed")
def test_what_is_held_is_shown_with_what_to_do() -> None:
    from nexus_tasks.cognition.reflect import perspective

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(perspective, "GUARD_COUNT", 0)
        reflect_namespace.delay(namespace=NAMESPACE)
        work("reflect_namespace", "reflect_perspective")
    [job] = document("jobs", "list", "--namespace", NAMESPACE, "--status", "needs_review")["jobs"]
    shown = nexus("status", "--namespace", NAMESPACE)
    assert "would supersede 1 fact" in shown
    assert f"`nexus jobs retry {job['id']}` does it" in shown
    assert "held for review" in nexus("dream", NAMESPACE, "--dry-run")
    nexus("jobs", "retry", job["id"])
    assert "is released and will be carried out" in nexus("status", "--namespace", NAMESPACE)
    work("reflect_perspective")
    assert "review" not in nexus("status", "--namespace", NAMESPACE)
