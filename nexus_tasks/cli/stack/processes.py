"""One child process of the stack: start it, wait until it is ready, stop it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from pydantic import SecretStr

from nexus_tasks.embedded import MADE_BEFORE
from nexus_tasks.files import make_folder, open_log
from nexus_tasks.settings import Settings

GRACE_SECONDS = 30.0  # time for running jobs to finish; a job that is cut off runs again when its lease ends


def environment(settings: Settings) -> dict[str, str]:
    """The environment variables that give a child the settings of this process.

    Without CELERY_CONFIG_MODULE a child reads its Celery settings from ``nexus_tasks/config.py`` and from no file
    ``celeryconfig.py``, as this process does. A DJANGO_SETTINGS_MODULE is left out if only the current folder has it:
    a child has another working folder, so Celery could not set up Django.
    """
    env = {**os.environ, "NEXUS_HOME": str(settings.home), "PYTHONUNBUFFERED": "1"}
    if settings.embedded and (settings.home / "postgres").exists():
        env[MADE_BEFORE] = "1"
    env.setdefault("CELERY_CONFIG_MODULE", "nexus_tasks.config")
    django = env.get("DJANGO_SETTINGS_MODULE", "").partition(".")[0]
    if not django or find_spec(django) is None:
        env.pop("DJANGO_SETTINGS_MODULE", None)
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if value is None:
            env.pop(f"NEXUS_{name.upper()}", None)
        else:
            env[f"NEXUS_{name.upper()}"] = _as_text(value)
    if settings.embedder_model and os.path.isdir(settings.embedder_model):
        env["NEXUS_EMBEDDER_MODEL"] = os.path.abspath(settings.embedder_model)  # a child has another working folder
    # A worker must give its runs back before the supervisor kills it after GRACE_SECONDS.
    env["NEXUS_SHUTDOWN_GRACE"] = str(min(settings.shutdown_grace, GRACE_SECONDS - 5.0))
    return env


def working_folder(home: Path) -> Path:
    """The working folder of a child: ``home``, so that a child imports no module of an untrusted project's folder.

    When CELERY_CONFIG_MODULE names a module that only the current folder has, it is the current folder. Celery looks
    for the module there.
    """
    named = os.environ.get("CELERY_CONFIG_MODULE", "").partition(".")[0]
    if named and find_spec(named) is None:
        return Path.cwd()
    make_folder(os.fspath(home))
    return home


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)


def log_file(home: Path, name: str) -> Path:
    """The path ``logs/NAME.log`` under ``home``. Makes the folder (mode 0700)."""
    folder = home / "logs"
    make_folder(os.fspath(folder))
    return folder / f"{name}.log"


@dataclass
class Child:
    """A Celery command in a process and a Unix session of its own.

    With ``log=None`` the command's output is printed, and each line begins with ``name``.
    """

    name: str
    arguments: list[str]
    env: dict[str, str]
    folder: Path  # the working folder
    log: Path | None = None
    inherit: tuple[int, ...] = ()  # descriptors of locks; the process keeps them open
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    started: float = field(init=False, default=0.0)
    _ready: int = field(init=False, default=-1)
    _printer: threading.Thread | None = field(init=False, default=None)

    def start(self) -> None:
        """Start the process, or start it again."""
        self._close()
        output = subprocess.PIPE if self.log is None else open_log(os.fspath(self.log))
        theirs = -1
        try:
            self._ready, theirs = os.pipe()
            command = [sys.executable, "-P", "-m", "nexus_tasks.cli.stack.child", str(theirs), *self.arguments]
            self.process = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.PIPE,  # child.py ends the child when this pipe closes
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs, *self.inherit),
                umask=0o077,
                start_new_session=True,  # Ctrl-C goes to the parent alone, and the parent stops its children
            )
        finally:
            if theirs >= 0:
                os.close(theirs)
            if output != subprocess.PIPE:
                os.close(output)
        self.started = time.monotonic()
        if self.process.stdout is not None:
            self._printer = threading.Thread(target=_print_lines, args=(self.name, self.process.stdout), daemon=True)
            self._printer.start()

    @property
    def ready_fd(self) -> int:
        """The descriptor that becomes readable when the worker is ready or has ended."""
        return self._ready

    def await_ready(self, seconds: float) -> bool:
        """Whether the worker is ready within ``seconds``; returns ``False`` as soon as the worker has ended."""
        if not select.select([self._ready], [], [], seconds)[0]:
            return False
        return os.read(self._ready, 16) != b""

    def ended(self) -> bool:
        """Whether the process has ended or was never started."""
        return self.process is None or self.process.poll() is not None

    def terminate(self) -> None:
        """Ask the process to finish its running jobs and end."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """Kill the process, and the processes that it started, at once."""
        if self.process is None:
            return
        if not self.ended():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._printer is not None:
            # Wait for the rest of the output, for at most 1 s. A process that the child started may keep the pipe open.
            self._printer.join(1.0)
        self._close()

    def stop(self, grace: float) -> None:
        """Give the process ``grace`` seconds to finish, then kill it. A KeyboardInterrupt kills it at once."""
        try:
            self.terminate()
            with suppress(subprocess.TimeoutExpired):
                if self.process is not None:
                    self.process.wait(grace)
        finally:
            self.kill()

    def last_log_line(self) -> str:
        """The last line of the child's log. When the log ends with a traceback, this line is the error."""
        if self.log is None:
            return "its output is above."
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-500:] if lines else "its log is empty."

    def _close(self) -> None:
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


def _print_lines(name: str, output: IO[bytes]) -> None:
    with output:
        for line in output:  # goes on even if our own output is closed, because a full pipe would block the child
            with suppress(OSError):
                sys.stdout.write(f"{name:>6} | {line.decode(errors='replace').rstrip()}\n")
                sys.stdout.flush()
