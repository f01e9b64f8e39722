"""This process and machine: Python, settings, the home folder, which servers and which model it would use."""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from nexus_tasks.cli.checks.check import Check, well, wrong
from nexus_tasks.settings import Settings, mask_url

_OLDEST = (3, 11)


def python() -> Check:
    """The interpreter is one that is supported."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] >= _OLDEST:
        return well("python", found)
    return wrong("python", found, "Use Python 3.11 or later.")


def home(settings: Settings) -> Check:
    """The home folder is ours and closed to others; it is made with the first start of the servers."""
    path = settings.home.expanduser()
    if not path.exists():
        return well("home", f"{path} is made when it is needed")
    seen = path.stat()
    mode = stat.S_IMODE(seen.st_mode)
    found = f"{path}, mode {mode:04o}"
    if seen.st_uid != os.geteuid():
        return wrong("home", f"{found}, of another user", "Set NEXUS_HOME to a folder of your own.")
    # Group access may be needed: running as root, Postgres has a user of its own and must get to its folder.
    if mode & 0o027 or not os.access(path, os.W_OK | os.X_OK):
        return wrong("home", found, f"Close it to others: `chmod 0700 {path}`.")
    return well("home", found)


def servers(settings: Settings) -> Sequence[Check]:
    """Which servers are used: the embedded ones, whose programs are there, or those of the two URLs.

    Raises:
        EmbeddedError: a program of the embedded servers is missing.
    """
    if not settings.embedded:
        return [well("servers", "your own: NEXUS_DATABASE_URL and NEXUS_REDIS_URL are set")]
    from nexus_tasks.embedded.postgres import binaries
    from nexus_tasks.embedded.redis import executable

    return [well("servers", f"embedded: {_home_relative(Path(executable()))}, {_home_relative(binaries())}")]


def _home_relative(path: Path) -> str:
    parts = path.parts
    return f"…/{Path(*parts[-3:])}" if len(parts) > 4 else str(path)


def model(settings: Settings) -> Sequence[Check]:
    """Which model would speak, and whether there are credentials for it. Nothing is sent anywhere.

    Raises:
        ConfigurationError: no model can be chosen.
        Misconfigured: credentials cannot be read.
    """
    from nexus_tasks.llm.anthropic.client import credentials_found
    from nexus_tasks.llm.choose import language_model

    chosen = language_model(settings)
    if chosen.name == "offline":
        why = "as NEXUS_MODEL says" if settings.model == "offline" else "no credentials for Claude were found"
        return [well("model", f"offline, {why}")]
    if not credentials_found():
        return [wrong("model", "anthropic, without credentials", "Set ANTHROPIC_API_KEY, or NEXUS_MODEL=offline.")]
    names = dict.fromkeys((settings.model_derive, settings.model_reflect, settings.model_digest))
    return [well("model", f"{chosen.name}, credentials found, {', '.join(names)}")]


def embedder(settings: Settings) -> Sequence[Check]:
    """Which embedder makes the vectors.

    Raises:
        ConfigurationError: there is none of that name.
    """
    from nexus_tasks.embeddings.choose import embedder

    return [well("embedder", embedder(settings).name)]


def masked(url: str) -> str:
    """A URL without its password; one that cannot be read is not shown at all."""
    try:
        return mask_url(url)
    except ValueError:
        return "(malformed)"
