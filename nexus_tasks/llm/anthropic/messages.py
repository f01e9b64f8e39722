"""Build requests for Claude's Messages API and read the answers, for live calls and for message batches."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeGuard

from nexus_tasks.llm.answer_json import is_misshapen, parse, why
from nexus_tasks.llm.answer_schema import TOOL, in_words
from nexus_tasks.llm.anthropic.schema import answer_schema
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest, Usage, counted, estimated
from nexus_tasks.llm.dialects import Dialect
from nexus_tasks.llm.purposes import claude_name
from nexus_tasks.llm.server_errors import redact
from nexus_tasks.text import estimate_tokens

if TYPE_CHECKING:
    from anthropic.types import Message

    from nexus_tasks.settings import Settings

# For the beginning of a model's name: the fewest tokens of a prompt prefix that Claude caches.
# https://platform.claude.com/docs/en/build-with-claude/prompt-caching
CACHE_MINIMUM = (("claude-haiku-", 4096), ("", 1024))

USUAL = Dialect(output="schema", caching=True)  # what Claude's own API has


def request_params(request: ModelRequest[AnswerT], settings: Settings, dialect: Dialect = USUAL) -> dict[str, Any]:
    """The keywords of ``messages.create``, which are also the ``params`` of a batch item.

    A cache marker tells Claude to cache the prompt up to the marker. One marker comes after the instructions, which
    every call of the purpose repeats. With ``request.shared``, another marker comes after the transcript, which calls
    for other observers repeat. A marker is left out when the prompt up to the marker is shorter than the model's
    minimum (:data:`CACHE_MINIMUM`). Other text gets no marker, because input that is written to a cache costs 25 %
    more.
    """
    model = claude_name(settings, request.purpose)
    minimum = next(tokens for prefix, tokens in CACHE_MINIMUM if model.startswith(prefix))
    in_prompt = in_words(request.answer) if dialect.output == "json" else ""
    system = _block(request.instructions + in_prompt)
    transcript = _block(request.transcript)
    if dialect.caching and estimate_tokens(request.instructions) >= minimum:
        _mark(system)
    if dialect.caching and request.shared and estimate_tokens(request.instructions + request.transcript) >= minimum:
        _mark(transcript)
    content = [block for block in (transcript, _block(request.question)) if block["text"]]  # Claude refuses empty text
    return {
        "model": model,
        "max_tokens": int(getattr(settings, f"max_tokens_{request.purpose}")),
        "system": [system],
        "messages": [{"role": "user", "content": content}],
        **_output(request, dialect),
    }


def _output(request: ModelRequest[AnswerT], dialect: Dialect) -> dict[str, Any]:
    if dialect.output == "schema":
        return {"output_config": {"format": {"type": "json_schema", "schema": answer_schema(request.answer)}}}
    if dialect.output == "tool":
        tool = {"name": TOOL, "description": "Give the answer.", "input_schema": answer_schema(request.answer)}
        return {"tools": [tool], "tool_choice": {"type": "tool", "name": TOOL}}
    return {}


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _mark(block: dict[str, Any]) -> None:
    block["cache_control"] = {"type": "ephemeral"}


def is_message(found: object) -> TypeGuard[Message]:
    """Whether the SDK found a message. It validates no answer, and a gateway may send an error page with status 200."""
    from anthropic.types import Message

    return isinstance(found, Message) and isinstance(found.content, list)


def completion(message: Message, request: ModelRequest[AnswerT], model: str, seconds: float) -> Completion[AnswerT]:
    """Read ``message`` as the answer to ``request``. When it is unusable, the completion has a fault and no answer.

    Args:
        model: the model's name in the request. Prices and hashes use this name. The name in the answer is in ``raw``.
        seconds: the duration of the call in seconds.
    """
    answer: AnswerT | None = None
    misshapen = False
    fault, detail = _fault(message)
    if not fault:
        try:
            answer = parse(text_of(message), request.answer)
        except ValueError as error:
            fault, detail, misshapen = "invalid", why(error), is_misshapen(error)
    return Completion(
        model=model,
        usage=usage_of(message) if _counts(message) else estimated(request, text_of(message)),
        seconds=seconds,
        answer=answer,
        fault=fault,
        detail=detail,
        misshapen=misshapen,
        raw={"id": message.id, "model": message.model, "stop_reason": message.stop_reason},
    )


def text_of(message: Message) -> str:
    """The answer's JSON: the input of the tool, or else the text."""
    block: Any
    for block in message.content:
        if _calls_tool(block):
            with suppress(RecursionError):  # nested too deeply to be an answer
                return json.dumps(block.input)
            return ""
    texts = (getattr(block, "text", None) for block in message.content if getattr(block, "type", "") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _calls_tool(block: Any) -> bool:
    """Whether a block calls the tool. The SDK does not check blocks, so one may have no type."""
    return getattr(block, "type", "") == "tool_use" and block.name == TOOL


def _fault(message: Message) -> tuple[Any, str]:
    stop = message.stop_reason
    if stop in ("max_tokens", "model_context_window_exceeded"):
        return "truncated", f"{stop} after {_counted(message, 'output_tokens')} tokens"
    if stop == "refusal":
        said = (getattr(message.stop_details, name, None) for name in ("category", "explanation"))
        return "refused", redact(": ".join(str(part) for part in said if part)) or "no reason given"
    called = stop == "tool_use" and any(map(_calls_tool, message.content))
    if stop not in ("end_turn", "stop_sequence", None) and not called:
        return "invalid", redact(f"stopped with {stop}")
    return "", ""


def _counts(message: Message) -> bool:
    """Whether the server counts tokens. Some gateways before Claude do not."""
    return isinstance(getattr(message.usage, "input_tokens", None), int)


def _counted(message: Message, kind: str) -> int:
    """The tokens of one kind. A gateway may leave out the whole usage of a message."""
    return counted(getattr(message.usage, kind, None))


def usage_of(message: Message) -> Usage:
    """The tokens that were used for ``message``, by kind."""
    return Usage(
        input_tokens=_counted(message, "input_tokens"),
        output_tokens=_counted(message, "output_tokens"),
        cache_write_tokens=_counted(message, "cache_creation_input_tokens"),
        cache_read_tokens=_counted(message, "cache_read_input_tokens"),
    )
