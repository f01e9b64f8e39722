"""Read the JSON body of a request, and check it, without keeping the requests of others waiting.

The interpreter runs one thread at a time, and a call of its C code for as long as it takes. So a long body is handled
so that others wait for a fraction of a second:

- A body has a limited number of values (``BodyLimit``). Parsing is one call of C code.
- It is parsed and checked in a thread. The check calls Python for each object, and other threads run in between.
- The check of a list ends at its first wrong entry (``parameters.Entries``), and an object with thousands of unknown
  fields is one fault (``parameters.Body``). So a wrong body makes few errors.
- Two calls with a long body are served at a time, and one of a namespace. Others wait for their turn without a thread.
- A call with a long body has the time of a long call: 50,000 messages take 20 s, and minutes on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.http.errors import wrong_request
from nexus_tasks.integrations.http.repeats import Handler
from nexus_tasks.integrations.serving.access import current

LONG = 65_536  # bytes; a shorter body is parsed and checked within about 10 ms
_AT_ONCE = 2  # calls with a long body
# Whether the present call has a long body, and its turn.
has_long_body: ContextVar[bool] = ContextVar("nexus_long_body", default=False)


class _Read(Request):
    """A request with a body that is already read, parsed and checked."""

    def __init__(self, request: Request, body: bytes, checked: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes, self._checked = body, checked

    async def body(self) -> bytes:
        """The bytes of the body."""
        return self._bytes

    async def json(self) -> Any:
        """The checked object. FastAPI does not check an object of the right class again."""
        return self._checked


def install(app: FastAPI) -> None:
    """Give ``app`` the turns of calls with a long body."""
    app.state.long_bodies = asyncio.Semaphore(_AT_ONCE)
    app.state.long_bodies_of = WeakValueDictionary[str, asyncio.Lock]()


async def served(request: Request, model: TypeAdapter[Any], handle: Handler, *, long: bool) -> Response:
    """Read the body of a request as ``model``, and serve the request.

    Args:
        long: whether the call may wait for a model for minutes. It gives back its turn when its body is checked.

    Raises:
        InvalidInput: the body is no JSON, or does not fit the model.
    """
    body = await request.body()
    if "json" not in request.headers.get("Content-Type", "").lower():
        return await handle(request)  # FastAPI refuses it
    if len(body) <= LONG:
        return await handle(_Read(request, body, _checked(body, model)))
    async with _turn(request.app):
        read = _Read(request, body, await asyncio.to_thread(_checked, body, model))
        if not long:
            has_long_body.set(True)
            return await handle(read)
    return await handle(read)


@asynccontextmanager
async def _turn(app: FastAPI) -> AsyncIterator[None]:
    """Wait until no other long body of the namespace, and few of others, are served."""
    access = current.get()
    of: WeakValueDictionary[str, asyncio.Lock] = app.state.long_bodies_of
    own = of.setdefault((access and access.namespace) or "", asyncio.Lock())
    async with own, app.state.long_bodies:
        yield


def _checked(body: bytes, model: TypeAdapter[Any]) -> Any:
    """The body as an object of the model.

    Raises:
        InvalidInput: the body is no JSON, or does not fit the model.
    """
    try:
        # From bytes, json would also read UTF-16, in which `BodyLimit` cannot count the values.
        given = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is not JSON: {error}.") from None
    try:
        return model.validate_python(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise wrong_request({**one, "loc": ("body", *one["loc"])} for one in found) from None
