"""What can go wrong with a call, as values to script a :class:`~tests.standin.StandIn` with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An error status, a wait, a cut connection, or a change to an otherwise good message."""

    name: str
    status: int = 200
    type: str = ""
    message: str = ""
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None  # sent in place of Anthropic's error object
    delay: float = 0.0
    cut: bool = False
    batch: str = "errored"  # what becomes of a batch item: errored or expired
    change: Callable[[Message], None] | None = None

    def error(self) -> Message:
        """Anthropic's error object."""
        error: Message = {"type": self.type, "message": self.message}
        if self.code:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": "req_standin"}


def status(number: int, type: str, message: str, **more: Any) -> Fault:
    """Any error status."""
    return Fault(name=str(number), status=number, type=type, message=message, **more)


def throttled(retry_after: str | None = "7", *, milliseconds: str | None = None, code: str = "") -> Fault:
    """429, with the ``Retry-After`` and ``Retry-After-Ms`` given."""
    given = {"Retry-After": retry_after, "Retry-After-Ms": milliseconds}
    headers = {name: value for name, value in given.items() if value is not None}
    return status(429, "rate_limit_error", "Number of requests exceeded.", headers=headers, code=code)


def overloaded() -> Fault:
    """529."""
    return status(529, "overloaded_error", "Overloaded")


def server_error(number: int = 500) -> Fault:
    """500, or another 5xx."""
    return status(number, "api_error", "Internal server error")


def unauthorized(message: str = "invalid authentication credentials") -> Fault:
    """401."""
    return status(401, "authentication_error", message)


def forbidden() -> Fault:
    """403."""
    return status(403, "permission_error", "Your key has no access to this.")


def not_found(model: str = "claude-nobody") -> Fault:
    """404: an unknown model."""
    return status(404, "not_found_error", f"model: {model}")


def payment_required() -> Fault:
    """402."""
    return status(402, "billing_error", "Your credit balance is too low.")


def too_large() -> Fault:
    """413: the body has too many bytes."""
    return status(413, "invalid_request_error", "Request exceeds the maximum size")


def prompt_too_long() -> Fault:
    """400: the prompt has too many tokens."""
    return status(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")


def slow(seconds: float) -> Fault:
    """The good answer, so many seconds later."""
    return Fault(name="slow", delay=seconds)


def cut() -> Fault:
    """The connection breaks in the middle of the answer's body."""
    return Fault(name="cut", cut=True)


def expired() -> Fault:
    """A batch item that was not processed in time (a live call gets 529)."""
    return Fault(name="expired", status=529, type="overloaded_error", message="Overloaded", batch="expired")


def truncated(reason: str = "max_tokens") -> Fault:
    """Half of the answer, and the reason why it stops there."""

    def change(message: Message) -> None:
        text = message["content"][0]["text"]
        message["content"][0]["text"] = text[: len(text) // 2]
        message["stop_reason"] = reason

    return Fault(name="truncated", change=change)


def invalid_json() -> Fault:
    """Text that is no JSON."""
    return says("Sure! Here is what I found: {observations:")


def schema_violation() -> Fault:
    """JSON that does not fit the schema."""
    return says(json.dumps({"observations": "none", "short": 1, "relations": {}, "made_up": True}))


def says(text: str) -> Fault:
    """Whatever ``text``."""

    def change(message: Message) -> None:
        message["content"] = [{"type": "text", "text": text}]

    return Fault(name="says", change=change)


def refused(explanation: str = "This request was declined.") -> Fault:
    """A refusal."""

    def change(message: Message) -> None:
        message["content"] = []
        message["stop_reason"] = "refusal"
        message["stop_details"] = {"type": "refusal", "category": "cyber", "explanation": explanation}

    return Fault(name="refused", change=change)
