"""Reading exports of mem0 and Honcho, in the form that mem0ai 2.2.1 and honcho-ai 2.7.0 write, with made-up texts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import Conversation, Format, read

MOVED = {
    **{"id": "a1f0", "memory": "Ann moved to Porto", "hash": "h1", "metadata": {"category": "home"}},
    **{"created_at": "2026-03-02T08:00:00.250000-07:00", "updated_at": None, "user_id": "ann", "agent_id": "helper"},
    **{"run_id": "trip", "role": "user"},
}
DRINKS = {
    **{"id": "a1f1", "memory": "Ann drinks green tea", "hash": "h2", "metadata": None, "user_id": "ann"},
    **{"created_at": "2026-03-01T09:30:00+00:00", "updated_at": "2026-03-05T09:30:00+00:00"},
    **{"expiration_date": "2026-04-01"},
}
SAID = {
    **{"id": "m0", "content": "I moved to Porto.", "peer_id": "ann", "session_id": "s1", "workspace_id": "w"},
    **{"metadata": {"channel": "web"}, "created_at": "2026-03-01T09:30:00Z", "token_count": 5},
}
ANSWERED = {
    **{"id": "m1", "content": "Nice!", "peer_id": "assistant", "session_id": "s1", "workspace_id": "w"},
    **{"metadata": {}, "created_at": "2026-03-01 09:31:00+00:00", "token_count": 5},
}
RECORDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "mem0": ("results", [MOVED, DRINKS]),
    "honcho": ("items", [ANSWERED, SAID]),
}


def conversations(tmp_path: Path, text: str, format: Format = "auto", session: str | None = None) -> list[Conversation]:
    file = tmp_path / "export"
    file.write_text(text)
    return list(read(file, format, namespace="acme", session=session))


def complaint(tmp_path: Path, text: str, format: Format = "auto") -> str:
    with pytest.raises(InvalidInput) as caught:
        conversations(tmp_path, text, format)
    assert "nothing was stored" in caught.value.remedy
    return caught.value.message.removeprefix(str(tmp_path / "export")).removeprefix(", ")


def test_memories_of_mem0_become_messages(tmp_path: Path) -> None:
    notes, trip = conversations(tmp_path, json.dumps({"results": [MOVED, DRINKS]}))
    assert (notes.session_key, trip.session_key) == ("mem0", "trip")
    [moved], [drinks] = trip.messages, notes.messages
    assert (moved.id, moved.content, moved.author, moved.role) == ("a1f0", "Ann moved to Porto", "ann", "user")
    assert moved.occurred_at == datetime(2026, 3, 2, 15, 0, 0, 250_000, UTC)
    assert moved.time_zone is None  # the offset is the server's, not the speaker's
    assert moved.data == {
        **{"hash": "h1", "metadata": {"category": "home"}, "user_id": "ann", "agent_id": "helper"},
    }
    assert (moved.expires_at, drinks.expires_at) == (None, datetime(2026, 4, 2, tzinfo=UTC))
    assert (drinks.data or {})["updated_at"] == "2026-03-05T09:30:00+00:00"


def test_messages_of_honcho_keep_their_peers_times_and_metadata(tmp_path: Path) -> None:
    [one] = conversations(tmp_path, json.dumps({"items": [ANSWERED, SAID], "page": 1}))
    assert one.session_key == "s1"
    first, second = one.messages  # in the order of their times
    assert (first.id, first.author, first.role, first.data) == ("m0", "ann", "user", {"channel": "web"})
    assert first.occurred_at == datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
    assert (second.author, second.role, second.data) == ("assistant", "assistant", None)
    [own] = conversations(tmp_path, json.dumps({**SAID, "metadata": {"role": "assistant"}}))
    assert own.messages[0].role == "assistant"


@pytest.mark.parametrize("format", RECORDS)
def test_pages_lists_and_lines_are_read_alike(tmp_path: Path, format: str) -> None:
    key, listed = RECORDS[format]
    expected = conversations(tmp_path, json.dumps({key: listed}))
    texts = [
        json.dumps(listed),
        json.dumps({key: listed}, indent=2),
        json.dumps([{key: listed[:1]}, {key: listed[1:]}]),
        "\n".join(json.dumps(one) for one in listed) + "\n",
        "\n\n".join(json.dumps({key: [one]}) for one in listed),
        "\ufeff" + json.dumps(listed),
    ]
    for text in texts:
        assert conversations(tmp_path, text) == expected, text
    [one] = conversations(tmp_path, texts[0], session="all")
    assert (one.session_key, len(one.messages)) == ("all", 2)


@pytest.mark.parametrize("format", RECORDS)
def test_an_empty_page_has_nothing_to_import(tmp_path: Path, format: Format) -> None:
    assert conversations(tmp_path, json.dumps({RECORDS[format][0]: []}), format) == []


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        ("mem0", json.dumps(MOVED) + "\n{broken\n", "line 2: not JSON: "),
        ("mem0", json.dumps(MOVED) + '\n{"id": "x"}\n', 'line 2: "memory" is missing.'),
        (
            "mem0",
            '{\n"results": [\n{"id": 1,\n}',
            ": not JSON: Expecting property name enclosed in double quotes: line 4",
        ),
        ("mem0", json.dumps({"results": [MOVED, {**DRINKS, "id": 7}]}), 'results[1]: "id" must be text, not a number.'),
        ("mem0", json.dumps({"results": [MOVED, "x"]}), "results[1]: a record must be an object, not text."),
        ("mem0", json.dumps([{**MOVED, "created_at": "soon"}]), "[0]: \"created_at\" 'soon' is not an ISO 8601 time"),
        ("mem0", json.dumps({**MOVED, "expiration_date": "9999-12-31"}), ': "expiration_date"'),
        (
            "mem0",
            json.dumps([MOVED, {**MOVED, "memory": "Other"}]),
            "[1]: another message of session 'trip' has the id",
        ),
        ("mem0", "7", ": a record must be an object, not a number."),
        (
            "honcho",
            json.dumps(SAID) + "\n" + json.dumps({**SAID, "created_at": None}),
            'line 2: "created_at" is missing.',
        ),
        (
            "honcho",
            json.dumps([SAID, {**SAID, "id": "z", "workspace_id": "v"}]),
            "[1]: the file has the workspaces w and v",
        ),
        ("honcho", json.dumps({"id": "c", "content": "x", "observed_id": "ann"}), ": this is a conclusion; export"),
        ("honcho", json.dumps({**SAID, "peer_id": "x" * 300}), ": author must be one line of at most 256"),
    ],
)
def test_a_wrong_record_is_named_with_its_place(tmp_path: Path, format: Format, text: str, said: str) -> None:
    assert complaint(tmp_path, text, format).startswith(said)
