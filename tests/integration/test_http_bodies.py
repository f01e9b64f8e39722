"""Long bodies of one tenant, wrong or valid, keep no other tenant waiting.

How long a request waits is measured in the server's CPU time, because the tests of a busy machine share its cores.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest

from nexus_tasks import Nexus, limits
from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.http_client import as_token
from tests.integration.serve_process import serve_process
from tests.sandbox import Sandbox

MANY = limits.HTTP_BODY_VALUES - 10


def body(**fields: str) -> bytes:
    """A body of these fields, given as JSON."""
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def many(value: str) -> str:
    return "[" + ",".join([value] * MANY) + "]"


UNKNOWN = ",".join(f'"f{n}":1' for n in range(MANY))
WRONG = {
    "messages": body(session_key='"s"', messages=many('"bad"')),
    "tool calls": body(session_key='"s"', messages='[{"content":"a","tool_calls":' + many("1") + "}]"),
    "unknown fields": f'{{"session_key":"s","messages":[],{UNKNOWN}}}'.encode(),
    "unknown fields of a message": f'{{"session_key":"s","messages":[{{"content":"a",{UNKNOWN}}}]}}'.encode(),
    "observers": body(session_key='"s"', messages="[]", observers=many("1")),
    "too many values": b"[" + b"[]," * (limits.HTTP_BODY_BYTES // 3 - 10) + b"[]]",
}


@pytest.mark.parametrize("kind", WRONG)
def test_bodies_with_half_a_million_faults_keep_no_other_tenant_waiting(here: Sandbox, kind: str) -> None:
    answers, waits = crowded(here, "/v1/messages", [WRONG[kind]] * 6)
    assert {one.status_code for one in answers} == {413 if kind == "too many values" else 422}
    assert max(len(one.content) for one in answers) < 2_000
    assert max(waits) <= 1.0


def test_calls_of_many_messages_keep_no_other_tenant_waiting(here: Sandbox) -> None:
    calls = [
        body(
            session_key=f'"s{n}"',
            messages=json.dumps([{"content": f"Ship {i} has come in.", "id": f"{i}"} for i in range(10_000)]),
        )
        for n in range(3)
    ]
    answers, waits = crowded(here, "/v1/messages", calls)
    assert {one.status_code for one in answers} == {200}
    assert max(waits) <= 1.0


def crowded(here: Sandbox, path: str, bodies: list[bytes]) -> tuple[list[httpx2.Response], list[float]]:
    """The answers to ``bodies``, sent at once by one tenant, and the CPU time of each small read of another tenant."""
    nexus = Nexus(here.deployment)
    tokens = {}
    for name in ("acme", "other"):
        nexus.remember(name, f"The plan of {name}.")
        tokens[name] = nexus.create_token(name, "agent", scopes=["read", "write"]).token
    with serve_process(here) as (pid, port), ThreadPoolExecutor(len(bodies)) as pool:
        url = f"http://{LOOPBACK}:{port}"
        with httpx2.Client(base_url=url, headers=as_token(tokens["other"]), timeout=120) as client:
            for _ in range(5):
                assert client.get("/v1/memories").status_code == 200
            heads = as_token(tokens["acme"]) | {"Content-Type": "application/json"}
            sent = [pool.submit(httpx2.post, url + path, content=one, headers=heads, timeout=300) for one in bodies]
            waits = []
            while not all(one.done() for one in sent) or len(waits) < 5:
                began = cpu_time(pid)
                assert client.get("/v1/memories").status_code == 200
                waits.append(cpu_time(pid) - began)
                time.sleep(0.01)
        return [one.result() for one in sent], waits


def cpu_time(pid: int) -> float:
    """The seconds for which the threads of a process have run."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system
