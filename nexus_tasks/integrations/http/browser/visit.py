"""The visit that ``nexus browse`` invites to: a link with a code that is valid once, and a token for its visitor."""

from __future__ import annotations

import hmac
import secrets


class Visit:
    """One visit. Its code and its token have 256 random bits, and end with the process."""

    def __init__(self) -> None:
        self.code = secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(32)
        self._used = False

    def redeem(self, code: str) -> str | None:
        """The token, at the first call with the right code. ``None`` at any other call."""
        if self._used or not hmac.compare_digest(code.encode("utf-8", "surrogateescape"), self.code.encode()):
            return None
        self._used = True
        return self.token
