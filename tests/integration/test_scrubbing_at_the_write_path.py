"""No secret is stored, however the message came: by the client, a command, MCP, a hook, or the session buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, StorageUnavailable
from nexus_tasks.services import buffer_flush
from nexus_tasks.storage.engine import Database
from nexus_tasks.types.hidden_characters import strip_hidden
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE
from tests.sandbox import Sandbox
from tests.transcripts import planted

TOKEN = planted.tokens()["github"]
SENTENCE = f"Deploy with {TOKEN}, and my password is Swordfish-77."
SECRETS = (TOKEN, "Swordfish-77")


def stored() -> str:
    """Everything that the table of memories has, as text."""
    with default_deployment().database.transaction() as tx:
        return "\n".join(tx.scalars(text("SELECT row_to_json(m)::text FROM memories m")))


def assert_scrubbed(found: str) -> None:
    assert "[scrubbed: github token]" in found
    assert "[scrubbed: password]" in found
    assert not [secret for secret in SECRETS if secret in found]


def test_what_the_client_remembers_and_ingests(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    Nexus().remember(NAMESPACE, SENTENCE, author="ann")
    call = {"name": "shell", "input": {"command": "curl -u ann:Swordfish-77 x.org", "env": {"API_TOKEN": TOKEN}}}
    said = {"role": "assistant", "author": f"bot {TOKEN}", "content": SENTENCE, "tool_calls": [call]}
    Nexus().ingest(NAMESPACE, "chat", [said])
    assert_scrubbed(stored())


def test_access_tokens_of_nexus_tasks_itself(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    Nexus().create_namespace(NAMESPACE)
    made = [Nexus().create_token(NAMESPACE, f"agent {number}").token for number in range(3)]
    made += [Nexus().rotate_token(NAMESPACE, one.id).token for one in Nexus().tokens(NAMESPACE)]
    for number, token in enumerate(made):
        carriers = (
            "Use {} for it.",
            "NEXUS_TOKEN={}",
            '{{"token": "{}"}}',
            "(it is `{}`)",
            "It ends so: {}.",
            "{}, please",
        )
        for place, carrier in enumerate(carriers):
            said = carrier.format(token)
            calls = [{"name": "shell", "input": {"command": said}}]
            Nexus().ingest(NAMESPACE, "chat", [{"id": f"{number}-{place}", "content": said, "tool_calls": calls}])
    found = stored()
    assert found.count("[scrubbed: ") == 6 * 6 * 2
    assert not [token for token in made if token in found or token[-43:] in found]


@pytest.mark.parametrize("sign", ["\x1b[31m", "\x00", "\x85", "\u202e", "\U000e0041", "\r"], ids=ascii)
def test_a_token_that_is_split_is_not_whole_again_for_an_agent(here: Sandbox, sign: str) -> None:  # noqa: ARG001
    Nexus().remember(NAMESPACE, f"Deploy with {TOKEN[:9]}{sign}{TOKEN[9:]}.")
    found = strip_hidden(Nexus().memories(NAMESPACE)[0].content)
    assert "[scrubbed: github token]" in found
    assert TOKEN[9:] not in found


def test_what_topics_hold_that_are_imported(here: Sandbox, tmp_path: Path) -> None:  # noqa: ARG001 - the deployment
    (tmp_path / "deploy.md").write_text(f"---\nname: Deploy\ndescription: with {TOKEN}\ntype: user\n---\n{SENTENCE}\n")
    Nexus().import_markdown(NAMESPACE, tmp_path)
    topic = Nexus().topic(NAMESPACE, "deploy.md")
    assert_scrubbed(f"{topic.description} {topic.content}")
    Nexus().set_namespace(NAMESPACE, scrub=False)
    Nexus().import_markdown(NAMESPACE, tmp_path)
    assert TOKEN in Nexus().topic(NAMESPACE, "deploy.md").content


def test_what_commands_store(here: Sandbox, tmp_path: Path) -> None:  # noqa: ARG001 - the deployment
    nexus("remember", SENTENCE, "--namespace", NAMESPACE)
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"session": "chat", "content": SENTENCE, "id": "1"}))
    nexus("ingest", str(file), "--namespace", NAMESPACE)
    assert_scrubbed(stored())


def test_what_waits_in_the_buffer(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """It is scrubbed before it is written to disk, and is the same message when it is told again later."""

    def away(self: Database) -> None:  # noqa: ARG001
        raise StorageUnavailable("Postgres is away.")

    with monkeypatch.context() as outage:
        outage.setattr(Database, "transaction", away)
        assert Nexus().ingest(NAMESPACE, "chat", [{"content": SENTENCE}]).buffered == 1
    home = default_deployment().settings.home / "buffer"
    on_disk = "\n".join(path.read_text(errors="replace") for path in home.rglob("*") if path.is_file())
    assert_scrubbed(on_disk)
    buffer_flush.store_buffer(default_deployment(), wait=True)
    assert_scrubbed(stored())
    again = Nexus().ingest(NAMESPACE, "chat", [{"content": SENTENCE}])
    assert (again.stored, again.duplicates) == (0, 1)


def test_what_another_program_wrote_into_the_buffer(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    default_deployment().buffer.append(NAMESPACE, "chat", SENTENCE, "message")
    buffer_flush.store_buffer(default_deployment(), wait=True)
    assert_scrubbed(stored())


def test_a_namespace_can_switch_it_off(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    assert Nexus().create_namespace(NAMESPACE).scrub is True
    shown = json.loads(nexus("namespaces", "set", NAMESPACE, "--no-scrub", "--json").stdout)
    assert shown["scrub"] is False
    Nexus().remember(NAMESPACE, SENTENCE)
    assert all(secret in stored() for secret in SECRETS)
    Nexus().remember("another", SENTENCE)
    assert "[scrubbed: github token]" in stored()
    assert Nexus().set_namespace(NAMESPACE, scrub=True).scrub is True


NAMED = f"agent {TOKEN}"


def test_what_a_namespace_says_to_models_and_to_operators(here: Sandbox) -> None:
    client = Nexus()
    client.create_namespace(NAMESPACE, instructions=SENTENCE)
    assert_scrubbed(client.namespace(NAMESPACE).instructions)
    told = nexus("namespaces", "set", NAMESPACE, "--instructions", f"Again: {SENTENCE}", "--json")
    assert_scrubbed(json.loads(told.stdout)["instructions"])
    assert_scrubbed(client.pause_namespace(NAMESPACE, SENTENCE).reason)
    client.resume_namespace(NAMESPACE)
    assert not [row for row in here.sql("SELECT n::text FROM namespaces n") if TOKEN in str(row)]
    client.set_namespace(NAMESPACE, instructions=SENTENCE, scrub=False)
    assert client.namespace(NAMESPACE).instructions == SENTENCE
    topic = client.write_topic(NAMESPACE, "deploy.md", "text", author="ann")
    client.set_namespace(NAMESPACE, scrub=True)
    client.write_topic(NAMESPACE, topic.filename, "other text", author=NAMED)
    assert not [row for row in here.sql("SELECT t::text FROM topics t") if TOKEN in str(row)]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.ingest(NAMESPACE, NAMED, [{"content": "one"}]),
        lambda client: client.ingest(NAMESPACE, "chat", [{"content": "one", "id": NAMED}]),
        lambda client: client.ingest(NAMESPACE, "chat", [{"content": "one"}], observers=["ops", NAMED]),
        lambda client: client.ingest(TOKEN, "chat", [{"content": "one"}]),
        lambda client: client.create_namespace(TOKEN),
        lambda client: client.set_namespace(NAMESPACE, observers=[NAMED]),
        lambda client: client.create_token(NAMESPACE, NAMED),
        lambda client: client.create_token(NAMESPACE, "password=Swordfish-77"),
        lambda client: client.write_topic(NAMESPACE, TOKEN, "one"),
        lambda client: client.rename_topic(NAMESPACE, "plan.md", TOKEN),
    ],
)
def test_names_with_a_secret_are_refused_without_quoting_it(here: Sandbox, call: Callable[[Nexus], object]) -> None:
    Nexus().create_namespace(NAMESPACE)
    with pytest.raises(InvalidInput, match="has a secret") as refused:
        call(Nexus())
    assert not [secret for secret in SECRETS if secret in str(refused.value)]
    for table in ("sessions", "memories", "namespaces", "tokens", "derivations", "audit_log", "topics"):
        assert not [row for row in here.sql(f"SELECT t::text FROM {table} t") if TOKEN in str(row)]


def test_a_name_with_a_secret_is_not_buffered_either(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Database) -> None:  # noqa: ARG001
        raise StorageUnavailable("Postgres is away.")

    monkeypatch.setattr(Database, "transaction", away)
    with pytest.raises(InvalidInput, match="session_key has a secret"):
        Nexus().ingest(NAMESPACE, NAMED, [{"content": "one"}])
    assert not [path for path in here.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_names_that_only_look_odd_are_taken(here: Sandbox) -> None:  # noqa: ARG001 - the deployment
    client = Nexus()
    for name in ("user:ann:session:8f14e45fceea167a5a36dedd4bea2543", "password: reset", "sess_68a5b6c7d8e9f0a1b2c3"):
        assert client.ingest(NAMESPACE, name, [{"content": "one", "id": name}], observers=[name]).stored == 1
    client.create_token(NAMESPACE, "deploy key of ann")
    client.set_namespace(NAMESPACE, scrub=False)
    assert client.ingest(NAMESPACE, NAMED, [{"content": "one", "id": NAMED}]).stored == 1


def test_what_an_export_of_somebody_else_holds(here: Sandbox, tmp_path: Path) -> None:
    client = Nexus()
    client.create_namespace("before", scrub=False, instructions=SENTENCE)
    call = {"name": "shell", "input": {"env": {"API_TOKEN": TOKEN}}}
    said = {"role": "assistant", "author": NAMED, "content": SENTENCE, "tool_calls": [call], "data": {TOKEN: TOKEN}}
    client.ingest("before", "chat", [said])
    client.write_topic("before", "deploy.md", SENTENCE, name=NAMED, description=SENTENCE, author=NAMED)
    client.export("before", tmp_path / "as-it-is.jsonl")
    client.import_("same", tmp_path / "as-it-is.jsonl")
    assert client.memories("same")[0].content == SENTENCE, "the export says that its namespace is not scrubbed"
    client.forget("before", everything=True)
    client.forget("same", everything=True)
    here.sql("UPDATE namespaces SET instructions = ''")
    forged = (tmp_path / "as-it-is.jsonl").read_text().replace('"scrub": false', '"scrub": true')
    forged = forged.replace('"labels": []', f'"labels": ["{NAMED}"]')
    forged = forged.replace('"category": null', f'"category": "{NAMED}"')
    (tmp_path / "forged.jsonl").write_text(forged)
    client.import_(NAMESPACE, tmp_path / "forged.jsonl")
    assert_scrubbed(stored())
    for table in ("memories", "topics", "namespaces", "sessions"):
        assert not [row for row in here.sql(f"SELECT t::text FROM {table} t") if TOKEN in str(row)], table
    (tmp_path / "named.jsonl").write_text(forged.replace('"session_key": "chat"', f'"session_key": "{NAMED}"'))
    with pytest.raises(InvalidInput, match=r"Line \d+: a name has a secret"):
        client.import_("named", tmp_path / "named.jsonl")
    (tmp_path / "empty.jsonl").write_text(forged.replace('"observer": "assistant"', '"observer": ""'))
    with pytest.raises(InvalidInput, match=r"Line \d+: observer must be a non-empty text"):
        client.import_("named", tmp_path / "empty.jsonl")


def test_the_key_in_the_address_of_a_webhook_is_called_and_not_shown(here: Sandbox) -> None:
    client, address = Nexus(), f"https://example.org/hook?token={TOKEN}"
    client.create_namespace(NAMESPACE)
    made = client.create_webhook(NAMESPACE, address)
    assert here.sql("SELECT url FROM webhooks") == [(address,)], "the worker needs it"
    for shown in (made, *client.webhooks(NAMESPACE), client.delete_webhook(NAMESPACE, made.id)):
        assert shown.url.startswith("https://example.org/hook?token=[scrubbed:")
