"""The page of memories that ``nexus serve`` and ``nexus browse`` serve: its files, its link, and its limits."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from nexus_tasks import Nexus
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.http.browser import routes
from nexus_tasks.integrations.http.browser.visit import Visit
from nexus_tasks.integrations.serving import peers
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.types import TOKEN_SCOPES
from nexus_tasks.types.hidden_characters import strip_hidden
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.integration.served import served
from tests.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]


@contextmanager
def browsing(*, write: bool = False) -> Iterator[tuple[httpx2.Client, Visit]]:
    """The page as ``nexus browse`` serves it, with a client that has no token yet."""
    visit = Visit()
    app = application(Nexus(), visit.token, scopes=TOKEN_SCOPES if write else ("read",), visit=visit)
    with served(lambda _port: app) as port, httpx2.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=30) as client:
        yield client, visit


def enter(client: httpx2.Client, visit: Visit) -> None:
    answer = client.post("/browser/key", json={"code": visit.code})
    client.headers["Authorization"] = f"Bearer {answer.json()['token']}"


def test_the_page_loads_nothing_from_other_hosts() -> None:
    with browsing() as (client, _):
        page = client.get("/")
        named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        assert {"browser/app.js", "browser/style.css"} <= set(named)
        for path in ("", *named, *(f"browser/{name}" for name in routes._FILES)):
            answer = client.get(f"/{path}")
            assert answer.status_code == 200, path
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert not re.search(r"https?://(?!www\.w3\.org/)", answer.text), f"{path} names another host"
        assert client.get("/browser/routes.py").status_code == 404
        assert client.get("/browser/..%2froutes.py").status_code == 404


def test_the_scripts_make_no_markup_from_text() -> None:
    for path in (ROOT / "nexus_tasks/integrations/http/browser").glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()), path


def test_a_link_is_valid_once() -> None:
    with browsing() as (client, visit):
        assert client.get("/v1/namespaces").status_code == 401
        for wrong in ("", "nonsense", visit.code[:-1], "\ud800"):
            body = b'{"code": "%s"}' % wrong.encode("utf-8", "backslashreplace")
            assert client.post("/browser/key", content=body).status_code in (403, 422)
        enter(client, visit)
        assert client.get("/v1/namespaces").status_code == 200
        again = client.post("/browser/key", json={"code": visit.code})
        assert again.status_code == 403
        assert "nexus browse" in again.json()["remedy"]


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells whose connection it is.")
@pytest.mark.parametrize("address", [(socket.AF_INET, LOOPBACK), (socket.AF_INET6, f"::ffff:{LOOPBACK}")], ids=str)
@pytest.mark.parametrize("forged", ["", "X-Forwarded-For: 192.0.2.7\r\n", "X-Forwarded-For: nonsense\r\n"])
def test_another_user_of_the_machine_does_not_use_the_link(
    monkeypatch: pytest.MonkeyPatch, address: tuple[socket.AddressFamily, str], forged: str
) -> None:
    """The link is on the web browser's command line, which all users can read."""
    with browsing() as (client, visit), socket.socket(address[0]) as theirs:
        monkeypatch.setattr(peers, "_own", lambda: {os.geteuid() + 1})
        theirs.settimeout(30)
        theirs.connect((address[1], client.base_url.port))
        body = json.dumps({"code": visit.code})
        head = f"Host: {LOOPBACK}\r\n{forged}Content-Type: application/json\r\nContent-Length: {len(body)}"
        theirs.sendall(f"POST /browser/key HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        assert theirs.recv(1_000).startswith(b"HTTP/1.1 403 ")
        monkeypatch.undo()
        enter(client, visit)  # the link is still valid
        assert client.get("/v1/namespaces").status_code == 200


def test_a_visitor_who_may_only_read_changes_nothing() -> None:
    say("I live in Lisbon.", end=True)
    work()
    [fact] = facts()
    space = {"namespace": NAMESPACE}
    with browsing() as (client, visit):
        enter(client, visit)
        assert client.get("/v1/access").json() == {"namespace": None, "scopes": ["read"], "operator": True}
        assert client.get(f"/v1/memories/{fact.id}", params=space).status_code == 200
        document = client.get("/openapi.json").json()
        tried = 0
        for path, methods in document["paths"].items():
            for method in set(methods) - {"get"}:
                if path in ("/v1/search", "/v1/context", "/v1/ask"):
                    continue
                url = re.sub(r"\{\w+\}", str(fact.id), path)
                body = {**space, "session_key": "chat", "messages": [], "text": "x", "content": "x", "reflection": 1}
                given = {"params": {**space, "confirm": NAMESPACE, "session_key": "chat"}}
                asked = client.request(method.upper(), url, **given, **({} if method == "delete" else {"json": body}))
                assert asked.status_code == 403, (method, path, asked.text)
                tried += 1
        assert tried > 10
    assert [one.content for one in facts()] == [fact.content]


def test_a_visitor_who_may_write_corrects_and_erases() -> None:
    say("I live in Lisbon.", end=True)
    work()
    [fact] = facts()
    with browsing(write=True) as (client, visit):
        enter(client, visit)
        space = {"namespace": NAMESPACE}
        made = client.patch(f"/v1/memories/{fact.id}", json={**space, "content": "Ann lives in Porto."}).json()
        assert client.delete(f"/v1/memories/{made['id']}", params=space).status_code == 200


def test_every_reason_to_wait_is_explained() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    table = page[page.index("| reason | the job goes on when |") : page.index("A job that waits for `concurrency`")]
    told = {reason for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for reason in re.findall(r"\w+", cell)}
    script = (ROOT / "nexus_tasks/integrations/http/browser/queue.js").read_text(encoding="utf-8")
    known = set(
        re.findall(r"^  (\w+): \"", script[script.index("const REASONS") : script.index("const ENDS")], re.MULTILINE)
    )
    assert known == told


def test_the_page_shows_the_same_characters_as_the_commands() -> None:
    script = (ROOT / "nexus_tasks/integrations/http/browser/dom.js").read_text(encoding="utf-8")
    [pattern] = re.findall(r"const HIDDEN =\s+/(.*)/gu;", script)
    pattern = re.compile(re.sub(r"\\u\{(\w+)\}", lambda code: f"\\U{code[1]:>08}", pattern))
    for before in ("", "a", "葛", "\ufe0f", "\u200d", "\U000e0100"):
        for code in (*range(0x3000), *range(0xFE00, 0xFF00), *range(0xE0000, 0xE1000)):
            text = before + chr(code)
            assert pattern.sub("", text) == strip_hidden(text), (before, hex(code))


def test_the_page_of_a_limited_process_shows_no_other_namespace(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for namespace in ("mine", "theirs"):
        Nexus().remember(namespace, f"The secret of {namespace}.")
    monkeypatch.setenv("NEXUS_NAMESPACES", "mine")
    with here.another(), browsing(write=True) as (client, visit):
        enter(client, visit)
        listed = client.get("/v1/memories", params={"namespace": "mine"}).json()["memories"]
        assert [one["content"] for one in listed] == ["The secret of mine."]
        assert client.get("/v1/memories", params={"namespace": "theirs"}).status_code == 403
        assert [one["namespace"] for one in client.get("/v1/namespaces").json()["namespaces"]] == ["mine"]


LOADED = """
import sys
from nexus_tasks import Nexus
from nexus_tasks.integrations.http import serve
nexus = Nexus()
serve.load()
before = set(sys.modules)
nexus.namespaces(), nexus.namespace("acme"), nexus.status("acme"), nexus.sessions("acme"), nexus.memories("acme")
nexus.search("acme", "tea"), nexus.context("acme", query="tea"), nexus.profile("acme", "ann")
nexus.perspectives("acme"), nexus.jobs(), nexus.finished_jobs(), nexus.spend("acme")
print(sorted(name for name in set(sys.modules) - before if name.startswith(("nexus_tasks", "numpy", "sqlalchemy"))))
"""


def test_a_served_request_waits_for_no_import(here: Sandbox) -> None:
    say("I drink tea.", namespace="acme")
    ran = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**here.environment, "PYTHONPATH": str(ROOT)},
        cwd=here.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    late = [name for name in json.loads(ran.stdout.replace("'", '"')) if not name.startswith("nexus_tasks.embeddings")]
    assert late == []
