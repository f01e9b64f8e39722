"""Recall: search, context and profile."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from nexus_tasks import limits
from nexus_tasks.integrations.http.caller import Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import SearchResults
from nexus_tasks.integrations.http.parameters import Entries, Namespace, Observer, RankedFilter, Time
from nexus_tasks.types import ContextBlock, Level

router = routes("recall")


class SearchBody(RankedFilter):
    """A search."""

    query: str = Field(max_length=limits.QUERY_CHARACTERS, description="A question, or some words.")
    levels: Entries[Level] | None = Field(None, description="Only these levels. Default: all but archived messages.")
    categories: Entries[str] | None = Field(None, description="Only facts of these categories.")
    since: Time | None = Field(None, description="Only memories of this time or later. Without a zone: UTC.")
    until: Time | None = Field(None, description="Only memories of a time before this one.")
    as_of: Time | None = Field(None, description="Only memories that were valid at this time.")
    limit: int = Field(10, ge=1, le=limits.SEARCH_RESULTS)
    collapse: bool = Field(True, description="Make one hit of memories that say the same.")


class ContextBody(RankedFilter):
    """What a context block is for."""

    query: str | None = Field(None, max_length=limits.QUERY_CHARACTERS)
    profile: bool | None = Field(None, description="Begin with the subject's profile. Default: when subject is given.")
    max_tokens: int | None = Field(None, ge=1, le=limits.CONTEXT_TOKENS, description="Default: 2,000.")
    format: Literal["text", "json", "anthropic", "openai"] = "text"
    observe: bool = Field(False, description="Show one whole session: notes on its old messages, then the newest.")
    count: Literal["estimate", "anthropic"] = "estimate"


@router.post("/search")
async def search(caller: Reader, body: SearchBody) -> SearchResults:
    """Find the memories that best answer a question. No language model is called."""
    nexus, name = await caller.space(body.namespace)
    hits = await nexus.asearch(name, **body.given())
    return SearchResults(
        query=body.query, namespace=name, results=tuple(hits), missing_embeddings=hits.missing_embeddings
    )


@router.post("/context")
async def context(caller: Reader, body: ContextBody) -> ContextBlock:
    """Assemble memories for an agent's prompt, with at most max_tokens tokens. Every line has a citation."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.acontext(name, **body.given())


@router.get("/profile")
async def profile(
    caller: Reader,
    subject: Annotated[str, Query(description="The person or thing.")],
    namespace: Namespace = None,
    observer: Observer = None,
    max_tokens: Annotated[int, Query(ge=1, le=limits.CONTEXT_TOKENS)] = 500,
) -> ContextBlock:
    """Show what to know about someone at any time."""
    nexus, name = await caller.space(namespace)
    return await nexus.aprofile(name, subject, observer=observer, max_tokens=max_tokens)
