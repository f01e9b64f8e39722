"""Every error is a ``NexusError``: every public method and every command, called with generated nonsense."""

from __future__ import annotations

import inspect
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest
import typer

from nexus_tasks import Message, Nexus
from nexus_tasks.cli.main import app as commands
from nexus_tasks.errors import InvalidInput, NexusError
from tests.commandline import nexus as command
from tests.integration.inline import NAMESPACE, say
from tests.sandbox import Sandbox


class Skewed(tzinfo):
    """A time zone that no datetime may have."""

    def utcoffset(self, _when: datetime | None) -> timedelta:
        return timedelta(hours=30)


NESTED: Any = []
for _ in range(10_000):
    NESTED = [NESTED]
FAR_EAST, FAR_WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63) - 1, 10**20, 10**400, 10**5_000, -(10**5_000)),
    *(0.5, -0.0, math.nan, math.inf, -math.inf, 1e308, 1j),
    *("", " ", "\0", "a\0b", "\ud800", "!!!", "acme", "chat", "x" * 300, "x" * 100_000, "%s", "' OR 1=1 --", "🍵"),
    *("assistant", "raw", "dead", "live", "text", "m17", "../../etc/passwd", "10", "NaN", "1970", "\x1b[31m"),
    *(b"bytes", [], (), {}, set(), [None], [1], ["raw"], ["\0"], {"a": 1}, NESTED, object(), Path("/nowhere/x")),
    *(datetime.min, datetime.max, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=Skewed())),
    *(datetime.min.replace(tzinfo=FAR_EAST), datetime.max.replace(tzinfo=FAR_WEST)),
    *([{}], [{"content": 1}], [{"content": ""}], [{"content": "x", "occurred_at": "soon"}], [{1: 2}], ["text"]),
    *([{"content": "x", "tool_calls": None}], [{"content": "x", "tool_calls": [{"a": math.nan}]}]),
    *([{"content": "x", "tool_calls": [{"a": "\0"}]}], [{"content": "x", "tool_calls": [{"a": "\ud800"}]}]),
    *([{"content": "x", "tool_calls": [{"a": NESTED}]}], [{"content": "x", "occurred_at": 10**20}]),
    *([{"content": "\ud800\0", "id": "\0"}], [{"content": "x", "role": []}], [{"content": "x", "author": 1}]),
    [{"content": "x", "occurred_at": datetime.max.replace(tzinfo=FAR_WEST)}],
)
METHODS = sorted(
    name
    for name, method in vars(Nexus).items()
    if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method)
)
SOUND: dict[str, Any] = {"namespace": NAMESPACE, "session_key": "chat", "query": "tea", "messages": [{"content": "x"}]}


SEED = 1 if os.environ.get("CI") else random.randrange(10**6)  # other nonsense in every run


@pytest.fixture
def luck() -> random.Random:
    return random.Random(SEED)


def calls(method: str, luck: random.Random) -> Iterator[dict[str, Any]]:
    """Each parameter with each value and the others sound; then mixtures."""
    parameters = list(inspect.signature(getattr(Nexus, method)).parameters.values())[1:]
    sound = {one.name: SOUND.get(one.name, "sound") for one in parameters if one.default is one.empty}
    for one in parameters:
        for value in VALUES:
            yield sound | {one.name: value}
    for _ in range(20):
        yield sound | {
            one.name: luck.choice(VALUES) for one in luck.sample(parameters, luck.randint(0, len(parameters)))
        }


@pytest.mark.parametrize("method", METHODS)
def test_a_method_raises_nothing_but_its_own_errors(
    here: Sandbox,  # noqa: ARG001 - the deployment
    luck: random.Random,
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    say("I like tea.")
    nexus = Nexus()
    for arguments in calls(method, luck):
        error = raised(getattr(nexus, method), arguments)
        if error is None:
            continue
        shown = f"{method} {error!s:.300}"
        assert isinstance(error, NexusError), f"{shown} ({type(error).__name__}), seed {SEED}"
        assert error.remedy, shown
        assert len(error.message) < 2_000, f"{shown}: an error quotes no long value"


def raised(method: Callable[..., Any], arguments: dict[str, Any]) -> Exception | None:
    try:
        method(**arguments)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None},
        {"content": "x", "tool_calls": None},
        {"content": "x", "tool_calls": [{"a": math.nan}]},
        {"content": "x", "tool_calls": "text"},
        {"content": "x", "tool_calls": [object()]},
        {"content": "x", "occurred_at": datetime.max.replace(tzinfo=FAR_WEST)},
        {"content": "x", "occurred_at": "2026-01-01"},
        {"content": "x", "author": 1},
        {"content": "x", "role": {}},
        {"content": "x", "id": ""},
    ],
)
def test_a_message_refuses_what_cannot_be_stored(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Message(**fields)


# --- commands ---------------------------------------------------------------------------------------------------------
# What starts or changes more than this process and its deployment, or waits for input.
LEFT_OUT = {
    *("demo", "init", "up", "down", "mcp", "browse", "hook install", "hook uninstall"),
    *("hook claude-code", "hook codex", "hook cursor"),
}
WORDS = (
    "",
    "-1",
    "10" * 20,
    "nan",
    "1e999",
    "\ud800",
    "!!!",
    "acme",
    "chat",
    "x" * 300,
    "/nowhere/x",
    "/dev/null",
    ".",
)
WORDS += ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00+14:00", "raw", "--", "-", "%s", "17", "🍵")
WORDS += ("9" * 5_000,)  # Python reads no integer of more than 4,300 digits


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in sorted(group.commands.items()):
        if hasattr(one, "commands"):  # typer has classes of its own, which are not those of click
            yield from leaves(one, (*path, name))
        elif " ".join((*path, name)) not in LEFT_OUT:
            yield (*path, name), one


COMMANDS = list(leaves(typer.main.get_command(commands)))
assert ("sessions", "list") in [path for path, _ in COMMANDS]


@pytest.mark.parametrize(("path", "leaf"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_a_command_prints_no_error_that_is_not_its_own(
    here: Sandbox,
    luck: random.Random,
    path: tuple[str, ...],
    leaf: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say("I like tea.")
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        for _ in range(12):
            arguments = list(path)
            for parameter in leaf.params:
                if parameter.param_type_name == "option":
                    flag = parameter.opts[0]
                    if flag in ("--help", "--wait", "--canary") or not (parameter.required or luck.random() < 0.4):
                        continue
                    value = NAMESPACE if flag == "--namespace" and luck.random() < 0.7 else luck.choice(WORDS)
                    arguments += [flag] if parameter.is_flag else [f"{flag}={value}"]
                elif parameter.required or luck.random() < 0.7:
                    arguments.append(luck.choice(WORDS))
            told = command(*arguments)
            assert told.returncode in (0, 1, 2, 3), arguments
            assert "Set NEXUS_LOG_LEVEL=DEBUG" not in told.stdout + told.stderr, (arguments, told.stdout + told.stderr)
            assert "Traceback" not in told.stderr, (arguments, told.stderr)
    assert here.sql("SELECT 1") == [(1,)]


SETTINGS = {
    "NEXUS_PRICES": "{not json",
    "NEXUS_LEASE_SECONDS": "soon",
    "NEXUS_DATABASE_URL": "nosuch://127.0.0.1/x",
    "NEXUS_LOG_LEVEL": "LOUD",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_is_an_error_with_a_remedy(here: Sandbox, name: str) -> None:
    line = [sys.executable, "-m", "nexus_tasks.cli.main", "search", "tea", "--namespace", "acme", "--json"]
    environment = here.environment | {name: SETTINGS[name]}
    told = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert json.loads(told.stdout)["error"]["type"] == "ConfigurationError"
    assert name.removeprefix("NEXUS_").lower() in told.stdout.lower()


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">/dev/full"])
@pytest.mark.long
def test_a_closed_stream_and_a_full_device_are_no_crash(here: Sandbox, redirection: str) -> None:
    say("I like tea.")
    line = f"exec {sys.executable} -m nexus_tasks.cli.main search tea --namespace {NAMESPACE} {redirection}"
    told = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=here.environment, timeout=60, check=False
    )
    lost = redirection.startswith(">")  # what the command prints goes nowhere
    assert told.returncode == (1 if lost else 0), told.stderr
    assert "Traceback" not in told.stderr
    assert "NEXUS_LOG_LEVEL" not in told.stderr
    if "full" in redirection:
        assert "No space left" in told.stderr


# --- files ------------------------------------------------------------------------------------------------------------
def test_a_malformed_export_is_an_error_of_its_own(here: Sandbox, luck: random.Random, tmp_path: Path) -> None:
    say("I like tea.", "I moved to Lisbon.", end=True)
    sound, broken = tmp_path / "sound.jsonl", tmp_path / "broken.jsonl"
    Nexus().export(NAMESPACE, sound)
    lines = [json.loads(line) for line in sound.read_text().splitlines()]
    nonsense = (None, True, -1, 10**30, "x", "\0", [], {}, [[]], 1.5, {"a": {}})
    for round in range(150):
        documents = json.loads(json.dumps(lines))
        victim = luck.choice(documents)
        victim[luck.choice(list(victim))] = luck.choice(nonsense)
        broken.write_text("\n".join(json.dumps(document) for document in documents))
        error = raised(Nexus().import_, {"namespace": f"copy{round}", "path": broken})
        assert error is None or isinstance(error, NexusError), f"{victim!r:.300} raised {type(error).__name__}: {error}"
    for text in ("[" * 100_000, "{" * 100_000, "null", "1", '"x"', "[]", "{}", '{"format": []}', '{"settings": 1}'):
        broken.write_text(text)
        with pytest.raises(InvalidInput):
            Nexus().import_("copy", broken)
        told = command("ingest", str(broken), "--namespace", "acme")
        assert told.returncode in (0, 1)
        assert "Set NEXUS_LOG_LEVEL=DEBUG" not in told.stderr, told.stderr
    assert here.sql("SELECT 1 FROM namespaces WHERE name = 'copy'") == []
