"""Tests against frameworks that `make adapters` installs. They are left out where only short tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexus_tasks import Nexus
from tests.integration.conftest import standin  # noqa: F401 - a fixture
from tests.sandbox import Sandbox


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare a run without long tests the import of the frameworks, which takes seconds."""
    return True if config.option.markexpr == "not long" and collection_path.name.startswith("test_") else None


@pytest.fixture
def nexus(here: Sandbox) -> Nexus:
    return Nexus(here.deployment)
