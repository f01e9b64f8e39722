"""ASGI middleware that answers only requests for a known host, unless they have a valid token.

A web page whose name is made to lead to 127.0.0.1 (DNS rebinding) can send requests to a server on the visitor's
machine, and read the answers. Its requests name its own host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nexus_tasks.integrations.serving.access import current
from nexus_tasks.integrations.serving.problems import problem

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")  # an IPv6 address in brackets, or a name; a port


class KnownHosts:
    """Answer 421 to a request without a valid token that is for an unknown host.

    Known are addresses, which no name leads to, ``localhost`` and its subdomains, and ``names``. The port does not
    matter.

    Args:
        app: the application behind this one.
        names: further names of the server.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = {name.lower().rstrip(".") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 421."""
        if scope["type"] == "http" and current.get() is None and not self._known(scope):
            said = "This server does not know the host that the request names."
            remedy = "Use the address that it printed, or start it with `--host NAME`."
            await problem(421, said, remedy=remedy)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        name = host_of(Headers(scope=scope).get("host", ""))
        return name in self.names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def host_of(header: str) -> str:
    """The name or address in a header ``Host``, without its port. Other text (``[::1].example``) gives ``""``."""
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
