"""Deployments whose model is Claude, spoken to over HTTP: the stand-in answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.sandbox import Sandbox
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
