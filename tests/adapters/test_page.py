"""The page on adapters, executed in order, with stand-ins for Claude and for OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.adapters.frameworks import FRAMEWORKS, needs
from tests.adapters.models import stand_in_for_models
from tests.integration.inline import work
from tests.pages import ROOT, Reader
from tests.sandbox import Sandbox
from tests.standin import StandIn

for _package in FRAMEWORKS:
    needs(_package)

pytestmark = pytest.mark.long


@pytest.fixture
def models(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Variables that make both SDKs speak to stand-ins."""
    with stand_in_for_models(standin) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield standin


def test_the_page_works_as_written(here: Sandbox, models: StandIn) -> None:
    one = Reader(here, work)
    one.execute(ROOT / "docs" / "adapters.md")
    assert one.printed == ""
    assert models.counters.calls == 3
    nexus = one.program["nexus"]
    assert [topic.filename for topic in nexus.topics("adapted")] == ["deploys.md"]
    keys = {session.session_key for session in nexus.sessions("adapted")}
    assert keys >= {"chat-1", "chat-2", "chat-3", "chat-4", "langgraph/users/ann/"}
    assert all(find_spec(package) for package in FRAMEWORKS)
