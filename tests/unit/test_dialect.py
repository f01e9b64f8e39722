"""How a worker reads the arguments of another release, and how it names its own understanding of a kind."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, ClassVar

import pytest
from pydantic import Field

from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency.kind import Arguments, JobKind
from nexus_tasks.types import JobOutcome


class Old(Arguments):
    """Of the release before."""

    scope: ClassVar = ("namespace", "name")
    name: str


class New(Arguments):
    """With an optional argument, which an old worker may ignore."""

    scope: ClassVar = ("namespace", "name")
    name: str
    colour: str = "red"


class Newest(Arguments):
    """With an argument that an old producer does not send."""

    scope: ClassVar = ("namespace", "name")
    name: str
    size: int


def kind(arguments: type[Arguments]) -> JobKind:
    def handler(_run: Any, _arguments: Any) -> JobOutcome:
        return JobOutcome(status="completed")

    return JobKind(
        name="thing", task_name="nexus_tasks.thing", declared_at="here", arguments=arguments, handler=handler, queue="q"
    )


SENT = {"namespace": "acme", "name": "a", "colour": "blue"}


def test_an_optional_argument_of_a_newer_release_is_ignored_and_kept() -> None:
    old, new = kind(Old), kind(New)
    request = old.received(SENT, job_id="1")
    assert old.load(SENT) == Old(namespace="acme", name="a")
    assert json.loads(request.args) == SENT
    assert request.scope == new.received(SENT).scope
    assert new.load(json.loads(request.args)) == New(**SENT)


def test_a_producer_refuses_an_unknown_argument_as_before() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        kind(Old).parse((), SENT)


def test_a_missing_argument_of_a_newer_release_is_not_understood() -> None:
    with pytest.raises(InvalidInput, match="size"):
        kind(Newest).received(SENT)


def test_a_dialect_names_what_a_release_understands() -> None:
    dialects = [kind(arguments).dialect for arguments in (Old, New, Newest, Old)]
    assert dialects[0] == dialects[3]
    assert len(set(dialects)) == 3
    assert all(dialect.startswith("1.") and "," not in dialect and "|" not in dialect for dialect in dialects)


class Shade(StrEnum):
    """A value that an old release does not know may come later."""

    DARK = "dark"


class Painted(Arguments):
    """With permitted values and limits."""

    scope: ClassVar = ("namespace", "name")
    name: str
    shade: Shade = Shade.DARK
    coats: int = Field(default=1, le=10)


def test_a_wider_limit_and_a_new_permitted_value_are_another_dialect() -> None:
    class Brighter(StrEnum):
        DARK = "dark"
        LIGHT = "light"

    class Shaded(Painted):
        shade: Brighter = Brighter.DARK

    class Thicker(Painted):
        coats: int = Field(default=1, le=100)

    class Described(Painted):
        """The same in other words."""

        coats: int = Field(default=1, le=10, description="layers of paint", title="Coats")

    dialects = [kind(one).dialect for one in (Painted, Shaded, Thicker)]
    assert len(set(dialects)) == 3
    assert kind(Described).dialect == kind(Painted).dialect
