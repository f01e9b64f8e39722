"""Deployments whose model is Claude, spoken to over HTTP: the stand-in answers; and an eager application."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.sandbox import Sandbox, app
from tests.standin import StandIn


@pytest.fixture
def standin() -> Iterator[StandIn]:
    """A stand-in for the Claude API."""
    with StandIn() as started:
        yield started


@pytest.fixture
def claude(deploy: Callable[..., Sandbox], standin: StandIn) -> Callable[..., Sandbox]:
    """Make a deployment that asks the stand-in: ``claude(NEXUS_DERIVE_BATCH_TOKENS="6000")``."""
    return lambda **settings: deploy(**standin.environment(), **settings)


@pytest.fixture
def eager(here: Sandbox) -> Iterator[None]:  # noqa: ARG001
    """Let calls of jobs run them in this process."""
    app.conf.update(task_always_eager=True)
    yield
    app.conf.update(task_always_eager=False)
