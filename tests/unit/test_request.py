"""The idempotency key: what makes two requests the same work, and what does not."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks.idempotency.request import VERSION, Flags, Request, canonical, claim_key

REQUEST = Request(
    id="j", kind="thing", namespace="n", queue="q", scope='{"a":1}', args="{}", flags=Flags(), while_running="rerun",
    immutable=False,
)  # fmt: skip
values = st.one_of(st.text(), st.integers(), st.booleans(), st.lists(st.text(), max_size=3))


@given(st.dictionaries(st.text(), values, max_size=5), st.randoms())
def test_the_order_of_fields_does_not_matter(scope: dict[str, Any], random: Any) -> None:
    shuffled = list(scope.items())
    random.shuffle(shuffled)
    assert canonical(dict(shuffled)) == canonical(scope)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_absent_and_none_are_the_same(scope: dict[str, Any]) -> None:
    missing = next(name for name in ("x", "xx", "xxx", "xxxx", "xxxxx", "xxxxxx") if name not in scope)
    assert canonical(scope | {missing: None}) == canonical(scope)


@given(st.text(), st.text())
def test_spellings_of_one_text_are_one_and_other_texts_are_others(one: str, other: str) -> None:
    same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
    assert (canonical({"name": one}) == canonical({"name": other})) is same
    assert canonical({"name": unicodedata.normalize("NFD", one)}) == canonical({"name": one})


@given(st.dictionaries(st.text(alphabet="abc"), st.integers(), min_size=1), st.dictionaries(st.text(), st.integers()))
def test_different_scopes_have_different_keys(one: dict[str, int], other: dict[str, int]) -> None:
    keys = [claim_key("p", "thing", canonical(scope)) for scope in (one, other)]
    assert (keys[0] == keys[1]) is (canonical(one) == canonical(other))


@pytest.mark.parametrize("scope", [{"x": 1.5}, {"x": [1, 2.0]}, {"x": {"y": (0.1,)}}])
def test_a_float_is_no_part_of_a_key(scope: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="float"):
        canonical(scope)


def test_one_and_true_are_not_the_same() -> None:
    assert canonical({"x": 1}) != canonical({"x": True}) != canonical({"x": "1"})


def test_the_key_is_readable_up_to_the_hash() -> None:
    prefix, word, kind, digest = REQUEST.key("nexus").split(":")
    assert (prefix, word, kind, len(digest)) == ("nexus", "job", "thing", 64)


def test_only_kind_and_scope_are_in_the_key() -> None:
    same = [
        replace(REQUEST, id="other"),
        replace(REQUEST, args='{"b":2}'),
        replace(REQUEST, queue="other"),
        replace(REQUEST, flags=Flags(force=True, reasons=("x",), urgency="live")),
        replace(REQUEST, delay=5.0, wait_reason="other", anew=True),
    ]
    assert {one.key("p") for one in same} == {REQUEST.key("p")}
    others = [replace(REQUEST, kind="other"), replace(REQUEST, scope='{"a":2}')]
    assert len({one.key("p") for one in (REQUEST, *others)}) == 3
    assert REQUEST.key("p") != REQUEST.key("q")


def test_what_the_scripts_read() -> None:
    asked = replace(REQUEST, delay=1.5, flags=Flags(force=True, reasons=("x", "y"), urgency="dream"))
    read = json.loads(asked.as_json())
    assert (read["version"], read["delay"], read["anew"]) == (VERSION, 1_500, False)
    assert (read["force"], read["reasons"], read["urgency"]) == ("1", "x,y", "dream")
    assert json.loads(REQUEST.as_json())["force"] == ""


def test_asking_anew_sets_no_flag() -> None:
    asked = replace(REQUEST, flags=Flags(force=True, reasons=("x",), urgency="live")).renewed()
    assert (asked.anew, asked.flags, asked.id) == (True, Flags(), "j")
