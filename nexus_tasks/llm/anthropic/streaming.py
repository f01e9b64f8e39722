"""Read a reply of Claude that comes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nexus_tasks.errors import Transient

if TYPE_CHECKING:
    from anthropic.lib.streaming import MessageStream, ParsedMessageStreamEvent
    from anthropic.types import Message


def read_pieces(reply: MessageStream[None], on_text: Callable[[str], None]) -> Message:
    """Give each piece of the answer's JSON to ``on_text``, and return the whole message.

    Raises:
        Transient: the reply was cut off, or is no stream of a message, for example the page of a gateway.
    """
    begun = ended = False
    for event in _events(reply):
        begun = begun or event.type == "message_start"
        ended = ended or event.type == "message_stop"
        if event.type == "text":
            on_text(event.text)
        elif event.type == "input_json":  # the answer is the input of a tool
            on_text(event.partial_json)
    if not begun:
        raise Transient("The Claude API (or a gateway before it) answered with something that is no message.")
    message = reply.get_final_message()
    if not ended and message.stop_reason is None:
        # The connection was closed without an error, in the middle of the answer. When the answer is a tool's input,
        # the SDK closes its open brackets, and the answer would look whole.
        raise Transient("The reply of the Claude API was cut off.")
    return message


def _events(reply: MessageStream[None]) -> Iterator[ParsedMessageStreamEvent[None]]:
    """The events of a reply. The SDK checks none of them, and puts them together."""
    import httpx2  # the SDK's own HTTP library, whose errors the SDK does not translate here

    try:
        yield from reply
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise Transient(f"The reply of the Claude API was cut off ({type(error).__name__}).") from None
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise Transient(f"The reply of the Claude API has a piece that is none ({type(error).__name__}).") from None
