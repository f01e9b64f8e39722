"""The folders of the demo, beside the user's own."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from nexus_tasks.cli.checks import machine
from nexus_tasks.cli.demo import stage
from nexus_tasks.embedded import account
from nexus_tasks.settings import Settings


@pytest.mark.skipif(os.geteuid() != 0, reason="Postgres runs as another user only for root")
def test_a_demo_of_root_leaves_the_home_closed_to_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    own = account.postgres_account()
    assert own is not None

    def ensure(home: Path, **_: object) -> None:
        account.let_through(home / "postgres", own)

    monkeypatch.setattr(stage.embedded, "ensure", ensure)
    monkeypatch.setattr(stage.embedded, "stop", lambda *_: [])
    monkeypatch.setattr(stage, "temporary_worker", lambda *_args, **_: nullcontext())
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        with stage.stage(Settings(home=home / "demo")):
            assert stat.S_IMODE(home.stat().st_mode) == 0o710
        assert machine.home(Settings(home=home)).ok
