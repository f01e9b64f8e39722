"""Places for calls that take long, so that they leave threads and connections for the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from nexus_tasks.errors import Throttled
from nexus_tasks.integrations.serving import turns
from nexus_tasks.integrations.serving.access import current

RETRY_AFTER = 5.0  # seconds


class Places:
    """The places of a process for one sort of calls.

    A namespace may take several. When half of all places are taken, a namespace that has one gets no other, so that
    two or three busy tenants do not take all of them. The operator's token may take any.

    A call keeps its place until its work has ended, also when its client has gone or has had no answer in time. The
    work still holds a thread then.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = Counter[str]()  # by namespace; the operator's under an empty name
        self._ending = set[asyncio.Future[None]]()  # asyncio itself keeps no reference

    @contextmanager
    def one(self, most_of_namespace: int, *, too_many: str, remedy: str) -> Iterator[None]:
        """Take a place for the call of the present token.

        Args:
            most_of_namespace: how many places a namespace may take.
            too_many: says so to a namespace that has them.
            remedy: what the caller may do instead.

        Raises:
            Throttled: there is no place for the call.
        """
        access = current.get()
        name = (access and access.namespace) or ""
        own, all_taken = self._taken[name], self._taken.total()
        if name and own >= most_of_namespace:
            raise Throttled(too_many, remedy=remedy, retry_after=RETRY_AFTER)
        if all_taken >= self.most or (name and own and all_taken >= self.most // 2):
            raise Throttled("Too many long calls run in this process.", remedy=remedy, retry_after=RETRY_AFTER)
        self._taken[name] += 1
        with ExitStack() as place:
            place.callback(self._give_back, name)
            try:
                yield
            finally:
                if work := turns.unfinished():
                    ending = asyncio.ensure_future(_end(work, place.pop_all()))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)

    def _give_back(self, name: str) -> None:
        self._taken[name] -= 1
        if not self._taken[name]:
            del self._taken[name]


async def _end(work: Sequence[asyncio.Future[Any]], place: ExitStack) -> None:
    with place:
        await asyncio.wait(work)
