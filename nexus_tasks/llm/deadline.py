"""End a reply of a model server that takes too long as a whole.

The timeout of an HTTP library counts from one part of a reply to the next. A server or a gateway that sends a byte or a
``ping`` from time to time could hold a call for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2


def event_hooks(seconds: float) -> dict[str, list[Callable[..., Any]]]:
    """Hooks for a client of the SDKs' HTTP library. A reply must end ``seconds`` after its head has arrived.

    Later parts of the reply raise ``httpx2.ReadTimeout``, which the SDKs and the readers of streams translate.
    """
    import httpx2

    class Timed(httpx2.SyncByteStream):
        def __init__(self, response: httpx2.Response) -> None:
            assert isinstance(response.stream, httpx2.SyncByteStream)
            self._parts, self._request = response.stream, response.request
            self._until = time.monotonic() + seconds

        def __iter__(self) -> Iterator[bytes]:
            for part in self._parts:
                if time.monotonic() > self._until:
                    raise httpx2.ReadTimeout(f"The reply did not end within {seconds:.0f} s.", request=self._request)
                yield part

        def close(self) -> None:
            self._parts.close()

    def limit(response: httpx2.Response) -> None:
        response.stream = Timed(response)

    return {"response": [limit]}
