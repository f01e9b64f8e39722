"""Every command of a process that is limited to a namespace: it shows and changes nothing of another one."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.services import context_cache
from nexus_tasks.settings import load_settings
from nexus_tasks.transcripts import context_file
from tests.commandline import nexus
from tests.integration.http_client import as_token, ok
from tests.integration.inline import say
from tests.integration.served import TOKEN, serving
from tests.integration.test_http_access import ROUTES, called, takes_a_namespace
from tests.integration.test_nonsense import COMMANDS as ALL_COMMANDS
from tests.integration.test_row_security import MINE, THEIRS, both, everything_of
from tests.sandbox import Sandbox

assert both  # the fixture

# `nexus serve` runs until a signal ends it: it is started as a process of its own.
COMMANDS = [(path, leaf) for path, leaf in ALL_COMMANDS if path != ("serve",)]
SECRET = f"secret of {THEIRS}"
FUTURE = "of-a-later-release"  # such entries stay in the buffer when another call stores the rest


@pytest.fixture
def limited(both: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sandbox]:
    """Two namespaces with rows, claims, buffered entries and cached contexts; the process is limited to one."""
    monkeypatch.chdir(tmp_path)
    for name in (MINE, THEIRS):
        say(f"A later secret of {name}.", namespace=name, session="later")  # its jobs are queued
        both.deployment.buffer.append(name, f"buffered of {name}", {"content": f"secret of {name}"}, FUTURE)
        both.deployment.buffer.append(name, f"wrong of {name}", {"content": 7})
    context_cache.refresh(both.deployment)
    nexus("buffer", "flush")  # the wrong entries go to quarantine
    Nexus().export(THEIRS, tmp_path / "theirs.jsonl")
    (tmp_path / "chat.jsonl").write_text(json.dumps({"content": "Hello."}) + "\n")
    monkeypatch.setenv("NEXUS_NAMESPACES", MINE)
    with both.another() as deployment:
        assert deployment.settings.namespaces == (MINE,)
        yield both


def of_theirs(here: Sandbox) -> dict[str, Any]:
    """All that the other namespace has: rows, claims, entries of the buffer and its quarantine."""
    redis = here.redis()
    claims = {key: redis.hgetall(key) for key in redis.scan_iter(f"{here.name}:job:*")}
    buffered = [one for one in here.deployment.buffer.status() if one["agent"] == THEIRS]
    aside = [damage for damage, _ in here.deployment.buffer.quarantine() if damage.agent == THEIRS]
    return {
        "rows": everything_of(here, THEIRS),
        "claims": {key: claim for key, claim in claims.items() if claim.get("namespace") == THEIRS},
        "buffer": buffered,
        "quarantine": aside,
    }


def names_of_theirs(here: Sandbox, found: dict[str, Any]) -> dict[str, list[str]]:
    """Words that name things of the other namespace, by the parameter of commands that takes such a word."""
    ids = [claim["id"] for claim in found["claims"].values()]
    ids += [
        job_id
        for (job_id,) in here.sql(
            "SELECT job_id FROM job_runs JOIN namespaces n ON n.id = namespace_id WHERE name = :name"
            " UNION SELECT job_id FROM dead_letters JOIN namespaces n ON n.id = namespace_id WHERE name = :name",
            name=THEIRS,
        )
    ]
    theirs = "WHERE namespace_id = (SELECT id FROM namespaces WHERE name = :name)"
    memories = here.sql(f"SELECT id FROM memories {theirs} ORDER BY id", name=THEIRS)
    aside = [Path(damage.kept_as).name for damage in found["quarantine"]]
    return {
        "job": [*(one[:8] for one in ids), *ids],
        "memory": [str(memories[0][0]), str(memories[-1][0])],
        "session": ["chat", "later"],
        "namespace": [THEIRS],
        "reflection": [str(id) for (id,) in here.sql(f"SELECT id FROM reflections {theirs}", name=THEIRS)],
        "token": [str(id) for (id,) in here.sql(f"SELECT id FROM tokens {theirs}", name=THEIRS)],
        "filename": [name for (name,) in here.sql(f"SELECT filename FROM topics {theirs}", name=THEIRS)],
        "file": [*aside, "theirs.jsonl", "chat.jsonl"],
        "of": [here.deployment.buffer.deployment],
    }


def lines(path: tuple[str, ...], leaf: Any, words: dict[str, list[str]]) -> Iterator[list[str]]:
    """The command with words that name things of the other namespace, in this namespace, in the other and in none."""
    arguments, options = list[list[list[str]]](), list[list[list[str]]]()
    for one in leaf.params:
        known = words.get(one.name.rstrip("_"), words.get(one.name.removesuffix("_id"), []))
        if one.param_type_name == "argument":
            values = [[word] for word in known] or [["secret"]]
            arguments.append(values if one.required else [*values, []])
        elif one.name == "namespace":
            options.append([[], [f"--namespace={MINE}"], [f"--namespace={THEIRS}"]])
        elif one.opts[0] in ("--yes", "--all", "--json", "--drop-others"):
            options.append([[], [one.opts[0]]] if one.opts[0] in ("--all", "--json", "--drop-others") else [["--yes"]])
        elif known:
            options.append([[], *([f"{one.opts[0]}={word}"] for word in known)])
        elif one.required:
            options.append([[f"{one.opts[0]}=read"]])
    for chosen in itertools.product(*arguments, *options):
        yield [*path, *itertools.chain.from_iterable(chosen)]


@pytest.mark.long
def test_no_command_of_a_limited_process_shows_or_changes_another_namespace(
    limited: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_theirs(limited)
    assert all(before.values())
    words = names_of_theirs(limited, before)
    assert all(words.values()), words
    signs = [SECRET, f"of {THEIRS}", *(one for one in words["job"] if len(one) > 8), *words["file"][:-2]]
    faults, tried = list[tuple[str, list[str]]](), 0
    for path, leaf in COMMANDS:
        named = words if path[0] != "buffer" else words | {"session": [one["session"] for one in before["buffer"]]}
        for line in lines(path, leaf, named):
            monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
            told = nexus(*line)
            tried += 1
            shown = told.stdout + told.stderr
            given = " ".join(line)
            faults += [(f"shows {sign}", line) for sign in signs if sign in shown and sign not in given]
            if told.returncode == 0 and f"--namespace={THEIRS}" in line:
                faults.append(("is not refused", line))
        after = of_theirs(limited)
        faults += [(f"changes {what}", list(path)) for what in before if before[what] != after[what]]
        before = after
    assert faults == [], "\n".join(f"{what}: {line}" for what, line in faults)
    assert tried > 200


@pytest.mark.long
def test_the_server_of_a_limited_process_shows_and_changes_nothing_of_another_namespace(limited: Sandbox) -> None:
    before = of_theirs(limited)
    words = names_of_theirs(limited, before)
    hooks = "SELECT webhooks.id FROM webhooks JOIN namespaces ON namespaces.id = namespace_id WHERE name = :name"
    ids = {f"{one}_id": words[one][-1] for one in ("memory", "job", "token")}
    ids |= {"webhook_id": limited.sql(hooks, name=THEIRS)[0][0]}
    signs = [SECRET, f"of {THEIRS}", *(one for one in words["job"] if len(one) > 8)]
    faults = list[tuple[str, Any, str]]()
    with serving(limited, NEXUS_NAMESPACES=MINE) as url, httpx2.Client(base_url=url, timeout=60) as client:
        mine = ok(client.get("/v1/memories", params={"namespace": MINE}, headers=as_token(TOKEN)))["memories"]
        assert any(f"secret of {MINE}" in one["content"] for one in mine)
        for route in ROUTES:
            for given in ({}, {"namespace": THEIRS}):
                answer = called(client, route, ids, TOKEN, **given)
                of_another = given and takes_a_namespace(route)
                shown = [sign for sign in signs if sign in answer.text and sign not in unquote(str(answer.request.url))]
                faults += [(f"shows {sign}", route[:2], answer.text) for sign in shown]
                if answer.status_code >= 500 or (of_another and answer.status_code < 400):
                    faults.append(("is not refused", route[:2], answer.text))
    assert faults == []
    assert of_theirs(limited) == before


def test_the_hook_of_a_limited_process_tells_and_keeps_nothing_of_another_namespace(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy(NEXUS_NAMESPACES=MINE)
    event = json.dumps({"hook_event_name": "SessionStart", "session_id": "s", "source": "startup"}).encode()
    prompt = json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "Hello."}).encode()
    for namespace in (MINE, THEIRS):
        context_file.put(str(here.folder), namespace, f"The secret of {namespace}.")
        for one in (event, prompt):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(one)))
            told = nexus("hook", "claude-code", "--namespace", namespace)
            assert ("secret of" in told.stdout) == (one == event and namespace == MINE)
    assert [one["agent"] for one in here.deployment.buffer.status()] == [MINE]
    assert f"does not have the namespace {THEIRS}" in (here.folder / "logs" / "hook.log").read_text()


@pytest.mark.parametrize("command", [("namespaces", "list"), ("search", "x", "--namespace", THEIRS), ("export", "-")])
def test_an_empty_setting_does_not_open_every_namespace(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``NEXUS_NAMESPACES="$TENANT"`` does where the variable is not set."""
    monkeypatch.setenv("NEXUS_NAMESPACES", "")
    options = ("--namespace", THEIRS) if command[0] == "export" else ()
    told = nexus(*command, *options)
    assert (told.returncode, told.stdout) == (1, "")
    assert "NEXUS_NAMESPACES is empty. Name the namespaces" in told.stderr


def test_a_setting_that_is_json_names_namespaces_and_opens_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template of JavaScript or YAML writes ``null`` where a tenant is not set. Numbers are names, too."""
    for given, names in {"null": ("null",), "7": ("7",), "true, 1.5": ("true", "1.5")}.items():
        monkeypatch.setenv("NEXUS_NAMESPACES", given)
        assert load_settings().namespaces == names
    monkeypatch.setenv("NEXUS_NAMESPACES", "[]")
    with pytest.raises(ConfigurationError, match="is no name of a namespace"):
        load_settings()
