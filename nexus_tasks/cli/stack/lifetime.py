"""Lock files that allow one ``nexus up`` per home folder, and that show whether all its processes have ended.

The supervisor is the process of ``nexus up`` that starts the worker and the other children. The file ``stack.pid``
contains the supervisor's pid, and the supervisor locks the file until it ends. A pid in an unlocked file is ignored,
because another process may have this pid by now. The supervisor and its children lock the file ``children.lock``. After
a ``kill -9`` of the supervisor, ``children.lock`` stays locked until the last child has ended.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from nexus_tasks.cli.stack.processes import GRACE_SECONDS
from nexus_tasks.embedded import explain
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import FileLock, has_open, is_locked, try_lock
from nexus_tasks.files import make_folder


def _pid_file(home: Path) -> Path:
    return home / "stack.pid"


def _children_lock(home: Path) -> Path:
    return home / "children.lock"


def supervisor_pid(home: Path) -> int | None:
    """The pid of the supervisor of ``home``, or ``None`` when no ``nexus up`` runs there."""
    path = _pid_file(home)
    if not is_locked(path):
        return None
    with suppress(OSError, ValueError):
        pid = int(path.read_text())
        if has_open(pid, path):
            return pid
    return None


def claim(home: Path) -> FileLock:
    """Take the lock ``stack.pid``, which only one ``nexus up`` of ``home`` can have.

    Raises:
        EmbeddedError: another ``nexus up`` holds the lock, or the home folder cannot be used.
    """
    pid = None
    try:
        make_folder(os.fspath(home))
        held = try_lock(_pid_file(home))
        if held is None:
            pid = _written_pid(home)
        if held is None and pid is None:
            # A command that looks whether the file is locked has the lock for a moment, so it may be free now.
            held = try_lock(_pid_file(home))
    except OSError as error:
        raise explain(error, home) from error
    if held is None:
        named = f" (pid {pid})" if pid else ""
        raise EmbeddedError(f"The stack of {home} already runs{named}.", remedy="Stop it with `nexus down` first.")
    held.write(f"{os.getpid()}\n")
    return held


def _written_pid(home: Path) -> int | None:
    """The supervisor's pid. A supervisor that has taken the lock a moment ago is given 2 s to write it.

    Until then the file has the pid of an earlier supervisor, which has ended.
    """
    deadline = time.monotonic() + 2.0
    while True:
        pid = supervisor_pid(home)
        if pid is not None and _alive(pid):
            return pid
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)  # no event says when the supervisor has written its pid


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def claim_children(home: Path) -> FileLock:
    """Take the lock ``children.lock``, which the children inherit.

    This call waits up to 35 s until the children of an earlier stack have ended.

    Raises:
        EmbeddedError: the children of the earlier stack do not end.
    """
    deadline = time.monotonic() + GRACE_SECONDS + 5.0
    while (held := try_lock(_children_lock(home))) is None:
        if time.monotonic() > deadline:
            raise _not_ended(home)
        time.sleep(0.05)  # a wait in the kernel (`flock`) could not end at the deadline
    return held


def is_in_place(home: Path, held: FileLock) -> bool:
    """Whether ``home`` still has the lock file ``held`` of :func:`claim_children`.

    It has another one, or none, when the folder was deleted or renamed. No ``nexus down`` would find the stack then.
    """
    try:
        return os.path.samestat(os.fstat(held.fd), _children_lock(home).stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # the disk does not answer, which says nothing
        return True


def end(home: Path) -> bool:
    """End the running stack of ``home`` and wait until it has ended; returns whether a stack ran.

    Raises:
        EmbeddedError: a process of the stack does not end.
    """
    if not is_locked(_pid_file(home)) and not is_locked(_children_lock(home)):
        return False
    for sign, seconds in ((signal.SIGTERM, GRACE_SECONDS + 10.0), (signal.SIGKILL, GRACE_SECONDS + 5.0)):
        pid = supervisor_pid(home)
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not is_locked(_pid_file(home)) and not is_locked(_children_lock(home)):
                return True
            time.sleep(0.02)  # the stack is not this process's child, so there is nothing to wait on
    raise _not_ended(home)


def _not_ended(home: Path) -> EmbeddedError:
    path = _children_lock(home)
    return EmbeddedError("Processes of the stack do not end.", remedy=f"Kill those that lock {path} (`fuser {path}`).")
