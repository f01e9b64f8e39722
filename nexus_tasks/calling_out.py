"""Send a request to an address that a caller has chosen, and never to an address of the own network.

The name is resolved once, and the request goes to the resolved address. So an answer of DNS that changes between the
check and the request leads nowhere else. Redirections are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from nexus_tasks.errors import Permanent, Transient

SECONDS = 5.0  # to connect
LONGEST = 10.0  # seconds for all steps after the connection; a host that sends a byte at a time would never end
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: IPv6 addresses that have an IPv4 address in their last bits
_GLOBAL = ipaddress.ip_network("2000::/3")
# Special-purpose networks that Python 3.11 calls global: documentation (RFC 9637), relays of 6to4 (RFC 7526), protocols
# (RFC 6890; a cloud has its metadata at 192.0.0.192), and the address at which Azure configures its machines.
_RESERVED = tuple(map(ipaddress.ip_network, ("3fff::/20", "192.88.99.0/24", "192.0.0.0/24", "168.63.129.16/32")))


def post(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> int:
    """Send ``body`` to ``url``, and return the status of the answer.

    Args:
        url: an address that begins with https:// or http://.
        body: the body.
        headers: the headers.
        private: whether addresses of the own machine and of private networks are allowed.

    Raises:
        Permanent: the host has an address that is not allowed.
        Transient: the host is not found, or does not answer.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        plain = socket.create_connection((_address(host, port, private=private), port), timeout=SECONDS)
        plain.settimeout(LONGEST)  # else an answer that begins after 5 s would be a failure
        with _ending(plain, LONGEST):
            secure = parts.scheme == "https"
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, {"Host": parts.netloc, **headers})
            return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Transient(f"{host} does not answer: {type(error).__name__}.") from error
    finally:
        connection.close()


def check_public(url: str) -> None:
    """Check that the host of ``url`` has no address of a private network. A name that is not found now is let through.

    :func:`post` checks the address that it calls once more.

    Raises:
        Permanent: it has one.
    """
    parts = urlsplit(url)
    with suppress(OSError):
        _address(parts.hostname or "", parts.port or 443, private=False)


@contextmanager
def _ending(plain: socket.socket, seconds: float) -> Iterator[None]:
    """Shut a connection after ``seconds``, so that a step that waits for it fails. TLS takes ``plain`` over."""
    copy = plain.dup()

    def shut() -> None:
        with suppress(OSError):  # the connection has ended meanwhile
            copy.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        copy.close()


def _address(host: str, port: int, *, private: bool) -> str:
    """An address of the host. All of its addresses must be allowed."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for one in found:
        if not private and not _is_public(ipaddress.ip_address(one.partition("%")[0])):
            raise Permanent(
                f"{host} has an address of a private network.",
                remedy="Use a public address. NEXUS_WEBHOOK_PRIVATE=true allows private ones on a network of your own.",
            )
    return found[0]


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is public, also the IPv4 address inside an IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return _is_public(inner)
        if address not in _GLOBAL:
            return False
    return address.is_global and not address.is_multicast and not any(address in one for one in _RESERVED)
