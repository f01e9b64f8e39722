"""Build requests for the Chat Completions API and read the replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_tasks.errors import Transient
from nexus_tasks.llm.answer_json import is_misshapen, parse, why
from nexus_tasks.llm.answer_schema import TOOL, in_words, strict_schema
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest, Usage, counted, estimated
from nexus_tasks.llm.dialects import Dialect
from nexus_tasks.llm.server_errors import redact

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk


def request_params(request: ModelRequest[AnswerT], model: str, max_tokens: int, dialect: Dialect) -> dict[str, Any]:
    """The keywords of ``chat.completions.create``.

    What is the same for many calls comes first, so that servers which cache prefixes can read them from their caches.
    The contents are plain texts, because local servers take no lists of blocks.
    """
    in_prompt = in_words(request.answer) if dialect.output == "json" else ""
    parts = [part for part in (request.transcript, request.question) if part]
    return {
        "model": model,
        dialect.limit: max_tokens,
        "messages": [
            {"role": "system", "content": request.instructions + in_prompt},
            {"role": "user", "content": "\n\n".join(parts)},
        ],
        **_output(request, dialect),
    }


def _output(request: ModelRequest[AnswerT], dialect: Dialect) -> dict[str, Any]:
    if dialect.output == "schema":
        schema = {"name": TOOL, "strict": True, "schema": strict_schema(request.answer)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if dialect.output == "tool":
        function = {"name": TOOL, "description": "Give the answer.", "parameters": strict_schema(request.answer)}
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": TOOL}},
        }
    return {}


@dataclass(kw_only=True)
class Reply:
    """What a reply says, whether it came whole or in pieces."""

    id: str = ""
    model: str = ""
    text: str = ""
    arguments: str = ""  # of the tool call
    refusal: str = ""
    finish_reason: str | None = None
    usage: CompletionUsage | None = field(default=None)

    @property
    def answer(self) -> str:
        """The answer's JSON: the arguments of the tool, or else the text."""
        return self.arguments or self.text


def read_whole(reply: ChatCompletion | object) -> Reply:
    """Read a reply that came whole.

    Raises:
        Transient: the reply is no completion, for example the error page of a gateway with the status 200.
    """
    from openai.types.chat import ChatCompletion

    if not isinstance(reply, ChatCompletion) or not reply.choices:
        raise Transient(_NO_COMPLETION)
    try:
        return _read(reply)
    except (ValueError, AttributeError, TypeError, LookupError):  # the SDK does not validate the reply
        raise Transient(_NO_COMPLETION) from None


_NO_COMPLETION = "The model server (or a gateway before it) answered with something that is no completion."


def _read(reply: ChatCompletion) -> Reply:
    choice = reply.choices[0]
    called = [call.function.arguments for call in choice.message.tool_calls or () if call.type == "function"]
    return Reply(
        id=str(reply.id),
        model=str(reply.model),
        text=_text(choice.message.content),
        arguments=_text(called[0]) if called else "",
        refusal=_text(choice.message.refusal),
        finish_reason=choice.finish_reason,
        usage=reply.usage,
    )


def _text(said: Any) -> str:
    """What a server says as a text. Some send a list of parts, such as thoughts and the text, or arguments as JSON."""
    if isinstance(said, list):
        parts = (part.get("text") for part in said if isinstance(part, dict) and part.get("type") == "text")
        return "".join(part for part in parts if isinstance(part, str))
    return said if isinstance(said, str) else json.dumps(said) if isinstance(said, dict) else ""


def read_pieces(pieces: Iterable[ChatCompletionChunk], on_text: Callable[[str], None]) -> Reply:
    """Read a reply that comes in pieces, and give each piece of the answer's JSON to ``on_text``.

    Raises:
        Transient: the reply was cut off, or a piece is not JSON.
    """
    import httpx2  # the SDK's own HTTP library, whose errors the SDK does not translate here

    reply = Reply()
    try:
        for piece in pieces:
            _add(reply, piece, on_text)
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise Transient(f"The model server's reply was cut off ({type(error).__name__}).") from None
    except (ValueError, AttributeError, TypeError) as error:  # the SDK does not validate the pieces
        raise Transient(f"The model server sent a piece that is none ({type(error).__name__}).") from None
    if reply.finish_reason is None:
        raise Transient("The model server's reply was cut off.")
    return reply


def _add(reply: Reply, piece: ChatCompletionChunk, on_text: Callable[[str], None]) -> None:
    reply.id, reply.model = str(piece.id), str(piece.model)
    reply.usage = piece.usage or reply.usage
    for choice in piece.choices[:1]:
        text = choice.delta.content or ""
        called = [call.function for call in choice.delta.tool_calls or () if call.index in (0, None) and call.function]
        arguments = "".join(function.arguments or "" for function in called)
        reply.text += text
        reply.arguments += arguments
        reply.refusal += choice.delta.refusal or ""
        reply.finish_reason = choice.finish_reason or reply.finish_reason
        if text or arguments:
            on_text(text + arguments)


def completion(reply: Reply, request: ModelRequest[AnswerT], model: str, seconds: float) -> Completion[AnswerT]:
    """Read ``reply`` as the answer to ``request``. When it is unusable, the completion has a fault and no answer.

    Args:
        model: the model's name in the request. Prices and hashes use this name. The name in the reply is in ``raw``.
        seconds: the duration of the call in seconds.
    """
    answer: AnswerT | None = None
    misshapen = False
    fault, detail = _fault(reply)
    if not fault:
        try:
            answer = parse(reply.answer, request.answer)
        except ValueError as error:
            fault, detail, misshapen = "invalid", why(error), is_misshapen(error)
    return Completion(
        model=model,
        usage=_usage(reply, request),
        seconds=seconds,
        answer=answer,
        fault=fault,
        detail=detail,
        misshapen=misshapen,
        raw={"id": reply.id, "model": reply.model, "stop_reason": reply.finish_reason},
    )


def _fault(reply: Reply) -> tuple[Any, str]:
    if reply.refusal or reply.finish_reason == "content_filter":
        return "refused", redact(reply.refusal) or "the content filter of the model server"
    if reply.finish_reason == "length":
        return "truncated", f"length after {reply.usage.completion_tokens if reply.usage else 'unknown'} tokens"
    return "", ""


def _usage(reply: Reply, request: ModelRequest[Any]) -> Usage:
    """The tokens by kind. Tokens that the server does not count are estimated.

    The server's number of input tokens includes those that were read from a cache or written to it.
    """
    used = reply.usage
    if used is None or not isinstance(used.prompt_tokens, int):
        return estimated(request, reply.answer)
    details = used.prompt_tokens_details
    read = counted(getattr(details, "cached_tokens", 0))
    written = counted(getattr(details, "cache_write_tokens", 0))
    return Usage(
        input_tokens=counted(used.prompt_tokens - read - written),
        output_tokens=counted(used.completion_tokens),
        cache_write_tokens=written,
        cache_read_tokens=read,
    )
