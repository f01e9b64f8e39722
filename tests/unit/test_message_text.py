"""What is shown of a message of an observed session."""

from __future__ import annotations

import base64

import pytest

from nexus_tasks.cognition.observing.message_text import spoken

SAID = "I moved to Lisbon and my sister lives in Porto, as you know."


@pytest.mark.parametrize("length", range(60, 400, 31))
@pytest.mark.parametrize("behind", [" ", "\n", "\n\n", ") "])
def test_what_is_said_behind_an_attachment_stays(length: int, behind: str) -> None:
    picture = base64.b64encode(bytes(range(256)) * 2)[: length // 3 * 4].decode()
    shown = spoken(f"Look: data:image/png;base64,{picture}{behind}{SAID}")
    assert shown == f"Look: [attachment: image/png]{behind}{SAID}"


@pytest.mark.parametrize("length", range(100, 400, 7))
def test_a_wrapped_attachment_is_replaced_up_to_its_last_line(length: int) -> None:
    lines = base64.encodebytes((bytes(range(256)) * 2)[:length]).decode()
    shown = spoken(f"data:text/plain;base64,\n{lines}{SAID}")
    assert shown.startswith("[attachment: text/plain]\n")
    assert shown.endswith(SAID)
    assert len(shown) < len(f"[attachment: text/plain]\n{SAID}") + 33
