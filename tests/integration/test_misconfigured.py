"""An outage is not a misconfiguration: only what may pass by itself is buffered, the rest fails and says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import psycopg_binary
import pytest
from alembic import command

from nexus_tasks import Nexus, embedded
from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.errors import (
    ConfigurationError,
    EmbeddedError,
    NexusError,
    QueueUnavailable,
    StorageMisconfigured,
    StorageUnavailable,
)
from nexus_tasks.settings import Settings
from nexus_tasks.storage import schema, translation
from tests.commandline import nexus
from tests.sandbox import Sandbox

PASSWORD = "not" + "-the-password"


def other_path(url: str, name: str) -> str:
    head, _, options = url.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{options}"


def other_user(url: str) -> str:
    return url.replace("://nexus@", f"://nobody:{PASSWORD}@")


WRONG: dict[str, Callable[[str], str]] = {
    "an unknown database": lambda url: other_path(url, "nothing_here"),
    "an unknown user": other_user,
    "an unknown host": lambda _: "postgresql://nexus@no-such-host.invalid/nexus",
    "a port that is no number": lambda _: "postgresql+psycopg://nexus@/nexus?host=127.0.0.1&port=many",
    "an unknown option": lambda _: "postgresql://nexus@127.0.0.1:1/nexus?nonsense=1",
    "an unknown scheme": lambda _: f"potsgres://nexus:{PASSWORD}@127.0.0.1/nexus",
    "another database system": lambda _: "sqlite:////tmp/none.db",
    "no address at all": lambda _: "localhost",
    "a check of the user that the server does not make": lambda url: f"{url}&require_auth=gss",
    "a socket that must belong to an unknown Unix user": lambda url: f"{url}&requirepeer=nobody-here",
    "encryption by Kerberos": lambda url: f"{url}&gssencmode=require",
    "a check without a host's name": lambda url: f"{url}&sslmode=require&sslrootcert=system",
    "an unknown release of TLS": lambda url: f"{url}&ssl_min_protocol_version=TLSv9",
    "an unknown value of an option": lambda url: f"{url}&target_session_attrs=any-one",
    "an unknown parameter of the server": lambda url: f"{url}&options=-c%20search_paths%3Dpublic",
    "an unknown argument of the server": lambda url: f"{url}&options=-zzz",
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_setting_fails_and_buffers_nothing(here: Sandbox, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setenv("NEXUS_DATABASE_URL", WRONG[why](here.database_url))
    with here.another():
        with pytest.raises((StorageMisconfigured, ConfigurationError)) as caught:
            Nexus().ingest("acme", "chat", [{"content": "one"}])
        assert PASSWORD not in str(caught.value)
        told = nexus("remember", "tea", "--namespace", "acme", "--json")
        assert told.returncode == 1
        assert json.loads(told.stdout)["error"]["type"] in ("StorageMisconfigured", "ConfigurationError")
        upgraded = nexus("db", "upgrade", "--json")
        assert json.loads(upgraded.stdout)["error"]["type"] in ("StorageMisconfigured", "ConfigurationError")
        assert PASSWORD not in told.stdout + told.stderr + upgraded.stdout + upgraded.stderr
    assert not SessionBuffer(here.folder / "buffer").pending()


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://localhost:6379",
        f"amqp://nexus:{PASSWORD}@127.0.0.1",
        " redis://127.0.0.1:1/0",
        f"redis://:{PASSWORD}@127.0.0.1:99999",
        "redis://127.0.0.1:many",
        "redis://[::1",
        "redis://127.0.0.1:1/first",
        "redis://127.0.0.1:1?db=first",
        "rediss://127.0.0.1:1?ssl_cert_reqs=maybe",
        "unix://",
        "sentinel://one:26379;sentinel://two:many",
    ],
)
@pytest.mark.parametrize(
    "command", [("status",), ("digest", "chat", "--namespace", "acme"), ("remember", "tea", "--namespace", "acme")]
)
def test_a_wrong_address_of_redis_is_named(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, url: str, command: tuple[str, ...]
) -> None:
    Nexus().ingest("acme", "chat", [{"content": "one"}])
    monkeypatch.setenv("NEXUS_REDIS_URL", url)
    with here.another():
        told = nexus(*command, "--json")
    error = json.loads(told.stdout)["error"]
    assert (told.returncode, error["type"]) == (1, "ConfigurationError")
    assert "NEXUS_REDIS_URL" in error["message"]
    assert PASSWORD not in told.stdout + told.stderr


def test_messages_are_stored_although_redis_lacks_the_database(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXUS_REDIS_URL", here.servers.redis_url.replace("db=0", "db=9999"))
    with here.another():
        assert Nexus().ingest("acme", "chat", [{"content": "one"}]).stored == 1
        with pytest.raises(QueueUnavailable, match="out of range") as refused:
            Nexus().status()
    assert "NEXUS_REDIS_URL" in refused.value.remedy


def test_a_wrong_password_of_redis_is_named_and_is_no_outage(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXUS_REDIS_URL", here.servers.redis_url.replace("://", f"://nobody:{PASSWORD}@"))
    with here.another(), pytest.raises(QueueUnavailable, match="refuses the user or the password") as refused:
        Nexus().status()
    assert "NEXUS_REDIS_URL" in refused.value.remedy
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://nexus@127.0.0.1:1/nexus", "postgresql://nexus@/nexus?host=/nowhere"],
    ids=["nothing listens", "no socket"],
)
def test_an_outage_is_buffered(here: Sandbox, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("NEXUS_DATABASE_URL", url)
    with here.another():
        assert Nexus().ingest("acme", "chat", [{"content": "one"}]).buffered == 1


def test_a_user_without_permissions_is_told_so(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    user = f"{here.name}_reader"
    here.sql(f"CREATE ROLE {user} LOGIN")
    try:
        monkeypatch.setenv("NEXUS_DATABASE_URL", here.database_url.replace("://nexus@", f"://{user}@"))
        with here.another(), pytest.raises(StorageMisconfigured, match="permission denied") as caught:
            Nexus().ingest("acme", "chat", [{"content": "one"}])
        assert "permission" in caught.value.remedy
    finally:
        here.sql(f"DROP ROLE {user}")


def test_servers_that_are_not_installed_buffer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_home: Path) -> embedded.ServerAddresses:
        raise EmbeddedError("There is no redis-server.")

    monkeypatch.setattr(embedded, "ensure", missing)
    with pytest.raises(EmbeddedError, match="no redis-server"):
        Nexus(Settings(home=tmp_path, model="offline")).ingest("acme", "chat", [{"content": "one"}])
    assert not SessionBuffer(tmp_path / "buffer").pending()


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('connection failed: FATAL:  password authentication failed for user "nexus"', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "nexus", database "nexus", no encryption', True),
        ("fe_sendauth: no password supplied", True),
        ('root certificate file "/x" does not exist', True),
        ('server certificate for "localhost" (and 1 other name) does not match host name "127.0.0.1"', True),
        ("FATAL:  connection requires a valid client certificate", True),
        ("SSL error: tlsv13 alert certificate required", True),
        ("SSL error: tlsv1 alert unknown ca", True),
        ("FATAL:  SSL required", True),
        ("FATAL:  unsupported startup parameter: options", True),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "nexus", database "nexus"', True),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", True),
        ("failed to resolve host 'db': [Errno -3] Temporary failure in name resolution", False),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
        ("connection timeout expired", False),
        ("failed to resolve host 'certificates': [Errno -3] Temporary failure in name resolution", False),
        ("SSL SYSCALL error: EOF detected", False),
        ("SSL error: unexpected eof while reading", False),
        ("server sent an error response during SSL exchange", False),
        ("server closed the connection unexpectedly", False),
        (
            "connection refused\nMultiple connection attempts failed. All failures were:\n- host: 'a': connection"
            " refused\n- host: 'b': password authentication failed",
            False,
        ),
    ],
)
def test_what_counts_as_a_refusal(text: str, refused: bool) -> None:
    assert translation.is_refusal(text, "") is refused


@pytest.mark.parametrize("kind", ["ROLE", "DATABASE"])
def test_too_many_connections_are_told_with_what_helps(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Postgres refuses while the client connects, so no SQLSTATE is known."""
    user = f"{here.name}_few"
    here.sql(f"CREATE ROLE {user} LOGIN")
    limited = user if kind == "ROLE" else here.database_name
    here.sql(f"ALTER {kind} {limited} CONNECTION LIMIT 0")
    try:
        monkeypatch.setenv("NEXUS_DATABASE_URL", here.database_url.replace("://nexus@", f"://{user}@"))
        with here.another():
            with pytest.raises(StorageUnavailable, match="too many connections") as caught:
                Nexus().search("acme", "tea")
            told = nexus("doctor", "--json")
        [check] = [one for one in json.loads(told.stdout)["checks"] if one["name"] == "postgres"]
        assert "max_connections" in caught.value.remedy
        assert "max_connections" in check["remedy"]
    finally:
        here.sql(f"ALTER {kind} {limited} CONNECTION LIMIT -1")
        here.sql(f"DROP ROLE {user}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", True),
        ("FATAL:  no more connections allowed (max_client_conn)", True),
        ("FATAL:  the database system is starting up", False),
    ],
)
def test_which_texts_say_that_there_are_too_many_connections(text: str, told: bool) -> None:
    assert ("max_connections" in (translation.remedy_of(text) or "")) is told


def libpq_texts() -> list[str]:
    """The error texts of the libpq in use that blame a certificate, a key, or what the client asks of the server."""
    told = re.compile(
        rb"[ -~]*(?: certificate |certificate file|private key|must be specified for|require_auth|requirepeer)[ -~]*"
    )
    [library] = Path(psycopg_binary.__file__).parent.parent.glob("psycopg_binary.libs/libpq-*")
    found = {text.decode() for text in told.findall(library.read_bytes())}
    return sorted(text for text in found if text.count(" ") > 3 and "WARNING" not in text)


def test_what_libpq_says_of_certificates_is_a_refusal() -> None:
    texts = libpq_texts()
    assert len(texts) > 20
    assert [text for text in texts if not translation.is_refusal(f"connection failed: {text}", "")] == []


def test_a_server_without_pgvector_is_named(monkeypatch: pytest.MonkeyPatch, here: Sandbox) -> None:
    def without(*_: object) -> None:
        with here.deployment.database.engine.connect() as connection:
            connection.exec_driver_sql("CREATE EXTENSION nothing_like_this")

    monkeypatch.setattr(command, "upgrade", without)
    with pytest.raises(NexusError) as caught:
        schema.upgrade(here.database_url)
    assert isinstance(caught.value.__cause__.orig, psycopg.errors.FeatureNotSupported)  # type: ignore[union-attr]
    assert "pgvector" in caught.value.remedy
