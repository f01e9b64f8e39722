"""After `make adapters` no test of an adapter may be left out."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.adapters.frameworks import FRAMEWORKS, INSTALLED

pytestmark = pytest.mark.long


@pytest.mark.skipif(not INSTALLED.exists(), reason="`make adapters` was not run")
def test_every_framework_is_installed() -> None:
    assert [package for package in FRAMEWORKS if find_spec(package) is None] == []
