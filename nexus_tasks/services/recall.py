"""Search memories, assemble a context (a block of memories for a prompt), and answer a question from memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import get_args

from nexus_tasks import limits
from nexus_tasks.cognition import retrieval
from nexus_tasks.cognition.context import ContextRequest, assemble, fit_to_count, make_profile, render_as
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services import buffer_flush
from nexus_tasks.services.memories import memory_filter
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.types import (
    Answer,
    AnswerSentence,
    ContextBlock,
    ContextFormat,
    Recalls,
    Standing,
    as_stored,
    check_name,
    check_namespace,
    check_standing,
    to_utc,
)

DEFAULT_TOKENS = 2_000  # the most tokens of a context when the caller names no number


def search(
    deployment: Deployment,
    namespace: str,
    query: str,
    *,
    observer: str | None,
    subject: str | None,
    session_key: str | None,
    session_prefix: str | None,
    levels: Sequence[str] | None,
    categories: Sequence[str] | None,
    since: datetime | None,
    until: datetime | None,
    as_of: datetime | None,
    min_standing: Standing | None,
    heard_only: bool,
    limit: int,
    collapse: bool,
) -> Recalls:
    """See :meth:`nexus_tasks.client.Nexus.search`."""
    _check_heard_only(observer, heard_only=heard_only)
    if not isinstance(query, str) or not query.strip():
        raise InvalidInput("query must be a non-empty text.")
    if not 1 <= limit <= limits.SEARCH_RESULTS:
        raise InvalidInput(f"limit must be 1 to {limits.SEARCH_RESULTS:,}, not {limit!r}.")
    buffer_flush.store_pending(deployment)
    embedder = retrieval.EmbeddedQuestion(deployment.embedder, query)
    with deployment.database.reading() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        wanted = replace(
            memory_filter(known.id, observer, subject, levels, as_of),
            session_key=session_key and as_stored(session_key),
            session_prefix=session_prefix and as_stored(session_prefix),
            categories=tuple(categories) if categories else None,
            since=to_utc(since) if since else None,
            until=to_utc(until) if until else None,
            min_standing=_rank(min_standing),
            heard_only=heard_only,
        )
        return retrieval.search(tx, embedder, wanted, query, limit, collapsed=collapse)


def context(
    deployment: Deployment,
    namespace: str,
    *,
    session_key: str | None,
    query: str | None,
    observer: str | None,
    subject: str | None,
    min_standing: Standing | None,
    heard_only: bool,
    profile: bool | None,
    max_tokens: int | None,
    form: ContextFormat,
    observe: bool,
    count: str,
) -> ContextBlock:
    """See :meth:`nexus_tasks.client.Nexus.context`."""
    if count not in ("estimate", "anthropic"):
        raise InvalidInput(f"count must be estimate or anthropic, not {count!r}.")
    _check_heard_only(observer, heard_only=heard_only)
    if max_tokens is not None and (not isinstance(max_tokens, int) or not 1 <= max_tokens <= limits.CONTEXT_TOKENS):
        raise InvalidInput(f"max_tokens must be 1 to {limits.CONTEXT_TOKENS:,}, not {max_tokens!r}.")
    if form not in get_args(ContextFormat):
        raise InvalidInput(f"format must be text, anthropic, openai or json, not {form!r}.")
    buffer_flush.store_pending(deployment)
    observer, subject, session_key = (
        as_stored(name) if isinstance(name, str) else name for name in (observer, subject, session_key)
    )
    if observe:
        if session_key is None or count != "estimate":
            raise InvalidInput("With observe, give session_key. Give no count.")
        if not query and (observer or subject or min_standing):
            raise InvalidInput("With observe, give observer, subject or min_standing only together with a query.")
        session_key = check_name("session_key", session_key)
        check_namespace(namespace)
    embedder = retrieval.EmbeddedQuestion(deployment.embedder, query) if query else deployment.embedder
    if observe and session_key is not None:

        def find(most: int, without: frozenset[int]) -> ContextBlock:
            with deployment.database.reading() as tx:
                asked = ContextRequest(
                    namespace=namespace,
                    namespace_id=namespaces.get(tx, namespace).id,
                    session_key=None,
                    query=query,
                    observer=observer,
                    subject=subject,
                    min_standing=_rank(min_standing),
                    heard_only=heard_only,
                    max_tokens=most,
                    without=without,
                )
                return assemble(tx, embedder, asked)

        from nexus_tasks.services import observation

        return observation.read(
            deployment, namespace, session_key, max_tokens=max_tokens, form=form, find=find if query else None
        )
    with deployment.database.reading() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        ask = ContextRequest(
            namespace=namespace,
            namespace_id=known.id,
            session_key=session_key,
            query=query or None,
            observer=observer,
            subject=subject,
            min_standing=_rank(min_standing),
            heard_only=heard_only,
            profile_of=_subject_of_profile(tx, known.id, subject, wanted=profile),
            max_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens,
        )

        def within(bound: int) -> ContextBlock:
            return render_as(assemble(tx, embedder, replace(ask, max_tokens=bound)), form)

        if count != "anthropic":
            return within(ask.max_tokens)

    def within_anew(bound: int) -> ContextBlock:  # no connection is held while Claude counts
        with deployment.database.reading() as tx:
            return render_as(assemble(tx, embedder, replace(ask, max_tokens=bound)), form)

    return fit_to_count(within_anew, ask.max_tokens, deployment.claude.count_tokens)


def _rank(min_standing: Standing | None) -> int | None:
    return None if min_standing is None else check_standing("min_standing", min_standing)


def ask(
    deployment: Deployment,
    namespace: str,
    question: str,
    *,
    observer: str | None,
    subject: str | None,
    heard_only: bool,
    on_sentence: Callable[[AnswerSentence], None] | None,
) -> Answer:
    """See :meth:`nexus_tasks.client.Nexus.ask`."""
    from nexus_tasks.cognition.answering import AnswerRequest, answer
    from nexus_tasks.tasks.handler import dry_context

    if not question.strip():
        raise InvalidInput("question must be a non-empty text.")
    _check_heard_only(observer, heard_only=heard_only)
    buffer_flush.store_pending(deployment)
    with deployment.database.reading() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
    asked = AnswerRequest(
        namespace=namespace,
        namespace_id=known.id,
        question=question,
        observer=observer and as_stored(observer),
        subject=subject and as_stored(subject),
        heard_only=heard_only,
    )
    return answer(deployment.resources, dry_context(deployment, known, "ask"), asked, on_sentence)


def _check_heard_only(observer: str | None, *, heard_only: bool) -> None:
    if heard_only and observer is None:
        raise InvalidInput("heard_only needs an observer.", remedy="Name the observer who heard the messages.")


def _subject_of_profile(tx: Transaction, namespace_id: int, subject: str | None, *, wanted: bool | None) -> str | None:
    if wanted is False or (wanted is None and subject is None):
        return None
    return as_stored(subject) if subject is not None else context_rows.main_speaker(tx, namespace_id)


def profile(
    deployment: Deployment, namespace: str, subject: str, *, observer: str | None, max_tokens: int
) -> ContextBlock:
    """See :meth:`nexus_tasks.client.Nexus.profile`."""
    if not 1 <= max_tokens <= limits.CONTEXT_TOKENS:
        raise InvalidInput(f"max_tokens must be 1 to {limits.CONTEXT_TOKENS:,}, not {max_tokens!r}.")
    buffer_flush.store_pending(deployment)
    with deployment.database.reading() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
        wanted = memory_filter(known.id, observer, check_name("subject", subject), None, None)
        return make_profile(tx, wanted, namespace, max_tokens)
