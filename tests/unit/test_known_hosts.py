"""Which name a header ``Host`` tells. An address is known, and a name that only looks like one is not."""

from __future__ import annotations

import pytest

from nexus_tasks.integrations.serving.hosts import host_of


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("[::1]", "::1"),
        ("[::1]:8080", "::1"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("Localhost.:80", "localhost"),
        ("memory.example", "memory.example"),
        ("127.0.0.1:", "127.0.0.1"),
    ],
)
def test_a_header_tells_a_name_without_its_port(header: str, name: str) -> None:
    assert host_of(header) == name


@pytest.mark.parametrize(
    "header",
    [
        "[::1].evil.example",
        "[::1]evil.example:80",
        "127.0.0.1:80.evil.example",
        "[::1",
        "[[::1]]",
        "localhost:x",
        "a:1:2",
    ],
)
def test_other_text_tells_no_name(header: str) -> None:
    assert host_of(header) == ""
