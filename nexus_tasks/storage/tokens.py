"""Storing, reading and checking access tokens. A token gives access to one namespace, within its scopes.

A token is ``nexus_<id>_<secret>``. The table contains the id and the SHA-256 of the secret. The secret has 256 random
bits, so a slow hash would protect nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.exc import IntegrityError

from nexus_tasks.errors import InvalidInput, NamespaceMoving, NotFound
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Token

_FORM = re.compile(r"nexus_([0-9a-f]{16})_([A-Za-z0-9_\-]{43})")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A token that a request has sent, after the check.

    ``refusal`` is the reason for which it is refused (``unknown``, ``revoked`` or ``expired``), or empty. ``id``,
    ``name`` and ``namespace`` are empty for an unknown token. ``unnoted`` says that the hour of this use is not stored.
    """

    refusal: str = ""
    id: str = ""
    name: str = ""
    namespace: str = ""
    scopes: tuple[str, ...] = ()
    unnoted: bool = False


UNKNOWN = Checked(refusal="unknown")


def create(
    tx: Transaction, namespace_id: int, name: str, scopes: Sequence[str], expires_at: datetime | None
) -> tuple[Token, str]:
    """Store a new token. Returns its row, and the token itself, which is stored nowhere.

    Raises:
        InvalidInput: the namespace has a valid token of this name, or ``expires_at`` has passed by Postgres' clock.
    """
    if expires_at is not None and tx.scalar(select(func.now() >= expires_at)):
        raise InvalidInput("expires_at has passed already.")
    secret = secrets.token_urlsafe(32)
    row = Token(
        id=secrets.token_hex(8),
        namespace_id=namespace_id,
        name=name,
        scopes=list(scopes),
        digest=_digest(secret),
        expires_at=expires_at,
    )
    try:
        with tx.begin_nested():
            tx.add(row)
    except IntegrityError:
        raise InvalidInput(
            f"There is a token {name!r} already.", remedy="Choose another name, or rotate or revoke that token."
        ) from None
    tx.refresh(row)
    return row, f"nexus_{row.id}_{secret}"


def rotate(tx: Transaction, namespace_id: int, token_id: str, grace: float) -> tuple[Token, str]:
    """Give a token a new secret. The secret before stays valid for ``grace`` seconds, by Postgres' clock.

    Raises:
        NotFound: the namespace has no such token, or the token is revoked.
        InvalidInput: the token has expired. A rotation keeps the end, so the new secret would never be valid.
    """
    row = get(tx, namespace_id, token_id, lock=True)
    if row.revoked_at is not None:
        raise NotFound(f"The token {token_id} is revoked.", remedy="Create a new token with `nexus tokens create`.")
    if row.expires_at is not None and tx.scalar(select(func.now() >= row.expires_at)):
        raise InvalidInput(
            f"The token {token_id} has expired, and a rotation keeps its end.",
            remedy="Revoke it, and create a new token with `nexus tokens create`.",
        )
    secret = secrets.token_urlsafe(32)
    until = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, grace)
    values = {"previous_digest": row.digest, "previous_until": until} if grace else {"previous_digest": None}
    tx.execute(update(Token).where(Token.id == row.id).values(digest=_digest(secret), rotated_at=func.now(), **values))
    tx.refresh(row)
    return row, f"nexus_{row.id}_{secret}"


def revoke(tx: Transaction, namespace_id: int, token_id: str) -> tuple[Token, bool]:
    """Refuse a token from now on. Returns its row, and whether it was valid before.

    Raises:
        NotFound: the namespace has no such token.
    """
    row = get(tx, namespace_id, token_id, lock=True)
    if row.revoked_at is not None:
        return row, False
    tx.execute(update(Token).where(Token.id == row.id).values(revoked_at=func.now(), previous_digest=None))
    tx.refresh(row)
    return row, True


def get(tx: Transaction, namespace_id: int, token_id: str, *, lock: bool = False) -> Token:
    """The token of this id.

    Raises:
        NotFound: the namespace has no such token.
    """
    wanted = select(Token).where(Token.namespace_id == namespace_id, Token.id == token_id)
    row = tx.scalar(wanted.with_for_update() if lock else wanted)
    if row is None:
        raise NotFound(f"There is no token {token_id!r} here.", remedy="List them with `nexus tokens list`.")
    return row


def listed(tx: Transaction, namespace_id: int, *, limit: int, offset: int) -> Sequence[Token]:
    """A page of a namespace's tokens with the revoked ones, newest first."""
    query = select(Token).where(Token.namespace_id == namespace_id).order_by(Token.created_at.desc(), Token.id)
    return tx.scalars(query.limit(limit).offset(offset)).all()


def any_valid(tx: Transaction) -> bool:
    """Whether any namespace has a token that is not revoked."""
    return bool(tx.scalar(select(select(Token.id).where(Token.revoked_at.is_(None)).exists())))


_LOOKED_UP = text(
    """
    SELECT token.id, token.name, namespaces.name AS namespace, token.scopes, token.digest,
           CASE WHEN token.previous_until > now() THEN token.previous_digest END AS previous,
           CASE WHEN token.revoked_at IS NOT NULL THEN 'revoked'
                WHEN token.expires_at <= now() THEN 'expired' ELSE '' END AS refusal,
           token.last_used_at IS NULL OR token.last_used_at < date_trunc('hour', now()) AS unnoted,
           namespaces.residence = 'arriving' AS arriving
    FROM tokens AS token JOIN namespaces ON namespaces.id = token.namespace_id
    WHERE token.id = :id AND namespaces.residence IN ('here', 'draining', 'leaving', 'arriving')
    """
)


def check(tx: Transaction, given: str) -> Checked:
    """Check a token that a request has sent. Postgres' clock decides whether it has expired.

    The id in the token finds the row. The secrets are compared in constant time.

    Raises:
        NamespaceMoving: the token's namespace is arriving from another cell.
    """
    parts = _FORM.fullmatch(given)
    row = tx.execute(_LOOKED_UP, {"id": parts[1]}).one_or_none() if parts else None
    if parts is None or row is None:
        return UNKNOWN
    digest = _digest(parts[2])
    matches = [hmac.compare_digest(digest, known) for known in (row.digest, row.previous or row.digest)]
    if not any(matches):
        return UNKNOWN
    if row.arriving:
        raise NamespaceMoving(f"The namespace {row.namespace} is arriving from another cell.")
    return Checked(
        refusal=row.refusal,
        id=row.id,
        name=row.name,
        namespace=row.namespace,
        scopes=tuple(row.scopes),
        unnoted=row.unnoted,
    )


def note_use(tx: Transaction, token_id: str) -> bool:
    """Store the hour of a token's use. Returns whether this is the token's first use on this day (UTC)."""
    before = tx.scalar(select(Token.last_used_at).where(Token.id == token_id).with_for_update())
    tx.execute(update(Token).where(Token.id == token_id).values(last_used_at=func.date_trunc("hour", func.now())))
    now = tx.scalar(select(func.now()))
    return before is None or now is None or before.date() < now.date()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
