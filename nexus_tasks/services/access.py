"""Create, list, rotate, revoke and check access tokens, and read the audit log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError
from nexus_tasks.storage import audit, namespaces, tokens
from nexus_tasks.storage.audit import Actor
from nexus_tasks.storage.models import AuditRow, Token
from nexus_tasks.storage.tokens import Checked
from nexus_tasks.storage.translation import is_read_only
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.types import (
    TOKEN_SCOPES,
    AuditEntry,
    NewToken,
    TokenInfo,
    check_name,
    check_namespace,
    check_time,
    to_utc,
)

LONGEST_GRACE = 30 * 86_400  # seconds
WRITE_REFUSALS_EVERY = 10.0  # seconds; refused requests in between are counted in memory
KEPT_USES_AT_ONCE = 100  # uses of other tokens that a request writes, which Postgres did not take before; about 0.1 s


def create_token(
    deployment: Deployment, namespace: str, name: str, *, scopes: Sequence[str], expires_at: datetime | None
) -> NewToken:
    """See :meth:`nexus_tasks.client.Nexus.create_token`."""
    check_namespace(namespace)
    name = check_name("name", name)
    if scrub(name) != name:
        raise InvalidInput(
            "name has a secret, and the list of tokens and the audit log show names as they are.",
            remedy="Name the token after its user or its purpose.",
        )
    wanted = [scope for scope in TOKEN_SCOPES if scope in scopes]
    if not wanted or len(set(scopes)) > len(wanted):
        raise InvalidInput(f"scopes must be some of {', '.join(TOKEN_SCOPES)}.")
    expires_at = to_utc(check_time("expires_at", expires_at)) if expires_at is not None else None
    with deployment.database.transaction() as tx:
        row, token = tokens.create(tx, namespaces.get(tx, namespace).id, name, wanted, expires_at)
        audit.record(tx, "token.create", namespace, token=(row.id, row.name))
        return _new(row, namespace, token)


def rotate_token(deployment: Deployment, namespace: str, token_id: str, *, grace: float) -> NewToken:
    """See :meth:`nexus_tasks.client.Nexus.rotate_token`."""
    check_namespace(namespace)
    if not 0 <= grace <= LONGEST_GRACE:
        raise InvalidInput(f"grace must be 0 to {LONGEST_GRACE:,} seconds.")
    with deployment.database.transaction() as tx:
        row, token = tokens.rotate(tx, namespaces.get(tx, namespace).id, token_id, grace)
        audit.record(tx, "token.rotate", namespace, token=(row.id, row.name))
        return _new(row, namespace, token)


def revoke_token(deployment: Deployment, namespace: str, token_id: str) -> TokenInfo:
    """See :meth:`nexus_tasks.client.Nexus.revoke_token`."""
    with deployment.database.transaction() as tx:
        row, was_valid = tokens.revoke(tx, namespaces.get(tx, check_namespace(namespace)).id, token_id)
        if was_valid:
            audit.record(tx, "token.revoke", namespace, token=(row.id, row.name))
        return _info(row, namespace)


def list_tokens(deployment: Deployment, namespace: str, *, limit: int, offset: int) -> list[TokenInfo]:
    """See :meth:`nexus_tasks.client.Nexus.tokens`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        return [_info(row, known.name) for row in tokens.listed(tx, known.id, limit=limit, offset=offset)]


def read_audit(
    deployment: Deployment,
    namespace: str | None,
    *,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    offset: int,
) -> list[AuditEntry]:
    """See :meth:`nexus_tasks.client.Nexus.audit`."""
    with deployment.database.transaction() as tx:
        rows = audit.entries(
            tx,
            namespace=namespace,
            action=action,
            since=to_utc(since) if since else None,
            until=to_utc(until) if until else None,
            limit=limit,
            offset=offset,
        )
        return [_entry(row) for row in rows]


class TokenChecker:
    """Checks the tokens of requests to a server, and writes their uses to the audit log. Thread-safe.

    The first use of a token on a day (UTC) is written at once. Refused requests are written at most every 10 s, so
    that a client that guesses tokens cannot make the server write all the time. While Postgres only reads, such as a
    standby, tokens are valid too. Their uses are written with the next uses that can be written, a few with each.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._lock = threading.Lock()
        self._refused: Counter[tuple[str | None, Actor, str]] = Counter()
        self._used: dict[str, Checked] = {}  # by the id of the token; these uses could not be written
        self._written_at = float("-inf")

    def any_valid(self) -> bool:
        """Whether any namespace has a token that is not revoked.

        Raises:
            StorageUnavailable: Postgres does not answer.
        """
        with self._deployment.database.reading() as tx:
            return tokens.any_valid(tx)

    def check(self, given: str) -> Checked:
        """Check a token.

        Raises:
            StorageUnavailable: Postgres does not answer.
            NamespaceMoving: the token's namespace is arriving from another cell.
        """
        return self.noted(self.look_up(given))

    def look_up(self, given: str) -> Checked:
        """Check a token, without a note of its use.

        Raises:
            StorageUnavailable: Postgres does not answer.
            NamespaceMoving: the token's namespace is arriving from another cell.
        """
        with self._deployment.database.reading() as tx:
            return tokens.check(tx, given)

    def noted(self, found: Checked) -> Checked:
        """Note the use or the refusal of a token that was looked up. Returns it."""
        if found.refusal:
            self.note_refusal(found, found.refusal)
        elif found.unnoted:
            with self._lock:  # taken out, so that requests at the same time do not all write them
                kept = {token_id: self._used.pop(token_id) for token_id in list(self._used)[:KEPT_USES_AT_ONCE]}
            try:
                self._write_uses(kept | {found.id: found})
            except NexusError as error:
                read_only = is_read_only(error)
                with self._lock:
                    self._used |= kept | ({found.id: found} if read_only else {})
                if not read_only:
                    raise
        return found

    def _write_uses(self, used: Mapping[str, Checked]) -> None:
        with self._deployment.database.transaction() as tx:
            for token_id, one in sorted(used.items()):  # in one order, so that two threads do not wait for each other
                if tokens.note_use(tx, token_id):
                    audit.count_use(tx, "token.use", one.namespace, actor_of(one), reason="", times=1)

    def note_refusal(self, token: Checked, reason: str) -> None:
        """Count a refused request of a token. ``reason`` is a word, such as ``expired``."""
        with self._lock:
            self._refused[token.namespace or None, actor_of(token), reason] += 1
            due = time.monotonic() - self._written_at >= WRITE_REFUSALS_EVERY
        if due:
            self.write_refusals()

    def write_refusals(self) -> None:
        """Write the counted refusals. While Postgres does not answer, they stay counted in memory."""
        with self._lock:
            counted, self._refused = self._refused, Counter()
            self._written_at = time.monotonic()
        if not counted:
            return
        try:
            with self._deployment.database.transaction() as tx:
                for (namespace, actor, reason), times in sorted(counted.items(), key=lambda one: one[0][1].token_id):
                    audit.count_use(tx, "token.refuse", namespace, actor, reason=reason, times=times)
        except NexusError:
            with self._lock:
                self._refused += counted


def actor_of(token: Checked) -> Actor:
    """The actor that the audit log names for a request with this token."""
    return Actor(kind="token", token_id=token.id, token_name=token.name)


def _info(row: Token, namespace: str) -> TokenInfo:
    return TokenInfo(
        id=row.id,
        namespace=namespace,
        name=row.name,
        scopes=tuple(row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        rotated_at=row.rotated_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def _new(row: Token, namespace: str, token: str) -> NewToken:
    return NewToken(**vars(_info(row, namespace)), token=token)


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        action=row.action,
        namespace=row.namespace,
        reason=row.reason,
        actor=row.actor,
        token_id=row.token_id,
        token_name=row.token_name,
        user=row.user,
        host=row.host,
        counts=row.counts,
        count=row.count,
    )
