"""A token that the operator chose must be hard to guess where other machines can reach the server."""

from __future__ import annotations

import secrets
import time

import pytest

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.integrations.mcp import http
from nexus_tasks.integrations.mcp.server import server
from nexus_tasks.integrations.serving.access import check_strength, estimated_bits


@pytest.mark.parametrize(
    "token",
    [
        "",
        "secret",
        "a-long-random-token",
        "a" * 200,
        "ab" * 100,
        "1234567890" * 10,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "password" * 20,
        "0" * 64,
        "9" * 30 + "8" * 30,
        "bdef6a4c8c00dc5f18042ef64c74d5",  # 120 bits
        "TIZyJow-7Kc" * 8,
    ],
)
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    assert estimated_bits(token) < 128
    with pytest.raises(ConfigurationError, match=r"secrets\.token_urlsafe") as refused:
        check_strength(token, "NEXUS_MCP_TOKEN")
    assert len(token) < 10 or token not in str(refused.value)


@pytest.mark.parametrize("make", [secrets.token_urlsafe, secrets.token_hex])
def test_a_random_token_passes(make: object) -> None:
    refused = sum(estimated_bits(make(32)) < 128 for _ in range(2_000))  # type: ignore[operator]
    assert refused == 0


def test_the_shortest_random_hex_passes() -> None:
    # By chance, 1 of some 400 such tokens repeats itself.
    assert sum(estimated_bits(secrets.token_hex(16)) < 128 for _ in range(2_000)) < 40


def test_other_machines_want_a_strong_token_and_this_machine_takes_any() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "memory.example"):
        with pytest.raises(ConfigurationError, match="128 bits"):
            http.application(server("acme"), "a-long-random-token", host, 80)
        assert http.application(server("acme"), secrets.token_urlsafe(32), host, 80)
    for host in ("127.0.0.1", "::1", "localhost"):
        assert http.application(server("acme"), "a-long-random-token", host, 80)


def test_the_time_does_not_grow_with_a_long_token() -> None:
    began = time.process_time()
    assert estimated_bits(secrets.token_urlsafe(20_000)) > 128
    assert estimated_bits("ab" * 20_000) < 128
    assert time.process_time() - began < 0.5
