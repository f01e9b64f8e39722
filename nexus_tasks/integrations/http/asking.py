"""Answer a question from memory, in one piece or sentence by sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from pydantic import Field

from nexus_tasks import limits
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.http.caller import Reader
from nexus_tasks.integrations.http.documents import routes
from nexus_tasks.integrations.http.errors import problem_document
from nexus_tasks.integrations.http.parameters import Filter
from nexus_tasks.integrations.http.slots import LONG_CALL
from nexus_tasks.integrations.http.streams import EventStream, described, event, or_still_here
from nexus_tasks.integrations.serving import turns
from nexus_tasks.types import Answer, AnswerSentence

router = routes("recall")
STILL_HERE_EVERY = 15.0  # seconds
_EVENTS = described({"sentence": "AnswerSentence", "answer": "Answer", "problem": "Problem"})


class AskBody(Filter):
    """A question."""

    question: str = Field(max_length=limits.QUERY_CHARACTERS)


@router.post("/ask", dependencies=[LONG_CALL], responses={200: {"content": _EVENTS}})
async def ask(request: Request, caller: Reader, body: AskBody) -> Answer:
    """Answer a question from memory, with citations, or say that it is not remembered.

    With `Accept: text/event-stream`, each sentence is an event `sentence` as soon as it is checked. The event `answer`
    with the whole answer, or `problem`, is the last one.
    """
    nexus, name = await caller.space(body.namespace)
    if "text/event-stream" not in request.headers.get("accept", ""):
        return await nexus.aask(name, **body.given())
    sentences = asyncio.Queue[bytes | None]()
    loop = asyncio.get_running_loop()

    def told(sentence: AnswerSentence) -> None:
        loop.call_soon_threadsafe(sentences.put_nowait, event("sentence", sentence))

    answer = asyncio.ensure_future(nexus.aask(name, **body.given(), on_sentence=told))
    answer.add_done_callback(lambda _: sentences.put_nowait(None))
    turns.keep_until(answer)  # it goes on when the client goes
    return await _begun(sentences, answer)  # type: ignore[no-any-return]


async def _begun(sentences: asyncio.Queue[bytes | None], answer: asyncio.Future[Answer]) -> Any:
    """The stream, once there is something to send. An error before that has a status of its own."""
    first = await sentences.get()
    if first is None:
        await answer
    return EventStream(_events(first, sentences, answer))


async def _events(
    piece: bytes | None, sentences: asyncio.Queue[bytes | None], answer: asyncio.Future[Answer]
) -> AsyncIterator[bytes]:
    while piece is not None:
        yield piece
        piece = await or_still_here(sentences, STILL_HERE_EVERY)
    try:
        yield event("answer", await answer)
    except NexusError as error:
        yield b"event: problem\ndata: %s\n\n" % problem_document(error)
