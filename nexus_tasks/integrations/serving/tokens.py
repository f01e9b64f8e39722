"""ASGI middleware that lets only requests with a valid bearer token pass."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nexus_tasks import limits
from nexus_tasks.errors import ConfigurationError, NexusError, Throttled
from nexus_tasks.integrations.serving.access import Access, access_of, current
from nexus_tasks.integrations.serving.connections import answer_and_drain
from nexus_tasks.integrations.serving.problems import problem
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.storage.audit import OPERATOR, acting
from nexus_tasks.types import TOKEN_SCOPES

_ASK = "Ask the operator for a token, and send it as a bearer token in the header Authorization."


_CHECKS_AT_ONCE = 8  # checks of tokens that were valid before
_FIRST_CHECKS_AT_ONCE = 2  # of other tokens
_SEEN = 10_000  # tokens that are known to have been valid


class TokenRequired:
    """ASGI middleware that passes a request with a valid bearer token on to ``app``, and answers 401 to other requests.

    A valid token is the operator's token, or a token of a namespace. While Postgres does not answer, tokens of
    namespaces cannot be checked, and their requests get the answer 503.

    Each check is a statement in Postgres. At most ``limits.HTTP_NAMESPACE_REQUESTS`` requests of a namespace may wait
    for theirs; further ones get 429. Tokens that were valid before do not wait for others, which strangers may invent.

    No cache keeps an answer, not even that of a web browser. A kept
    answer would still show memories that are erased later.

    Args:
        app: the application behind this one.
        token: the operator's token, which gives access to all that the server serves. Empty: there is none.
        checker: checks the tokens of namespaces. ``None``: they are refused.
        bound: the only namespace that the server serves.
        setting: the setting of the operator's token, for the error.
        guarded: whether a path needs a token. Default: all do.
        scopes: what the operator's token may do.

    Raises:
        ConfigurationError: no token can be valid.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        checker: TokenChecker | None = None,
        bound: str | None = None,
        *,
        setting: str,
        guarded: Callable[[str], bool] = lambda _path: True,
        scopes: tuple[str, ...] = TOKEN_SCOPES,
    ) -> None:
        if not token and checker is None:
            raise ConfigurationError(
                "A server over HTTP needs a token, and none is set.",
                remedy=f"Make a token for a namespace with `nexus tokens create`, or set {setting} to a long"
                " random text. Give the token to the clients.",
            )
        self.app = app
        self.expected = f"Bearer {token}".encode() if token else None
        self.checker = checker
        self.bound = bound
        self.guarded = guarded
        self.scopes = scopes
        # Threads of their own, so that the checks do not wait for slow requests.
        self._checks = CapacityLimiter(_CHECKS_AT_ONCE)
        self._first_checks = CapacityLimiter(_FIRST_CHECKS_AT_ONCE)
        self._seen = dict[int, str]()  # the hash of a token that was valid → its namespace; the last one used is last
        self._waiting = Counter[int | str]()  # checks under way, of a namespace or of a token that was not seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400, 401, 429 or 503."""
        if scope["type"] != "http" or not self.guarded(scope["path"]):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist("authorization")
        if len(given) > 1:  # a proxy may have checked the other one
            refusal = problem(400, "The request has several Authorization headers.", remedy="Send one.")
            await refusal(scope, receive, send)
            return
        try:
            access = await self._access(given[0] if given else "")
        except Throttled as error:
            # The connection is closed, because it may bring a thousand requests more.
            headers = {"Retry-After": "1", "Connection": "close"}
            await answer_and_drain(problem(429, error.message, remedy=error.remedy, headers=headers), receive, send)
            return
        except NexusError as error:
            busy = problem(503, "The token cannot be checked now.", remedy=error.remedy, headers={"Retry-After": "5"})
            await busy(scope, receive, send)
            return
        if access is None:
            refusal = problem(
                401, "A valid bearer token is required.", remedy=_ASK, headers={"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return

        async def unkept(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        entered = current.set(access)
        try:
            with acting(access.actor or OPERATOR):
                await self.app(scope, receive, unkept)
        finally:
            current.reset(entered)

    async def _access(self, header: str) -> Access | None:
        given = header.encode("utf-8", "surrogateescape")
        # The time that compare_digest takes does not depend on the compared texts. So a client cannot guess the token
        # from the time of a refusal.
        if self.expected is not None and hmac.compare_digest(given, self.expected):
            return Access(scopes=self.scopes)
        scheme, _, token = header.partition(" ")
        if self.checker is None or scheme.lower() != "bearer" or not token:
            return None
        return await self._checked(self.checker, token)

    async def _checked(self, checker: TokenChecker, token: str) -> Access | None:
        key = hash(token)  # the token itself is kept nowhere
        of = self._seen.get(key, key)
        if self._waiting[of] >= limits.HTTP_NAMESPACE_REQUESTS:
            raise Throttled(
                f"At most {limits.HTTP_NAMESPACE_REQUESTS} requests of a namespace may be open.",
                remedy="Try again when one has its answer.",
            )
        self._waiting[of] += 1
        try:
            limiter = self._checks if key in self._seen else self._first_checks
            access = await to_thread.run_sync(access_of, checker, token, self.bound, limiter=limiter)
        finally:
            self._waiting[of] -= 1
            if not self._waiting[of]:
                del self._waiting[of]
        self._seen.pop(key, None)
        if access is not None and access.namespace is not None:
            self._seen[key] = access.namespace
            if len(self._seen) > _SEEN:
                del self._seen[next(iter(self._seen))]
        return access
