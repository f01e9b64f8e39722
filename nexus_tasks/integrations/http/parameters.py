"""Parameters and parts of bodies that several routes share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from fastapi import Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from nexus_tasks import limits
from nexus_tasks.integrations.serving.json_values import no_number
from nexus_tasks.types import Level, Standing

_NAMESPACE = "The namespace (tenant). A token of a namespace may leave it out."
_ONE_OR_ALL = "Only this namespace. Default: the token's, and every namespace with the operator's token."
_OBSERVER = "Only memories of this observer."
_SUBJECT = "Only memories about this subject."
_SESSION = "Only memories of this session."
_AS_OF = "Only memories that were valid at this time."
_HEARD_ONLY = "With observer: only messages that this observer heard, and no digests."
_STANDING = "Only memories that rest on words of at least this standing."


Time = Annotated[datetime, BeforeValidator(no_number)]

Namespace = Annotated[str | None, Query(description=_NAMESPACE)]
OneOrAll = Annotated[str | None, Query(description=_ONE_OR_ALL)]
SessionKey = Annotated[str, Query(description="The session.")]
OnlySession = Annotated[str | None, Query(description=_SESSION)]
Observer = Annotated[str | None, Query(description=_OBSERVER)]
Subject = Annotated[str | None, Query(description=_SUBJECT)]
Levels = Annotated[list[Level] | None, Query(description="Only these levels. Default: all but archived messages.")]
AsOf = Annotated[Time | None, Query(description=_AS_OF)]
Limit = Annotated[int, Query(ge=0, le=limits.PAGE_ROWS, description="The largest number on the page.")]
Offset = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET, description="How many to leave out at the beginning.")]
MemoryId = Annotated[int, Path(description="The memory's id: 17 for the citation [m17].")]
JobId = Annotated[str, Path(description="The job's id.")]


T = TypeVar("T")


class _FirstFault(FailFast):
    """Pydantic's mark, which alone has no hash. `Entries[str] | None` needs one."""

    __hash__ = object.__hash__


# Lists in bodies. The check of such a list stops at the first wrong entry: 500,000 wrong entries give one error.
Entries = Annotated[list[T], _FirstFault()]
_UNKNOWN = 10  # unknown fields that are named in the error; beyond, no field is looked at


class Body(BaseModel):
    """The fields of a JSON body. A field that is unknown is refused, because it may be a misspelt one."""

    model_config = ConfigDict(extra="forbid")
    numbers: ClassVar[tuple[str, ...]] = ()  # the names of the fields that take a number

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Find the fields that take a number."""
        types = {name: (one.annotation, *get_args(one.annotation)) for name, one in cls.model_fields.items()}
        cls.numbers = tuple(name for name, found in types.items() if int in found or float in found)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        """Refuse thousands of unknown fields as one fault, and ``true`` as a number: pydantic takes it for 1."""
        if isinstance(given, dict):
            if len(given) > len(cls.model_fields) + _UNKNOWN:
                raise ValueError(f"there are {len(given):,} fields; at most {len(cls.model_fields)} are known")
            if wrong := next((name for name in cls.numbers if isinstance(given.get(name), bool)), None):
                raise ValueError(f"{wrong} must be a number, not true or false")
        return given

    def given(self) -> dict[str, Any]:
        """The fields that the caller has given, without the namespace: arguments for a method of the client."""
        return self.model_dump(exclude={"namespace"}, exclude_unset=True)


class SpaceBody(Body):
    """A body that names its namespace."""

    namespace: str | None = Field(None, description=_NAMESPACE)


class SessionBody(SpaceBody):
    """A body that names a session."""

    session_key: str = Field(description="The session.")


class Filter(SpaceBody):
    """Which memories are looked at."""

    observer: str | None = Field(None, description=_OBSERVER)
    subject: str | None = Field(None, description=_SUBJECT)
    heard_only: bool = Field(False, description=_HEARD_ONLY)


class RankedFilter(Filter):
    """Which memories are looked at, with the trust in their words."""

    session_key: str | None = Field(None, description=_SESSION)
    min_standing: Standing | None = Field(None, description=_STANDING)
