"""The types of job arguments. Pydantic checks them in the producer, so a call with wrong arguments fails there."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from nexus_tasks.errors import InvalidInput
from nexus_tasks.types import check_name, check_namespace


def _namespace(value: Any) -> str:
    try:
        return check_namespace(value)
    except InvalidInput as error:
        raise ValueError(error.message) from None


def _name(value: str) -> str:
    try:
        return check_name("it", value)
    except InvalidInput as error:
        raise ValueError(error.message) from None


NamespaceName = Annotated[str, BeforeValidator(_namespace)]
Name = Annotated[str, AfterValidator(_name)]
MemoryId = Annotated[int, Field(ge=1, le=2**63 - 1)]
