"""Reading conversations from files."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers import Conversation, Format, read
from nexus_tasks.integrations.importers.conversation import decoded
from nexus_tasks.integrations.importers.jsonl import parse
from nexus_tasks.integrations.importers.source import Source
from nexus_tasks.types import Message

LOCOMO = Path(__file__).parents[2].parent / "shared" / "data" / "locomo" / "dev.json"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chat.jsonl"


def write(file: Path, *records: object) -> Path:
    file.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
    return file


def conversations(file: Path, format: Format = "auto", session: str | None = None) -> list[Conversation]:
    return list(read(file, format, namespace="acme", session=session))


def complaint(file: Path, format: Format = "auto") -> str:
    with pytest.raises(InvalidInput) as caught:
        read(file, format, namespace="acme")  # before anything is asked of the iterator
    assert str(file) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(str(file)).removeprefix(", ")


# --- jsonl ------------------------------------------------------------------------------------------------------------
def test_every_field_is_read(file: Path) -> None:
    write(
        file,
        {
            "session": "s1",
            "role": "assistant",
            "author": "helper",
            "content": "I looked it up.",
            "occurred_at": "2026-11-20T09:30:00Z",
            "id": "m1",
            "tool_calls": [{"name": "search", "input": {"q": "tea"}}],
            "colour": "ignored",
        },
    )
    assert conversations(file) == [
        Conversation(
            namespace="acme",
            session_key="s1",
            messages=(
                Message(
                    content="I looked it up.",
                    role="assistant",
                    author="helper",
                    occurred_at=datetime(2026, 11, 20, 9, 30, tzinfo=UTC),
                    id="m1",
                    tool_calls=({"name": "search", "input": {"q": "tea"}},),
                ),
            ),
        )
    ]


def test_only_content_is_required(file: Path) -> None:
    write(file, {"content": "hi"}, {"content": "ho", "session": None, "role": None, "author": None, "id": None})
    (conversation,) = conversations(file)
    assert conversation.session_key == "chat"
    assert conversation.messages == (Message(content="hi"), Message(content="ho"))
    assert [c.session_key for c in conversations(file, session="given")] == ["given"]


def test_tool_calls_may_stand_alone(file: Path) -> None:
    write(file, {"role": "assistant", "content": None, "tool_calls": [{"name": "search"}]})
    assert conversations(file)[0].messages[0].tool_calls == ({"name": "search"},)


def test_interleaved_sessions_are_told_apart_and_keep_their_order(file: Path) -> None:
    write(file, *({"session": key, "content": str(i)} for i, key in enumerate("bababc")))
    found = [(c.session_key, [m.content for m in c.messages]) for c in conversations(file, session="unused")]
    assert found == [("b", ["0", "2", "4"]), ("a", ["1", "3"]), ("c", ["5"])]


def test_a_mark_blank_lines_and_windows_line_ends_are_no_trouble(file: Path) -> None:
    file.write_bytes('\ufeff\r\n{"content": "one\u2028line"}\r\n\n  \n{"content": "two"}'.encode())
    assert [m.content for m in conversations(file)[0].messages] == ["one\u2028line", "two"]


@pytest.mark.parametrize(
    ("given_time", "expected"),
    [
        ("2026-11-20T09:30:00Z", datetime(2026, 11, 20, 9, 30, tzinfo=UTC)),
        ("2026-11-20T10:30:00.5+01:00", datetime(2026, 11, 20, 9, 30, 0, 500_000, tzinfo=UTC)),
        ("2026-11-20 09:30", datetime(2026, 11, 20, 9, 30, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        (1_795_167_000, datetime(2026, 11, 20, 9, 30, tzinfo=UTC)),
        (1_795_167_000.25, datetime(2026, 11, 20, 9, 30, 0, 250_000, tzinfo=UTC)),
        (1_795_167_000_250, datetime(2026, 11, 20, 9, 30, 0, 250_000, tzinfo=UTC)),
    ],
)
def test_times(file: Path, given_time: object, expected: datetime) -> None:
    write(file, {"content": "hi", "occurred_at": given_time})
    assert conversations(file)[0].messages[0].occurred_at == expected


def test_the_same_message_may_come_twice(file: Path) -> None:
    write(
        file, {"content": "hi", "id": "1"}, {"content": "hi", "id": "1"}, {"content": "ho", "id": "1", "session": "b"}
    )
    assert [len(c.messages) for c in conversations(file)] == [2, 1]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("hello\n", "not JSON"),
        ('{"content": "hi"\n', "not JSON"),
        ('{"content": "hi", "tool_calls": [{"x": NaN}]}\n', "NaN is not JSON"),
        ("[" * 100_000 + "\n", "nested too deeply"),
        ("3\n", "a message must be an object, not a number"),
        ('"hi"\n', "a message must be an object, not text"),
        ("[]\n", "a message must be an object, not a list"),
        ("null\n", "a message must be an object, not null"),
        ({"role": "user"}, '"content" is missing'),
        ({"content": 3}, '"content" must be text, not a number'),
        ({"content": "  "}, "content is empty"),
        ({"content": "\x00"}, "content is empty"),
        ({"content": "x" * 1_000_001}, "at most 1,000,000"),
        ({"content": "hi", "role": "robot"}, "role must be one of user, assistant, system, tool"),
        ({"content": "hi", "role": ""}, "role must be one of"),
        ({"content": "hi", "role": True}, '"role" must be text, not a boolean'),
        ({"content": "hi", "author": ["ann"]}, '"author" must be text, not a list'),
        ({"content": "hi", "author": " "}, "author must be a non-empty text"),
        ({"content": "hi", "session": 7}, '"session" must be text, not a number'),
        ({"content": "hi", "session": ""}, "session must be a non-empty text"),
        ({"content": "hi", "session": "x" * 300}, "session must be one line of at most 256"),
        ({"content": "hi", "id": 1}, '"id" must be text, not a number'),
        ({"content": "hi", "id": "\ud800"}, '"id" has half a character'),
        ({"content": "hi", "tool_calls": {}}, '"tool_calls" must be a list, not an object'),
        ({"content": "hi", "tool_calls": ["x"]}, '"tool_calls" must be a list of objects'),
        ({"content": "hi", "occurred_at": "yesterday"}, "'yesterday' is not an ISO 8601 time"),
        ({"content": "hi", "occurred_at": "0001-01-01T00:00+14:00"}, "is not an ISO 8601 time"),
        ({"content": "hi", "occurred_at": True}, '"occurred_at" must be a time, not a boolean'),
        ({"content": "hi", "occurred_at": 20261120}, "neither seconds nor milliseconds"),
        ('{"content": "hi", "occurred_at": 1e400}\n', "neither seconds nor milliseconds"),
        ({"content": "other", "id": "m1", "session": "s"}, "another message of session 's' has the id 'm1' already"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_read(file: Path, bad: object, why: str) -> None:
    good = {"content": "hi", "id": "m1", "session": "s"}
    write(file, good, "\n", bad, good)
    message = complaint(file, "jsonl")
    assert message.startswith("line 3: ")
    assert why in message


def test_what_is_no_text_is_named(file: Path) -> None:
    file.write_bytes(b'{"content": "hi"}\n{"content": "\xe9"}\n')
    assert complaint(file) == "line 2: not UTF-8 (byte 0xe9)."
    file.write_bytes('{"content": "hi"}\n'.encode("utf-16"))
    assert complaint(file) == "line 1: not UTF-8 (byte 0xff)."


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \n\r\n"])
def test_an_empty_file_is_an_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert complaint(file) == ": the file is empty: there is nothing to ingest."


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert complaint(tmp_path / "missing") == " cannot be read: No such file or directory."
    assert complaint(tmp_path) == " cannot be read: Is a directory."


def test_names_are_checked(file: Path) -> None:
    write(file, {"content": "hi"})
    with pytest.raises(InvalidInput, match=r"namespace '\.x' is not a name"):
        read(file, namespace=".x")
    with pytest.raises(InvalidInput, match="session must be a non-empty text"):
        read(file, namespace="acme", session=" ")
    with pytest.raises(InvalidInput, match="format 'csv' is not known"):
        read(file, "csv", namespace="acme")  # type: ignore[arg-type]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
FIELDS = st.sampled_from(["session", "role", "author", "content", "occurred_at", "id", "tool_calls"])


@given(st.lists(st.one_of(st.dictionaries(FIELDS, JSON, max_size=7).map(json.dumps), st.text(max_size=9)), max_size=4))
def test_any_text_is_read_or_refused_with_its_line(lines: list[str]) -> None:
    found, why = [], "f, line "
    try:
        found = parse(Source(Path("f"), io.BytesIO("\n".join(lines).encode())), "acme", "s")
    except InvalidInput as error:
        why = error.message
    assert why.startswith("f, line ")
    assert all(message.content.strip() or message.tool_calls for c in found for message in c.messages)


@given(st.binary(max_size=20))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    why = "f, line "
    try:
        decoded(Path("f"), data)
    except InvalidInput as error:
        why = error.message
    assert why.startswith("f, line ")


# --- locomo -----------------------------------------------------------------------------------------------------------
def sample(**changes: Any) -> dict[str, Any]:
    return {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_10_date_time": "12:05 am on 1 January, 2024",
            "session_10": [{"speaker": "Bob", "dia_id": "D10:1", "text": "Happy new year!"}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Ann", "dia_id": "D2:1", "text": "Look!", "blip_caption": "a photo of a dog"},
                {"speaker": "Bob", "dia_id": "D2:2", "text": "Nice."},
            ],
            "session_3_date_time": "1:56 pm on 9 May, 2023",
            "session_4": [],
            **changes,
        },
    }


@pytest.mark.parametrize("format", ["auto", "locomo"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_locomo(file: Path, format: Format, indent: int | None, listed: bool) -> None:
    file.write_text(json.dumps([sample()] if listed else sample(), indent=indent))
    first, second = conversations(file, format, session="unused")
    assert (first.namespace, first.session_key, second.session_key) == ("acme.conv-1", "session_2", "session_10")
    assert first.messages == (
        Message(
            content="Look! [image: a photo of a dog]",
            author="Ann",
            id="D2:1",
            occurred_at=datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        ),
        Message(content="Nice.", author="Bob", id="D2:2", occurred_at=datetime(2023, 5, 8, 13, 56, 1, tzinfo=UTC)),
    )
    assert second.messages[0].occurred_at == datetime(2024, 1, 1, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("[1, 2", "not JSON"),
        ([], "$: LoCoMo is a list of samples"),
        ([3], "$[0]: not a LoCoMo sample: must be an object, not a number"),
        ([{"content": "hi"}], '$[0]: not a LoCoMo sample: "sample_id" is missing'),
        ([{"sample_id": "a"}], '$[0]: not a LoCoMo sample: "conversation" is missing'),
        ([{"sample_id": "a b", "conversation": {}}], "namespace 'acme.a b' is not a name"),
        ([sample(session_2={})], '$[0].conversation.session_2: "session_2" must be a list, not an object'),
        ([sample(session_2_date_time=None)], '$[0].conversation.session_2: "session_2_date_time" is missing'),
        ([sample(session_2_date_time="soon")], "$[0].conversation.session_2: 'soon' is not a time such as"),
        ([sample(session_2_date_time="1:56 pm on 31 February, 2023")], "is not a time such as"),
        ([sample(session_2_date_time="13:56 pm on 8 May, 2023")], "is not a time such as"),
        ([sample(session_2_date_time="1:56 pm on 8 Foo, 2023")], "is not a time such as"),
        ([sample(session_2=[3])], "$[0].conversation.session_2[0]: must be an object, not a number"),
        ([sample(session_2=[{"speaker": "A", "dia_id": "1"}])], '$[0].conversation.session_2[0]: "text" is missing'),
        ([sample(session_2=[{"speaker": "A", "dia_id": "1", "text": " "}])], "session_2[0]: content is empty"),
        (
            [sample(session_2=[{"speaker": "A", "dia_id": "1", "text": t} for t in ("hi", "ho")])],
            "session_2[1]: another message of session 'session_2' has the id '1' already",
        ),
        (
            [
                sample(
                    session_2=[{"speaker": "A", "dia_id": str(n), "text": "hi"} for n in range(61)],
                    session_2_date_time="11:59 pm on 31 December, 9999",
                )
            ],
            "session_2[60]: its time is beyond the year 9999",
        ),
    ],
)
def test_wrong_locomo_is_named_by_its_path(file: Path, document: object, why: str) -> None:
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    assert why in complaint(file)


@pytest.mark.parametrize(
    "record", [{"content": 'see "conversation"'}, {"content": "hi", "conversation": {}}, {"conversation": {}}, {}]
)
def test_jsonl_is_not_taken_for_locomo(file: Path, record: dict[str, Any]) -> None:
    write(file, record, {"content": "hi"})
    if "content" in record:
        assert len(conversations(file)[0].messages) == 2
    else:
        assert complaint(file, "jsonl") == 'line 1: "content" is missing.'


def test_the_real_file() -> None:
    found = list(read(LOCOMO, namespace="bench"))
    assert len({c.namespace for c in found}) == 5
    assert all(c.namespace.startswith("bench.conv-") for c in found)
    assert len(found) == 136
    assert sum(len(c.messages) for c in found) == 2_960
    for conversation in found:
        times = [m.occurred_at for m in conversation.messages if m.occurred_at]
        assert all(later - earlier == timedelta(seconds=1) for earlier, later in pairwise(times))
        assert len({m.id for m in conversation.messages}) == len(conversation.messages)
        assert {m.role for m in conversation.messages} == {"user"}
    starts = [c.messages[0].occurred_at for c in found if c.namespace == "bench.conv-26"]
    assert starts == sorted(starts, key=str)
    assert starts[0] == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
