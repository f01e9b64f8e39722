"""What the caller of a request may do: the namespace and the scopes of the token that the request has sent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from nexus_tasks.errors import ConfigurationError, NotAllowed
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.storage.audit import Actor
from nexus_tasks.types import TOKEN_SCOPES

ENOUGH_BITS = 128  # a token of fewer bits is refused on an address that other machines reach
# A text of at least this many characters that repeats earlier ones, or is a run or a sequence, counts as one character.
# With 4, one of 100 random tokens of 32 hexadecimal digits would have too few.
_REPEAT = 5
_LOOKED_AT = 1_000  # characters of a token; the search for repeats takes quadratic time
_CLASSES = (
    (re.compile(r"[a-z]"), 26),
    (re.compile(r"[A-Z]"), 26),
    (re.compile(r"[0-9]"), 10),
    (re.compile(r"[^a-zA-Z0-9]"), 33),
)


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a caller may do. ``namespace`` is ``None`` for a caller that may name any namespace."""

    namespace: str | None = None
    scopes: tuple[str, ...] = TOKEN_SCOPES
    actor: Actor | None = None  # the token, for the audit log; ``None``: the operator's own token, or no token
    refused: Callable[[str], None] = lambda _reason: None  # counts a refused call in the audit log
    still_valid: Callable[[], bool] = lambda: True  # whether the token is valid now; asks Postgres

    @property
    def operator(self) -> bool:
        """Whether the caller has the operator's own token."""
        return self.namespace is None and self.actor is None

    def has(self, *scopes: str) -> bool:
        """Whether the caller has each of ``scopes``."""
        return all(scope in self.scopes for scope in scopes)

    def check(self, *scopes: str) -> None:
        """Check that the caller has each of ``scopes``.

        Raises:
            NotAllowed: a scope is missing.
        """
        for scope in scopes:
            if scope not in self.scopes:
                self.refused(scope)
                raise NotAllowed(
                    f"This token lacks the scope {scope}.", remedy="Ask the operator for a token that has it."
                )


# The access of the request that this thread or task serves. Each HTTP request has a task of its own.
current: ContextVar[Access | None] = ContextVar("nexus_access", default=None)


def access_of(checker: TokenChecker, token: str, bound: str | None) -> Access | None:
    """The access that a token of a namespace gives, or ``None`` when the token is refused.

    Args:
        bound: the only namespace that the server serves.

    Raises:
        StorageUnavailable: Postgres does not answer.
        NamespaceMoving: the token's namespace is arriving from another cell.
    """
    found = checker.check(token)
    if found.refusal:
        return None
    if bound not in (None, found.namespace):
        checker.note_refusal(found, "namespace")
        return None
    return Access(
        namespace=found.namespace,
        scopes=found.scopes,
        actor=Actor(kind="token", token_id=found.id, token_name=found.name),
        refused=lambda reason: checker.note_refusal(found, reason),
        still_valid=lambda: not checker.check(token).refusal,
    )


def check_strength(token: str, setting: str) -> None:
    """Check that a token which the operator has chosen has at least 128 bits of entropy, as far as that shows.

    The estimate is the number of characters times the logarithm of the size of the alphabet in use. Characters that
    repeat or continue what is before them do not count.

    Args:
        token: the token.
        setting: the setting that has the token, for the error.

    Raises:
        ConfigurationError: the estimate is lower.
    """
    bits = estimated_bits(token)
    if bits < ENOUGH_BITS:
        raise ConfigurationError(
            f"{setting} has about {bits:.0f} bits of entropy, and other machines can reach this address.",
            remedy=f"Use a token of at least {ENOUGH_BITS} bits:"
            f' {setting}=$(python -c "import secrets; print(secrets.token_urlsafe(32))").',
        )


def estimated_bits(token: str) -> float:
    """The entropy of the first :data:`_LOOKED_AT` characters of ``token`` in bits, estimated from above."""
    token = token[:_LOOKED_AT]
    if re.fullmatch(r"[0-9]*", token):
        alphabet = 10
    elif re.fullmatch(r"[0-9a-f]*|[0-9A-F]*", token):
        alphabet = 16
    else:
        alphabet = sum(size for pattern, size in _CLASSES if pattern.search(token))
    return _unpredictable(token) * math.log2(alphabet) if token else 0.0


def _unpredictable(token: str) -> int:
    """The number of characters without those of repeats (``abcdeabcde``), runs (``aaa``) and sequences (``1234``)."""
    number = position = 0
    while position < len(token):
        number += 1
        position += max(_repeat(token, position), _sequence(token, position), 1)
    return number


def _repeat(token: str, position: int) -> int:
    """The length of the text at ``position`` that also begins earlier; 0 when it is shorter than ``_REPEAT``."""
    length = 0
    while position + length < len(token) and token.find(token[position : position + length + 1]) < position:
        length += 1
    return length if length >= _REPEAT else 0


def _sequence(token: str, position: int) -> int:
    """The length of the run or sequence at ``position``; 0 when it is shorter than ``_REPEAT``."""
    if position + 1 >= len(token):
        return 0
    step = ord(token[position + 1]) - ord(token[position])
    if abs(step) > 1:
        return 0
    end = position + 1
    while end < len(token) and ord(token[end]) - ord(token[end - 1]) == step:
        end += 1
    return end - position if end - position >= _REPEAT else 0
