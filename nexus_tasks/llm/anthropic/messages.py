"""Build requests for Claude's Messages API and read the answers, for live calls and for message batches."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nexus_tasks.llm.anthropic.errors import redact
from nexus_tasks.llm.anthropic.schema import answer_schema
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest, Purpose, Usage
from nexus_tasks.text import estimate_tokens

if TYPE_CHECKING:
    from anthropic.types import Message

    from nexus_tasks.settings import Settings

# For the beginning of a model's name: the fewest tokens of a prompt prefix that Claude caches.
# https://platform.claude.com/docs/en/build-with-claude/prompt-caching
CACHE_MINIMUM = (("claude-haiku-", 4096), ("", 1024))

# Matches lone surrogates, and control characters except tab and line feed. UTF-8 and Postgres cannot hold a surrogate.
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def model_name(settings: Settings, purpose: Purpose) -> str:
    """The configured Claude model for ``purpose``."""
    return str(getattr(settings, f"model_{purpose}"))


def request_params(request: ModelRequest[AnswerT], settings: Settings) -> dict[str, Any]:
    """The keywords of ``messages.create``, which are also the ``params`` of a batch item.

    A cache marker tells Claude to cache the prompt up to the marker. One marker comes after the instructions, which
    every call of the purpose repeats. With ``request.shared``, another marker comes after the transcript, which calls
    for other observers repeat. A marker is left out when the prompt up to the marker is shorter than the model's
    minimum (:data:`CACHE_MINIMUM`). Other text gets no marker, because input that is written to a cache costs 25 %
    more.
    """
    model = model_name(settings, request.purpose)
    minimum = next(tokens for prefix, tokens in CACHE_MINIMUM if model.startswith(prefix))
    system = _block(request.instructions)
    transcript = _block(request.transcript)
    if estimate_tokens(request.instructions) >= minimum:
        _mark(system)
    if request.shared and estimate_tokens(request.instructions + request.transcript) >= minimum:
        _mark(transcript)
    content = [block for block in (transcript, _block(request.question)) if block["text"]]  # Claude refuses empty text
    return {
        "model": model,
        "max_tokens": int(getattr(settings, f"max_tokens_{request.purpose}")),
        "system": [system],
        "messages": [{"role": "user", "content": content}],
        "output_config": {"format": {"type": "json_schema", "schema": answer_schema(request.answer)}},
    }


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _mark(block: dict[str, Any]) -> None:
    block["cache_control"] = {"type": "ephemeral"}


def completion(message: Message, request: ModelRequest[AnswerT], model: str, seconds: float) -> Completion[AnswerT]:
    """Read ``message`` as the answer to ``request``. When it is unusable, the completion has a fault and no answer.

    Args:
        model: the model's name in the request. Prices and hashes use this name. The name in the answer is in ``raw``.
        seconds: the duration of the call in seconds.
    """
    answer: AnswerT | None = None
    fault, detail = _fault(message)
    if not fault:
        text = "".join(block.text for block in message.content if block.type == "text")
        try:
            answer = parse(text, request.answer)
        except ValueError as error:
            fault, detail = "invalid", _why(error)
    return Completion(
        model=model,
        usage=usage_of(message),
        seconds=seconds,
        answer=answer,
        fault=fault,
        detail=detail,
        raw={"id": message.id, "model": message.model, "stop_reason": message.stop_reason},
    )


def _fault(message: Message) -> tuple[Any, str]:
    stop = message.stop_reason
    if stop in ("max_tokens", "model_context_window_exceeded"):
        return "truncated", f"{stop} after {message.usage.output_tokens} tokens"
    if stop == "refusal":
        about = message.stop_details
        said = [about.category, about.explanation] if about else []
        return "refused", redact(": ".join(part for part in said if part)) or "no reason given"
    if stop not in ("end_turn", "stop_sequence", None):
        return "invalid", redact(f"stopped with {stop}")
    return "", ""


def usage_of(message: Message) -> Usage:
    """The tokens that were used for ``message``, by kind."""
    usage = message.usage
    return Usage(
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        cache_write_tokens=usage.cache_creation_input_tokens or 0,
        cache_read_tokens=usage.cache_read_input_tokens or 0,
    )


def parse(text: str, answer: type[AnswerT]) -> AnswerT:
    """Parse ``text`` as JSON, remove control characters from its strings, and validate it as an ``answer``.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or does not fit ``answer`` (``ValidationError``).
    """
    try:
        # strict=False accepts raw control characters in strings, and _clean removes them.
        return answer.model_validate(_clean(json.loads(text, strict=False)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _UNWANTED.sub("", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _why(error: ValueError) -> str:
    """A text with the fields that break a rule, and the rules. The model's own text is left out."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[:3]
        places = (".".join(str(part)[:40] for part in fault["loc"]) for fault in first)
        rules = "; ".join(f"{place}: {fault['type']}" for place, fault in zip(places, first, strict=True))
        return redact(f"{error.error_count()} faults: {rules}")
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at character {error.pos}"
    return redact(f"no JSON: {error}")
