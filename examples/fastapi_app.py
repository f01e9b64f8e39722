"""A FastAPI service with memory. Its Celery application also runs the jobs of nexus-tasks.

export CHAT_BROKER_URL=redis://redis:6379/1
export NEXUS_DATABASE_URL=postgresql://nexus:…@db/nexus NEXUS_REDIS_URL=redis://redis:6379/0
celery -A fastapi_app:celery worker --beat
uvicorn fastapi_app:api
"""

import os

from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel

import nexus_tasks
from nexus_tasks import Message, Nexus

celery = Celery("chat", broker=os.environ.get("CHAT_BROKER_URL", "redis://localhost:6379/1"))
nexus_tasks.register(celery)  # before anything else uses nexus-tasks

api = FastAPI()
nexus = Nexus()


class Turn(BaseModel):
    """What a user says."""

    user: str
    text: str


@api.post("/chats/{chat}")
async def say(chat: str, turn: Turn) -> dict[str, int]:
    """Store what a user says. A worker derives the facts."""
    receipt = await nexus.aingest("fastapi-chat", chat, [Message(author=turn.user, content=turn.text)], end=True)
    return {"stored": receipt.stored}


@api.get("/facts")
async def facts(query: str) -> list[str]:
    """What is known."""
    return [hit.content for hit in await nexus.asearch("fastapi-chat", query, levels=["explicit"])]
