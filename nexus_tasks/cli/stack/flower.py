"""The user of the Flower that ``nexus up`` starts.

Flower shows every job's arguments and can revoke jobs. Its port is on 127.0.0.1, which every user of the machine can
reach. Therefore Flower gets a user and a random password.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nexus_tasks.errors import EmbeddedError
from nexus_tasks.files import make_folder, write_atomic

_OWN_USER = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH")


def user_file(home: Path) -> Path | None:
    """The file with Flower's user and password; ``None`` when the environment names a user for Flower."""
    return None if any(os.environ.get(name) for name in _OWN_USER) else home / "flower.env"


def user_variables(home: Path) -> dict[str, str]:
    """The environment variables that give Flower its user and password. They stay the same at every start.

    The first call makes the file of :func:`user_file` (mode 0600). The result is empty when the environment names a
    user already.

    Raises:
        EmbeddedError: the file names no user, for example because it was damaged.
    """
    path = user_file(home)
    if path is None:
        return {}
    if not path.exists():
        made = {
            "FLOWER_BASIC_AUTH": f"nexus:{secrets.token_urlsafe(24)}",
            "FLOWER_COOKIE_SECRET": secrets.token_hex(32),
        }
        make_folder(os.fspath(home))
        text = "".join(f"{name}={value}\n" for name, value in made.items())
        write_atomic(os.fspath(path), text.encode(), durable=True)  # an empty file would leave Flower without a user
    lines = (line.partition("=") for line in path.read_text(errors="replace").splitlines())
    found = {name: value for name, equals, value in lines if equals}
    if not any(found.get(name) for name in _OWN_USER):
        raise EmbeddedError(
            f"{path} names no user, so every user of this machine could use Flower.",
            remedy="Delete the file. The next `nexus up --flower` makes a new one.",
        )
    return found
