"""Webhooks: told at least once, signed, in the transaction that makes the event, and never in the own network."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from nexus_tasks import Nexus, calling_out
from nexus_tasks.cli.main import app
from nexus_tasks.errors import InvalidInput, NotFound, Permanent, Transient
from nexus_tasks.storage import webhooks
from tests.integration.http_client import api, ok
from tests.integration.inline import NAMESPACE, facts, say, time_passes, waiting, work
from tests.sandbox import Sandbox, engine, eventually

EVENTS = ("session.digested", "dream.finished", "contradiction.found", "job.dead")


class Receiver:
    """A server that keeps what it is told, and answers with ``status``."""

    def __init__(self) -> None:
        self.status, self.told = 200, list[tuple[dict[str, str], bytes]]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.told.append((dict(self.headers), body))
                self.send_response(receiver.status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=b"

    @property
    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.told]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def private(deploy: Callable[..., Sandbox]) -> Sandbox:
    return deploy(NEXUS_WEBHOOK_PRIVATE="true")


def hooked(here: Sandbox, receiver: Receiver, *events: str) -> Any:
    nexus = Nexus(here.deployment)
    nexus.create_namespace(NAMESPACE)
    return nexus.create_webhook(NAMESPACE, receiver.url, events=events or EVENTS)  # type: ignore[arg-type]


def deliver(here: Sandbox) -> None:
    """Ask for what the outbox wants, as reconcile does, and do it."""
    kind = engine.kind("deliver_webhook")
    with here.deployment.database.transaction() as tx:
        wanted = [arguments for _, arguments in kind.outbox.page(here.deployment, tx, 0, 100)]
    for arguments in wanted:
        engine.publisher.enqueue([kind.request_for(arguments)])
    work("deliver_webhook")


def hour_passes(here: Sandbox) -> None:
    """Let the waits of the webhooks end."""
    here.sql("UPDATE webhooks SET retry_at = retry_at - interval '1 hour'")


def states(here: Sandbox) -> list[str]:
    return [state for (state,) in here.sql("SELECT state FROM webhook_deliveries ORDER BY id")]


def test_each_event_is_told_with_a_signature(private: Sandbox, receiver: Receiver) -> None:
    made = hooked(private, receiver)
    say("I live in Lisbon.", "I drink tea.")
    work()
    say("I live in Porto now, and no longer in Lisbon.", end=True)
    work()
    Nexus(private.deployment).dream(NAMESPACE)
    work()
    deliver(private)
    assert {"session.digested", "dream.finished"} <= set(receiver.events)
    headers, body = receiver.told[0]
    at, signed = (part.partition("=")[2] for part in headers["Nexus-Signature"].split(","))
    expected = hmac.new(made.secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(signed, expected)
    told = json.loads(body)
    assert (told["namespace"], headers["Nexus-Delivery"]) == (NAMESPACE, str(told["id"]))
    assert "Lisbon" not in str(receiver.told)
    assert set(states(private)) == {"sent"}
    before = len(receiver.told)
    deliver(private)
    assert len(receiver.told) == before


def test_only_the_wanted_events_of_the_own_namespace_are_told(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver, "dream.finished")
    say("I live in Lisbon.", end=True)
    say("I live in Lisbon.", namespace="others", end=True)
    work()
    deliver(private)
    assert receiver.events == []


def test_what_is_rolled_back_is_not_told(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver)
    with suppress(ZeroDivisionError), private.deployment.database.transaction() as tx:
        webhooks.tell(tx, 1, "dream.finished", {})
        raise ZeroDivisionError
    assert states(private) == []


def test_a_webhook_that_fails_is_tried_again_and_one_that_refuses_is_a_dead_letter(
    private: Sandbox, receiver: Receiver
) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")
    receiver.status = 503
    deliver(private)
    assert (len(receiver.told), states(private)) == (1, ["wanted"])
    receiver.status = 302  # a redirection is not followed
    deliver(private)
    assert len(receiver.told) == 1  # it waits for 10 s
    hour_passes(private)
    deliver(private)
    deliver(private)  # the dead letter itself is told to nobody
    nexus = Nexus(private.deployment)
    [dead] = nexus.jobs(namespace=NAMESPACE, status="dead")
    assert (dead.kind, "302" in str(dead.error), states(private)) == ("deliver_webhook", True, ["dead"])
    receiver.status = 200
    nexus.retry_job(dead.id)
    work("deliver_webhook")
    assert (len(receiver.told), states(private)) == (3, ["sent"])


def test_a_run_that_ends_between_the_answer_and_the_commit_tells_again_with_the_same_id(
    private: Sandbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")

    def cut_off(*_args: Any) -> None:
        raise Transient("The connection was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(webhooks, "set_state", cut_off)
        deliver(private)
    assert (len(receiver.told), states(private)) == (1, ["wanted"])
    time_passes(private)
    work("deliver_webhook")
    assert states(private) == ["sent"]
    assert len({headers["Nexus-Delivery"] for headers, _ in receiver.told}) == 1
    assert len(receiver.told) == 2


def test_a_worker_that_is_killed_between_the_answer_and_the_commit_tells_again_with_the_same_id(
    private: Sandbox, receiver: Receiver
) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")
    database = private.deployment.database
    with database.transaction() as tx:  # the answer comes, and the row cannot be marked
        tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # 8 s are short for a worker's start
        tx.execute(text("SELECT 1 FROM webhook_deliveries FOR UPDATE"))
        first = private.worker()  # not before: it may tell and mark the row before the row is locked
        eventually(lambda: receiver.told, within=60)
        eventually(lambda: private.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        first.kill()
    assert states(private) == ["wanted"]
    private.worker()
    eventually(lambda: states(private) == ["sent"], within=120)
    assert len(receiver.told) == 2
    assert len({headers["Nexus-Delivery"] for headers, _ in receiver.told}) == 1
    assert len({body for _, body in receiver.told}) == 1


class SlowReceiver:
    """What :func:`slow_receiver` has seen: the ids of deliveries, the calls of this moment, and the most at a time."""

    def __init__(self) -> None:
        self.url, self.answer, self.lock = "", threading.Event(), threading.Lock()
        self.calls, self.calling, self.most = list[str](), 0, 0


@contextmanager
def slow_receiver(seconds: float) -> Iterator[SlowReceiver]:
    """A server that answers after so many seconds, or once ``answer`` is set."""
    slow = SlowReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with slow.lock:
                slow.calls.append(self.headers["Nexus-Delivery"])
                slow.calling += 1
                slow.most = max(slow.most, slow.calling)
            self.rfile.read(int(self.headers["Content-Length"]))
            slow.answer.wait(seconds)
            with slow.lock:
                slow.calling -= 1
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        slow.url = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever).start()
        try:
            yield slow
        finally:
            slow.answer.set()
            server.shutdown()


@pytest.mark.parametrize(("number", "bound"), [(1, webhooks.AT_A_TIME), (8, 16 // webhooks.SHARE)])
def test_webhooks_that_answer_slowly_leave_the_runs_of_their_namespace_to_others(
    private: Sandbox, number: int, bound: int
) -> None:
    with slow_receiver(9) as slow:
        nexus = Nexus(private.deployment)
        nexus.create_namespace(NAMESPACE)
        for _ in range(number):
            nexus.create_webhook(NAMESPACE, slow.url, events=["dream.finished"])
        with private.deployment.database.transaction() as tx:
            for dream in range(200 // number):
                webhooks.tell(tx, 1, "dream.finished", {"dream": dream})
        private.worker()
        eventually(lambda: len(slow.calls) >= bound, within=60)
        time.sleep(1)  # further calls have time to come, and must not
        begun = time.monotonic()
        say("I live in Lisbon.", end=True)
        eventually(facts, within=60)
        assert time.monotonic() - begun < 5
        assert slow.most == bound
        eventually(lambda: "sent" in states(private), within=30)  # an answer after 9 s is an answer
        slow.answer.set()
        eventually(lambda: set(states(private)) == {"sent"}, within=60)
    assert (slow.most, len(slow.calls), len(set(slow.calls))) == (bound, 200, 200)


def test_a_receiver_of_many_namespaces_that_hangs_leaves_threads_to_other_jobs(private: Sandbox) -> None:
    """Before, each of 8 threads waited 10 s for it, and the jobs of all namespaces with them."""
    with slow_receiver(30) as slow:
        nexus = Nexus(private.deployment)
        for number in range(16):
            nexus.create_namespace(f"other-{number}")
            nexus.create_webhook(f"other-{number}", slow.url, events=["dream.finished"])
        with private.deployment.database.transaction() as tx:
            for number in range(16):
                webhooks.tell(tx, 1 + number, "dream.finished", {})
        private.worker()
        eventually(lambda: slow.calling >= 6, within=60)
        begun = time.monotonic()
        say("I live in Lisbon.", end=True)
        eventually(facts, within=60)
        assert time.monotonic() - begun < 5
        assert slow.most == 6
        eventually(lambda: [claim for claim in waiting() if claim.wait_reason == "webhooks"], within=20)
        slow.answer.set()
        eventually(lambda: set(states(private)) == {"sent"}, within=60)


def test_slow_webhooks_of_others_do_not_keep_a_webhook_waiting(private: Sandbox, receiver: Receiver) -> None:
    """Before, the next deliveries of the slow webhooks took each free place, and it waited until all were sent."""
    with slow_receiver(3) as slow:
        nexus = Nexus(private.deployment)
        for number in range(4):
            nexus.create_namespace(f"slow-{number}")
            for _ in range(2):
                nexus.create_webhook(f"slow-{number}", slow.url, events=["dream.finished"])
        with private.deployment.database.transaction() as tx:
            for number in range(4):
                for dream in range(30):
                    webhooks.tell(tx, 1 + number, "dream.finished", {"dream": dream})
        private.worker()
        eventually(lambda: len(slow.calls) >= 6, within=60)
        hooked(private, receiver, "dream.finished")
        with private.deployment.database.transaction() as tx:
            webhooks.tell(tx, 5, "dream.finished", {})
        eventually(lambda: receiver.told, within=30)
        assert len(slow.calls) < 120  # the slow ones go on


def test_a_namespace_with_few_runs_leaves_most_of_them_to_others(private: Sandbox, receiver: Receiver) -> None:
    nexus = Nexus(private.deployment)
    nexus.create_namespace(NAMESPACE, concurrency=8)
    for _ in range(3):
        nexus.create_webhook(NAMESPACE, receiver.url, events=["dream.finished"])
    with private.deployment.database.transaction() as tx:
        for dream in range(3):
            webhooks.tell(tx, 1, "dream.finished", {"dream": dream})
        assert [delivery for delivery, _ in webhooks.wanted(tx, 0, 100, runs=16)] == [1, 2]
        # The third webhook's turn comes before the second event of the first webhook.
        found = webhooks.due(tx, 1, 1)
        assert found is not None
        assert webhooks.following(tx, found.delivery, runs=16) == [3]
    while set(states(private)) != {"sent"}:
        deliver(private)
    assert len(receiver.told) == 9


def test_a_webhook_that_fails_for_hours_is_called_seldom_paused_and_resumed(
    private: Sandbox, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    made = hooked(private, receiver)
    nexus = Nexus(private.deployment)
    with private.deployment.database.transaction() as tx:
        for number in range(30):
            webhooks.tell(tx, 1, "dream.finished", {"dream": number})
    receiver.status = 500
    deliver(private)  # each of 30 jobs is asked for, and the first one finds that the webhook fails
    assert len(receiver.told) == 1
    waits = []
    for _ in range(webhooks.PAUSE_AFTER - 1):
        [one] = nexus.webhooks(NAMESPACE)
        assert one.retry_at is not None
        waits.append(round((one.retry_at - datetime.now(UTC)).total_seconds()))
        hour_passes(private)
        deliver(private)
    assert len(receiver.told) == webhooks.PAUSE_AFTER
    assert all(wait in range(5 * 2**n, 10 * 2**n + 1) for n, wait in enumerate(waits[:6]))
    assert waits[-1] in range(3_500, 3_601)
    [one] = nexus.webhooks(NAMESPACE)
    assert (one.failures, one.waiting, one.last_error) == (15, 30, "The webhook answered 500.")
    assert one.paused_at is not None
    assert f"nexus webhooks resume {made.id}" in caplog.text
    receiver.status = 200
    hour_passes(private)
    deliver(private)
    assert len(receiver.told) == webhooks.PAUSE_AFTER
    shown = CliRunner().invoke(app, ["webhooks", "list", "--namespace", NAMESPACE]).stdout
    assert "paused after 15 failures" in " ".join(shown.split())
    assert nexus.resume_webhook(NAMESPACE, made.id).paused_at is None
    deliver(private)
    assert set(states(private)) == {"sent"}
    assert len(receiver.told) == webhooks.PAUSE_AFTER + 30
    with pytest.raises(NotFound):
        nexus.resume_webhook(NAMESPACE, "none")


def test_a_webhook_that_answers_again_is_told_of_all_that_waits(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver)
    with private.deployment.database.transaction() as tx:
        for number in range(5):
            webhooks.tell(tx, 1, "dream.finished", {"dream": number})
    receiver.status = 503
    deliver(private)
    receiver.status = 200
    hour_passes(private)
    deliver(private)
    assert states(private).count("sent") == 1  # one call tries whether it answers
    deliver(private)
    assert states(private) == ["sent"] * 5
    assert len(receiver.told) == 6
    [one] = Nexus(private.deployment).webhooks(NAMESPACE)
    assert (one.failures, one.last_error, one.waiting) == (0, None, 0)


def test_a_name_that_leads_to_a_private_network_is_a_failure_of_its_webhook(here: Sandbox) -> None:
    """Before, each event became a dead letter, although no receiver had refused it."""
    nexus = Nexus(here.deployment)
    nexus.create_namespace(NAMESPACE)
    nexus.create_webhook(NAMESPACE, "https://8.8.8.8/hook")
    here.sql("UPDATE webhooks SET url = 'https://10.0.0.1/hook'")
    with here.deployment.database.transaction() as tx:
        webhooks.tell(tx, 1, "dream.finished", {"dream": 1})
    deliver(here)
    assert states(here) == ["wanted"]
    [one] = nexus.webhooks(NAMESPACE)
    assert one.failures == 1
    assert one.last_error is not None
    assert one.last_error.startswith("10.0.0.1 has an address of a private network. Use a public address.")
    assert "NEXUS_WEBHOOK_PRIVATE" in one.last_error


def test_of_two_jobs_that_come_at_the_same_time_one_calls_a_webhook_that_failed(
    private: Sandbox, receiver: Receiver
) -> None:
    hooked(private, receiver)
    with private.deployment.database.transaction() as tx:
        for number in range(2):
            webhooks.tell(tx, 1, "dream.finished", {"dream": number})
    receiver.status = 500
    deliver(private)
    hour_passes(private)
    [_, (second,)] = private.sql("SELECT id FROM webhook_deliveries ORDER BY id")
    with private.deployment.database.transaction() as late:
        found = webhooks.due(late, 1, second)
        assert found
        with private.deployment.database.transaction() as first:
            assert webhooks.may_call(first, found.hook.id)
        assert not webhooks.may_call(late, found.hook.id)


def test_an_erased_namespace_is_not_told_of(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")
    receiver.status = 503
    deliver(private)
    Nexus(private.deployment).forget(NAMESPACE, everything=True)
    receiver.status = 200
    deliver(private)
    assert (len(receiver.told), states(private)) == (1, [])


def test_a_webhook_that_is_deleted_meanwhile_fails_no_event(private: Sandbox, receiver: Receiver) -> None:
    made = hooked(private, receiver)
    database, deleted = private.deployment.database, threading.Event()
    [(namespace_id,)] = private.sql("SELECT id FROM namespaces WHERE name = :n", n=NAMESPACE)

    def tell() -> None:
        with database.transaction() as tx:
            deleted.set()
            webhooks.tell(tx, namespace_id, "dream.finished", {"dream": 1})

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as tx:
            webhooks.remove(tx, namespace_id, made.id)
            telling = pool.submit(tell)
            assert deleted.wait(30)
            eventually(lambda: private.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        telling.result(30)
    assert states(private) == []


def test_changes_of_webhooks_are_in_the_audit_log(private: Sandbox, receiver: Receiver) -> None:
    made = hooked(private, receiver)
    nexus = Nexus(private.deployment)
    nexus.delete_webhook(NAMESPACE, made.id)
    assert [one.action for one in nexus.audit(NAMESPACE)] == ["webhook.delete", "webhook.create"]


def test_a_flushed_redis_loses_no_delivery(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")
    private.flush()
    deliver(private)
    assert receiver.events == ["session.digested"]


def test_an_erased_session_is_not_told_of(private: Sandbox, receiver: Receiver) -> None:
    hooked(private, receiver)
    say("I live in Lisbon.", end=True)
    work("derive_memory", "digest_session")
    nexus = Nexus(private.deployment)
    nexus.forget(NAMESPACE, session_key="chat")
    assert states(private) == []
    nexus.forget(NAMESPACE, everything=True)
    assert len(nexus.webhooks(NAMESPACE)) == 1
    assert facts() == []


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1"),
        *("2130706433", "127.1", "0177.0.0.1", "0x7f.1"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::a00:1]", "[2002:7f00:1::]"),
        *("192.88.99.1", "[2002:c058:6301::1]", "[3fff::1]", "192.0.0.192", "168.63.129.16", "[::ffff:168.63.129.16]"),
        *("[fc00::1]", "[fe80::1]", "[fec0::1]", "[ff02::1]"),
    ],
)
def test_no_address_of_the_own_network_is_called(host: str) -> None:
    with pytest.raises(Permanent, match="private network"):
        calling_out.post(f"https://{host}/", b"", {}, private=False)


def test_a_host_that_answers_a_byte_at_a_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling_out, "LONGEST", 0.3)
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with suppress(OSError), server.accept()[0] as one:
                one.sendall(b"HTTP/1.1 ")
                while not stopped.wait(0.02):
                    one.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(Transient):
            calling_out.post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, private=True)
        stopped.set()
        thread.join()
    assert time.monotonic() - begun < 3


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose second answer would be private is connected to by its first address."""
    asked: list[Any] = []
    real = calling_out.socket.getaddrinfo

    def answer(host: str, port: int, *args: Any, **given: Any) -> Any:
        if host == "hook.example":
            asked.append(host)
            host = "127.0.0.1"
        return real(host, port, *args, **given)

    monkeypatch.setattr(calling_out.socket, "getaddrinfo", answer)
    with pytest.raises(Transient):
        calling_out.post("http://hook.example:1/", b"", {}, private=True)
    assert asked == ["hook.example"]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "ftp://example.org",
        "https://",
        "https://a:b@example.org",
        "https://a b",
        "x" * 3_000,
        f"https://{'a' * 64}.org",
        pytest.param("https://" + "\u0345\u0300" * 500_000, id="marks"),  # before: many minutes
    ],
)
def test_wrong_addresses_are_refused(here: Sandbox, url: str) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace(NAMESPACE)
    with pytest.raises(InvalidInput):
        nexus.create_webhook(NAMESPACE, url)


def test_over_http(private: Sandbox, receiver: Receiver) -> None:
    space = {"namespace": NAMESPACE}
    with api(private) as client:
        ok(client.post("/v1/namespaces", json=space))
        made = ok(client.post("/v1/webhooks", json={**space, "url": receiver.url, "events": ["job.dead"]}))
        [listed] = ok(client.get("/v1/webhooks", params=space))["webhooks"]
        assert (listed["id"], "secret" in listed) == (made["id"], False)
        assert ok(client.delete(f"/v1/webhooks/{made['id']}", params=space))["id"] == made["id"]
        assert client.delete(f"/v1/webhooks/{made['id']}", params=space).status_code == 404
        unknown = {**space, "url": receiver.url, "events": ["x"]}
        assert client.post("/v1/webhooks", json=unknown).status_code == 422
    with pytest.raises(NotFound):
        Nexus(private.deployment).delete_webhook(NAMESPACE, made["id"])
