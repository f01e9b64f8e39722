"""ASGI middleware that limits the requests of each token to a number per second."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from nexus_tasks.integrations.serving.access import current
from nexus_tasks.integrations.serving.problems import problem

BURST = 2.0  # seconds' worth of requests that a token may send at once
MOST_BUCKETS = 10_000  # tokens that are remembered; beyond, those whose bucket is full are forgotten


@dataclass
class _Bucket:
    """What is left for a token: requests, at a time by the monotonic clock."""

    left: float
    at: float


class RateLimit:
    """Answer 429 to a token that sends more than ``rate`` requests per second over 2 s.

    Each process counts for itself. A count in Redis would add a round trip to every request, and would fail with Redis;
    the limit protects this process and its other callers, and bills nobody.

    Args:
        app: the application behind this one, which is reached with an access (see ``tokens.py``).
        rate: requests per second.
    """

    def __init__(self, app: ASGIApp, rate: float) -> None:
        self.app, self.rate, self.most = app, rate, max(rate * BURST, 1.0)
        self._buckets: dict[str, _Bucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 429."""
        access = current.get()
        if scope["type"] == "http" and access is not None:
            wait = self._take(access.actor.token_id if access.actor else "operator", time.monotonic())
            if wait > 0:
                said = f"This token may send {self.rate:g} requests per second."
                headers = {"Retry-After": f"{max(wait, 1):.0f}"}
                await problem(429, said, remedy="Send fewer, or ask the operator.", headers=headers)(
                    scope, receive, send
                )
                return
        await self.app(scope, receive, send)

    def _take(self, token: str, now: float) -> float:
        """Take one request from the token's bucket. Returns the seconds until there is one; 0 when there was."""
        bucket = self._buckets.get(token)
        if bucket is None:
            if len(self._buckets) >= MOST_BUCKETS:
                self._forget_full(now)
            bucket = self._buckets[token] = _Bucket(self.most, now)
        bucket.left = min(bucket.left + (now - bucket.at) * self.rate, self.most)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) / self.rate
        bucket.left -= 1
        return 0.0

    def _forget_full(self, now: float) -> None:
        full = [token for token, one in self._buckets.items() if one.left + (now - one.at) * self.rate >= self.most]
        for token in full:
            del self._buckets[token]
