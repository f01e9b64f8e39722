"""Echoes are found in time, however many memories a message cites."""

from __future__ import annotations

import time

import pytest

from nexus_tasks.cognition.echo import without_echo

SLOW = "m " * 39 + "x"  # a search for it in many `m` does not skip
TOLD = dict.fromkeys(range(60000), SLOW)


@pytest.mark.parametrize("between", [" ", "\n"])
def test_a_message_that_cites_everything_is_read_in_seconds(between: str) -> None:
    text = between.join(f"[m{number}]" for number in TOLD) + " m" * 100_000
    began = time.process_time()
    assert without_echo(text, "user", TOLD) == text
    assert time.process_time() - began < 4


def test_a_line_is_an_echo_of_any_of_its_first_known_citations() -> None:
    told = {7: "Ann lives in Porto.", 8: "Ann drinks green tea."}
    said = f"- {'[m1] ' * 30}[m7] [m8] {told[8]}"
    assert without_echo(f"Look:\n{said}", "user", told) == "Look:"
    assert without_echo(said.replace("green", "black"), "user", told) == said.replace("green", "black")
