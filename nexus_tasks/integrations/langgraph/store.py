"""LangGraph's ``BaseStore`` on a namespace of nexus-tasks: items are kept, found by meaning, and erased for good."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from nexus_tasks.client import Nexus
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.integrations.langgraph.items import (
    hit_of,
    id_of,
    item_of,
    message_of,
    namespace_of,
    session_of,
)
from nexus_tasks.integrations.langgraph.matching import common_prefix, matches, passes
from nexus_tasks.types import Message, SaidMessage

_PAGE = 1_000


class NexusStore(BaseStore):
    """A store whose items are messages of one namespace. Each LangGraph namespace is a session of it.

    ``search`` with a query ranks items by words and meaning. Items are also found by ``Nexus.search`` and shown in
    contexts. No facts are derived from them, unless ``observers`` are named. A put over an item erases the old value
    and what was derived from it; a delete erases the item. Operations of a batch read before they write. Secrets in
    values are replaced unless the namespace's setting ``scrub`` is off. Items do not expire.

    Args:
        nexus: the client.
        namespace: the namespace. It is made by the first put.
        root: the first part of the session keys. Stores with other roots are separate.
        fields: the fields of a value that searches read, as paths. Default: the whole value.
        observers: the observers that get facts from the items. Default: none.

    Example::

        store = NexusStore(Nexus(), "acme")
        store.put(("users", "ann"), "tea", {"text": "Ann drinks green tea."})
        print(store.search(("users",), query="what does ann drink?")[0].value)
    """

    __slots__ = ("fields", "namespace", "nexus", "observers", "root")

    def __init__(
        self,
        nexus: Nexus,
        namespace: str,
        *,
        root: str = "langgraph",
        fields: Sequence[str] = ("$",),
        observers: Sequence[str] = (),
    ) -> None:
        self.nexus, self.namespace, self.root = nexus, namespace, root
        self.fields, self.observers = list(fields), list(observers)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: first all that read, then all that write. The last put of a key counts."""
        results = list[Result]()
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(self._get(op.namespace, op.key))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._namespaces(op))
            else:
                raise ValueError(f"Unknown operation type: {type(op)}")
        self._put(puts.values())
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """:meth:`batch` in a thread."""
        return await asyncio.to_thread(self.batch, ops)

    # --- reading ------------------------------------------------------------------------------------------------------
    def _get(self, namespace: tuple[str, ...], key: str) -> Item | None:
        session_key = session_of(self.root, namespace)
        found = self._said(session_key, [id_of(key)])
        return item_of(self.root, session_key, found[0]) if found else None

    def _said(self, session_key: str, ids: Sequence[str]) -> Sequence[SaidMessage]:
        found, after = list[SaidMessage](), 0
        while True:
            try:
                page = self.nexus.session(self.namespace, session_key, ids=ids, after=after)
            except NotFound:
                return ()
            found += page.said
            if page.next_after is None:
                return found
            after = page.next_after

    def _search(self, op: SearchOp) -> list[SearchItem]:
        prefix = session_of(self.root, op.namespace_prefix)
        end = op.offset + op.limit
        found = list[SearchItem]()
        query = (op.query or "").strip()
        hits = self._ranked(prefix, query, end, filtered=bool(op.filter)) if query else self._newest(prefix)
        for hit in hits:
            if len(found) >= end:
                break
            if passes(hit.value, op.filter):
                found.append(hit)
        return found[op.offset : end]

    def _newest(self, prefix: str) -> Iterator[SearchItem]:
        """The items of the sessions below ``prefix``; the last that was put comes first."""
        offset, size = 0, _PAGE
        while True:
            try:
                page = self.nexus.memories(
                    self.namespace, session_prefix=prefix, levels=["raw"], limit=size, offset=offset
                )
            except NotFound:
                return
            except InvalidInput:  # the items are too large for one answer
                if size == 1:
                    raise
                size //= 2
                continue
            for memory in page:
                if (item := item_of(self.root, memory.session_key or "", memory)) is not None:
                    yield hit_of(item)
            if len(page) < size:
                return
            offset += size

    def _ranked(self, prefix: str, query: str, least: int, *, filtered: bool) -> Iterator[SearchItem]:
        """The items of the sessions below ``prefix`` that fit the query, best first.

        They are at most ``least``, or at most 1,000 when they are to be ``filtered``: as many as fit into one answer.
        """
        least = max(1, min(least, _PAGE))
        size = _PAGE if filtered else least
        while True:
            try:
                hits = self.nexus.search(
                    self.namespace, query, session_prefix=prefix, levels=["raw"], limit=size, collapse=False
                )
                break
            except NotFound:
                return
            except InvalidInput:  # the items are too large for one answer
                if size == least:
                    raise
                size = max(size // 2, least)
        ids = defaultdict[str, list[str]](list)
        for hit in hits:
            ids[hit.session_key or ""].append(hit.external_id or "")
        items = {
            kept.id: item_of(self.root, session_key, kept)
            for session_key, wanted in ids.items()
            for kept in self._said(session_key, wanted)
        }
        for hit in hits:
            if (item := items.get(hit.id)) is not None:
                yield hit_of(item, hit.score)

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        prefix = session_of(self.root, common_prefix(op.match_conditions))
        found = set[tuple[str, ...]]()
        for session_key in self._session_keys(prefix):
            namespace = namespace_of(self.root, session_key)
            wanted = all(matches(namespace, condition) for condition in op.match_conditions or ())
            if wanted and self.nexus.session(self.namespace, session_key, limit=1).said:
                found.add(namespace[: op.max_depth])
        return sorted(found)[op.offset : op.offset + op.limit]

    def _session_keys(self, prefix: str) -> Iterator[str]:
        offset, page = 0, list[Any]()
        while offset == 0 or len(page) == _PAGE:
            try:
                page = self.nexus.sessions(self.namespace, session_prefix=prefix, limit=_PAGE, offset=offset)
            except NotFound:
                return
            yield from (session.session_key for session in page)
            offset += _PAGE

    # --- writing ------------------------------------------------------------------------------------------------------
    def _put(self, puts: Iterable[PutOp]) -> None:
        by_session = defaultdict[str, list[PutOp]](list)
        for put in puts:
            by_session[session_of(self.root, put.namespace)].append(put)
        for session_key, some in by_session.items():
            there = {kept.external_id: kept for kept in self._said(session_key, [id_of(put.key) for put in some])}
            new = list[Message]()
            for put in some:
                old = there.get(id_of(put.key))
                if put.value is not None:
                    created = (old.data or {}).get("created_at") if old else None
                    new.append(message_of(put, self.fields, created))
                elif old is not None:
                    with suppress(NotFound):  # another delete was quicker
                        self.nexus.forget(self.namespace, memory_id=old.id)
            if new:
                self.nexus.ingest(
                    self.namespace, session_key, new, observers=self.observers, observe=False, replace=True
                )
