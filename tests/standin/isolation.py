"""A process environment in which nothing but the test decides whom the SDK talks to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def isolate(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Remove credentials, addresses, settings and proxies from the environment, and move the home folder to ``home``.

    The home folder, because the SDK looks for profiles there; an empty ``ANTHROPIC_CONFIG_DIR`` is no way to hide them:
    the SDK raises when that folder holds no profile.
    """
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "OPENAI_", "AZURE_OPENAI_", "NEXUS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NEXUS_HOME", str(home / "nexus"))
