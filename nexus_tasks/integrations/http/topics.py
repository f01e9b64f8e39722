"""Topics: the files of knowledge that extraction keeps."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from nexus_tasks.integrations.http.caller import Corrector, Eraser, Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.pages import DeletedTopic, TopicPage, next_offset
from nexus_tasks.integrations.http.parameters import Limit, Namespace, Offset, SpaceBody
from nexus_tasks.integrations.http.repeats import repeat
from nexus_tasks.types import TopicDetails, TopicType

router = routes("topics")

FileName = Annotated[str, Query(description="The topic's file name.")]


class TopicBody(SpaceBody):
    """A topic to write."""

    filename: str = Field(description="`.md` is added when it is missing.")
    content: str = Field(description="The whole content as Markdown, at most 8,000 characters.")
    name: str | None = Field(None, description="A name for people. Default: the present one.")
    description: str | None = Field(None, description="One line. Default: the present one.")
    type: TopicType | None = Field(None, description="Default: the present one, or reference.")
    author: str = "user"
    revision: int | None = Field(None, description="Write only when the topic still has this revision; 0: none yet.")


class RenameBody(SpaceBody):
    """A topic to rename."""

    filename: str
    new_filename: str


@router.get("/topics")
async def list_topics(caller: Reader, namespace: Namespace = None, limit: Limit = 100, offset: Offset = 0) -> TopicPage:
    """List topics without their content, the most recently changed first."""
    nexus, name = await caller.space(namespace)
    found = await nexus.atopics(name, limit=limit, offset=offset)
    return TopicPage(namespace=name, topics=tuple(found), next_offset=next_offset(found, limit, offset))


@router.get("/topic")
async def show_topic(caller: Reader, filename: FileName, namespace: Namespace = None) -> TopicDetails:
    """Show one topic with its content."""
    nexus, name = await caller.space(namespace)
    return await nexus.atopic(name, filename)


@router.put("/topic")
@repeat("refused")
async def write_topic(caller: Corrector, body: TopicBody) -> TopicDetails:
    """Make a topic, or replace its content."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.awrite_topic(name, **body.given())


@router.post("/topic/rename")
@repeat("refused")
async def rename_topic(caller: Corrector, body: RenameBody) -> TopicDetails:
    """Give a topic another file name."""
    nexus, name = await caller.space(body.namespace)
    return await nexus.arename_topic(name, body.filename, body.new_filename)


@router.delete("/topic")
async def delete_topic(caller: Eraser, filename: FileName, namespace: Namespace = None) -> DeletedTopic:
    """Delete a topic. The messages that it was written from stay."""
    nexus, name = await caller.space(namespace)
    await nexus.adelete_topic(name, filename)
    return DeletedTopic(namespace=name, filename=filename)
