"""The bodies of the HTTP API: few errors for many faults, whatever field they are in, and a count of their values."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput, faults
from nexus_tasks.integrations.http import application, bodies
from nexus_tasks.integrations.http.memories import IngestBody
from nexus_tasks.integrations.http.parameters import Body
from nexus_tasks.integrations.serving import connections

MANY = 20_000


def kinds(of: type[Body] = Body) -> Iterator[type[Body]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


KINDS = [kind for kind in kinds() if kind.__module__.startswith(application.__name__.rpartition(".")[0])]


def is_list(annotation: Any) -> bool:
    return annotation is list or get_origin(annotation) is list or any(map(is_list, get_args(annotation)))


def errors(kind: type[Body], given: Any) -> int:
    try:
        kind.model_validate(given)
    except ValidationError as error:
        return error.error_count()
    return 0


def test_many_faults_of_any_body_make_few_errors() -> None:
    lists = 0
    for kind in KINDS:
        few = len(kind.model_fields) + 10
        assert 1 <= errors(kind, {f"f{n}": n for n in range(MANY)}) <= few, kind
        for name, field in kind.model_fields.items():
            if is_list(field.annotation):
                lists += 1
                assert 1 <= errors(kind, {name: [{f"f{n}": n for n in range(MANY)}] * 3}) <= few, (kind, name)
                assert 1 <= errors(kind, {name: [None] * MANY}) <= few, (kind, name)
    assert lists >= 9


def test_an_error_shows_few_faults_and_of_each_a_part() -> None:
    found = [{"loc": ("x" * 100_000, n), "msg": "y" * 100_000} for n in range(1_000)]
    said = faults(found)
    assert len(said) < 6_000
    assert said.endswith("; and 995 more")


def test_true_is_no_number() -> None:
    numbers = [(kind, name) for kind in KINDS for name in kind.numbers]
    assert {name for _, name in numbers} >= {"limit", "max_tokens", "revision", "grace", "concurrency", "reflection"}
    for kind, name in numbers:
        with pytest.raises(ValidationError, match=f"{name} must be a number"):
            kind.model_validate({name: True})


INGEST = TypeAdapter(IngestBody)


@pytest.mark.parametrize("parts", [1, 7])
def test_the_values_of_a_body_are_counted_without_its_texts(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_VALUES", 100)

    def too_many(body: bytes) -> bool:
        size = len(body) // parts + 1
        return asyncio.run(connections._has_too_many_values([body[n : n + size] for n in range(0, len(body), size)]))

    text = json.dumps({"session_key": "s", "messages": [{"content": '{[,"\\' * 1_000}]}).encode()
    assert not too_many(text)
    assert not too_many(b'{"a":"b' + b"," * 1_000)
    for wrong in (b"[" * 101, b"[" + b"{}," * 101 + b"{}]", text + b"[" * 101, b"{" + b'"a":1,' * 101):
        assert too_many(wrong), wrong


def test_the_values_are_counted_in_linear_time() -> None:
    def seconds(body: bytes) -> float:
        began = time.perf_counter()
        connections._TEXT.sub(b"", body)
        connections._has_too_many_outside_texts(body)
        return time.perf_counter() - began

    for piece in (rb"\"", rb'"', rb"\\", rb'"\\', rb"\"a", b"\\"):
        for end in (b"", b"\\"):
            assert seconds(b'"' + piece * 300_000 + end) < 2, piece


def test_the_values_are_counted_in_parts_as_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PART", 3)
    draw = random.Random(14)
    for _ in range(3_000):
        body = bytes(draw.choices(b'",[{\\a', k=draw.randrange(40)))
        marks = connections._marks(connections._TEXT.sub(b"", body))
        for most in (marks - 1, marks):
            monkeypatch.setattr(limits, "HTTP_BODY_VALUES", most)
            assert connections._has_too_many_outside_texts(body) == (marks > most), body


def test_other_threads_run_while_the_values_are_counted() -> None:
    """They wait for a part of what one call of the pattern for the whole body takes."""
    body = b'["' + b'","' * (limits.HTTP_BODY_BYTES // 3)

    def longest_pause(count: Callable[[bytes], object]) -> float:
        counting = threading.Thread(target=count, args=(body,))
        counting.start()
        before, pauses = time.perf_counter(), [0.0]
        while counting.is_alive():
            time.sleep(0.001)
            pauses.append(time.perf_counter() - before)
            before += pauses[-1]
        return max(pauses)

    at_once = longest_pause(lambda whole: connections._TEXT.sub(b"", whole))
    assert min(longest_pause(connections._has_too_many_outside_texts) for _ in range(5)) < at_once / 4


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 90_000, b'{"a":' * 90_000, b"1" * 10_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=re.escape("The body is not JSON") + "|dictionary"):
        bodies._checked(body, INGEST)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le"])
def test_a_body_in_another_encoding_is_refused(encoding: str) -> None:
    """In the bytes of UTF-16, a letter such as U+0122 looks like a quote, behind which no values are counted."""
    body = json.dumps({"session_key": "\u0122", "messages": [1] * 100}, ensure_ascii=False).encode(encoding)
    with pytest.raises(InvalidInput, match="The body is not JSON"):
        bodies._checked(body, INGEST)


def test_a_body_may_begin_with_a_mark_of_utf_8() -> None:
    body = json.dumps({"session_key": "Ģ", "messages": []}, ensure_ascii=False).encode("utf-8-sig")
    assert bodies._checked(body, INGEST).session_key == "Ģ"
