"""Parameters and parts of bodies that several routes share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from nexus_tasks import limits
from nexus_tasks.types import Level, Standing

_NAMESPACE = "The namespace (tenant). A token of a namespace may leave it out."
_OBSERVER = "Only memories of this observer."
_SUBJECT = "Only memories about this subject."
_SESSION = "Only memories of this session."
_AS_OF = "Only memories that were valid at this time."
_HEARD_ONLY = "With observer: only messages that this observer heard, and no digests."
_STANDING = "Only memories that rest on words of at least this standing."

Namespace = Annotated[str | None, Query(description=_NAMESPACE)]
SessionKey = Annotated[str, Query(description="The session.")]
OnlySession = Annotated[str | None, Query(description=_SESSION)]
Observer = Annotated[str | None, Query(description=_OBSERVER)]
Subject = Annotated[str | None, Query(description=_SUBJECT)]
Levels = Annotated[list[Level] | None, Query(description="Only these levels. Default: all but archived messages.")]
AsOf = Annotated[datetime | None, Query(description=_AS_OF)]
Limit = Annotated[int, Query(ge=0, le=limits.PAGE_ROWS, description="The largest number on the page.")]
Offset = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET, description="How many to leave out at the beginning.")]
MemoryId = Annotated[int, Path(description="The memory's id: 17 for the citation [m17].")]
JobId = Annotated[str, Path(description="The job's id.")]


class Body(BaseModel):
    """The fields of a JSON body. A field that is unknown is refused, because it may be a misspelt one."""

    model_config = ConfigDict(extra="forbid")

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
