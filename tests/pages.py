"""Execute the fenced blocks of a page in their order, as a reader pastes them into one shell and one Python."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk import environment_variables

from nexus_tasks.settings import Settings
from tests import commandline
from tests.sandbox import Sandbox, eventually

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RUNNABLE = ("python", "console", "bash", "json")
_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_PICTURE = "─"  # a text block that draws is not output
_SERVERS = {
    "celery": (" ready.", "beat: Starting", "Visit me at"),
    "nexus mcp": ("Uvicorn running on",),
    "prometheus": ("Server is ready",),
}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(text: str) -> list[str]:
    """The commands of a block, without prompts and comments."""
    lines = (line.removeprefix("$ ").split("  #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Reader:
    """Executes a page in the test's own deployment."""

    def __init__(
        self,
        here: Sandbox,
        work: Callable[[], None],
        *,
        placeholders: Mapping[str, Callable[[], str]] | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Make a reader.

        Args:
            here: the deployment.
            work: what stands for the worker. It is called after each block.
            placeholders: words such as ``JOB`` in commands, and functions that give their values.
            left_out: the beginnings of commands that are not executed, each with the reason.
        """
        self.here, self.work = here, work
        self.placeholders = dict(placeholders or {})
        self.left_out = dict(left_out or {})
        self.printed = ""
        self.program: dict[str, Any] = {"__name__": "__main__"}

    def execute(self, page: Path) -> None:
        """Execute the page's blocks, and compare each text block with what has been printed since the last one."""
        for language, text in blocks(page):
            if language == "text":
                if _PICTURE not in text:
                    assert self.printed == text
                    self.printed = ""
            elif language == "python" and "register(app)" in text:  # the page says: in a program of its own
                subprocess.run([sys.executable, "-c", text], env=self.here.environment, check=True, timeout=120)
            elif language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(text, page.name, "exec", dont_inherit=True), self.program)
                self.printed += output.getvalue()
                self.work()
            elif language in ("console", "bash"):
                self._shell(language, text)
                self.work()

    def _shell(self, language: str, text: str) -> None:
        output = ""
        for line in text.splitlines():
            if language == "console" and not line.startswith("$ "):
                assert line in output.splitlines(), output
                continue
            for command in commands(line):
                if not any(command.startswith(left_out) for left_out in self.left_out):
                    output = self._run(command)

    def _run(self, command: str) -> str:
        if command.startswith("export "):
            _set(command.removeprefix("export "))
            return ""
        if server := next((name for name in _SERVERS if command.startswith(name)), None):
            self._serve(command, _SERVERS[server])
            return ""
        if of_one_command := re.match(r"([A-Z_]+)=(\S+) nexus ", command):
            name, value = of_one_command.groups()
            process = [sys.executable, "-m", "nexus_tasks.cli.main", *shlex.split(command)[2:]]
            environment = {**os.environ, **self.here.environment, name: value}
            done = subprocess.run(process, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
            return done.stdout
        words = [self.placeholders.get(word, lambda word=word: word)() for word in shlex.split(command)]
        assert words[0] == "nexus", f"{command}: a command of this kind is not executed yet"
        with contextlib.ExitStack() as stack:
            if "--wait" in words:
                stack.callback(self.here.worker().stop)
            done = commandline.nexus(*words[1:])
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, command: str, ready: tuple[str, ...]) -> None:
        """Start a command that ends only when it is told to, wait until it is ready, and end it."""
        log = self.here.folder / "served.log"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A worker says that it is ready, and beat that it starts, at this level alone.
        louder = " --loglevel INFO" if re.search(" (worker|beat)( |$)", command) else ""
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command + louder),
                env={**os.environ, "PATH": path, "FLOWER_BASIC_AUTH": "me:pass", "FLOWER_PORT": "0"},
                cwd=self.here.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            eventually(
                lambda: process.poll() is not None or any(word in log.read_text() for word in ready),
                within=120,
                why=f"{command} is not ready, see {log}",
            )
            assert process.poll() is None, f"{command}\n{log.read_text()}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _set(assignment: str) -> None:
    """Check that a page's ``export`` names a setting with a value that parses."""
    name, _, value = assignment.partition("=")
    if name.startswith("OTEL_"):
        assert name in vars(environment_variables), assignment
        return
    field = name.removeprefix("NEXUS_").lower()
    assert name.startswith("NEXUS_"), assignment
    assert field in Settings.model_fields, assignment
    if "$(" not in value and "…" not in value and "{" not in value:
        Settings.model_validate_strings({field: shlex.split(os.path.expandvars(value))[0]})
